"""Checkpoints: how fast they load from a disk, and what saving them takes."""
