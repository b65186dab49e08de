"""The sweep of a disk: its settings, rounds, statistics and result."""
