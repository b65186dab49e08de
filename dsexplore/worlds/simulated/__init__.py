"""What torch and its users meet in a simulated world: one process plays one rank, the other ranks do not exist."""
