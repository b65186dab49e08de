"""A parameter's day: where it lies, and what is sent for it in a step."""
