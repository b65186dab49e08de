"""Readers of files that other tools wrote, into the tables of a trace: flight-recorder dumps and profiler traces."""
