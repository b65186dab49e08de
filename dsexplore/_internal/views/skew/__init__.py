"""Views of a `Skew`: which ranks wait for which, over time."""
