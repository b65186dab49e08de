"""Implementation of the public modules; its names may change in any version."""
