"""Worlds of fake tensors, which have shapes but no memory and no values."""
