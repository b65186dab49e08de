"""The recorder of a running program: kernels and hooks, the Python stack, times; from a collective to a `Trace`."""
