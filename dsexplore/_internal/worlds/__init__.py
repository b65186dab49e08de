"""Worlds that a program runs in: N simulated ranks in this process, or N local processes."""
