"""Capture: the registry of collectives, the recorder, the module tracker, the `Trace` and its files."""
