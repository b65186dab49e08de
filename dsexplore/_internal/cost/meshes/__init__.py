"""The choice of a mesh."""
