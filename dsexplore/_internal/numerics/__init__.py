"""Compare what a parallel plan computes with what the model computes on one process, and name the first difference."""
