"""How long kernels take on one GPU."""
