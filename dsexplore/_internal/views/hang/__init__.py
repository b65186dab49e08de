"""The view of a report of a hang."""
