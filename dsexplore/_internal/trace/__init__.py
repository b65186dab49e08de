"""Traces: their tables, the `Trace` around them, files, selections, merges, differences and exports."""
