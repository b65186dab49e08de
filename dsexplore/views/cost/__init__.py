"""Predicted steps, and the choice of a mesh."""
