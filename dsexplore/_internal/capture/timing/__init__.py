"""When collectives began and ended."""
