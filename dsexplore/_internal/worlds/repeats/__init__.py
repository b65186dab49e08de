"""What a program repeats is not run: layers and microbatches that record what others have recorded."""
