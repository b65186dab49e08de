"""How much memory a step needs, and what would make it need less."""
