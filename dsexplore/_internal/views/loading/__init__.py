"""How a `LoadingResult` and a `CheckpointCost` look."""
