"""Rules that find what a program sends and need not: a rule a file, listed in `all_rules`."""
