"""A parameter in a step: where it is sharded, and what is sent for it."""
