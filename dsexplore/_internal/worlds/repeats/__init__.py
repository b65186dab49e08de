"""Layers and microbatches that would record what others have recorded are not run: their rows are repeated."""
