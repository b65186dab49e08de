"""Views of measured collectives: the log of a program's calls, a sweep, and a calibration."""
