"""Sweeps of collectives: how long they take at each size."""
