"""A user's training script or module, unmodified, on simulated ranks."""
