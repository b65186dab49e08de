"""How a `Skew` looks: who waits for whom, over time."""
