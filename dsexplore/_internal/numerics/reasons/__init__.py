"""Rules that recognize the reason of a difference, a module per reason, each with the change to try."""
