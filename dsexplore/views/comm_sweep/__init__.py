"""What a sweep of collectives and a calibration look like."""
