"""What a difference looks like: a rule a module, each with the change to try."""
