"""How long collectives take: measured, and from the algorithms of their libraries."""
