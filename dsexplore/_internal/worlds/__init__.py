"""Where a program runs: here, on N simulated ranks, or on N local processes."""
