"""How an `OffloadCost` looks."""
