"""How a `Loading` and a `CheckpointCost` look."""
