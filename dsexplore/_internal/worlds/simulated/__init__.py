"""Patches of torch for a simulated world, where one process runs as one rank, and the other ranks do not exist."""
