"""The modules of a recorded program: their calls, their parameters, and the autograd nodes that their calls made."""
