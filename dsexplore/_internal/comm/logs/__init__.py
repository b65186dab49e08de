"""The comms logger: its records, sums, and comparison across ranks."""
