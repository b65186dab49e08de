"""What the Python stack says of a collective: phase, cause, and the user's line."""
