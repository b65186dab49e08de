"""The explorer's own widgets: an ESM file beside its Python, no build step, nothing fetched from a network."""
