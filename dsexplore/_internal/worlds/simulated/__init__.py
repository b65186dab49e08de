"""Patches of torch for a simulated world, where one process plays one rank, and the other ranks do not exist."""
