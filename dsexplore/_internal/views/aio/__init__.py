"""Views of what a disk gives: a sweep of settings, and times of checkpoints, data loaders and offloaded states."""
