"""How a `Feeding` looks."""
