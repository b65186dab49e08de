"""What a report of a hang looks like."""
