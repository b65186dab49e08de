"""Data loaders: how many samples they give per second, and what limits them."""
