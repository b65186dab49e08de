"""Views of a sweep of collectives and of a calibration."""
