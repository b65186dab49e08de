"""The view of a comparison of numbers: where a parallel plan parts from the model."""
