"""How a `FeedingResult` looks."""
