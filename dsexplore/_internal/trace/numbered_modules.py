"""Combine numbered siblings, such as the layers of a ``ModuleList``, under one name."""

from __future__ import annotations

import polars as pl

OUTSIDE = "(outside any module)"
"""Name shown for events that were sent while no module was running."""


def place_of(name: pl.Expr) -> pl.Expr:
    """Return module names with ``*`` for each number, ``Net.layers.*.up``, and `OUTSIDE` for the empty name."""
    return pl.when(name == "").then(pl.lit(OUTSIDE)).otherwise(name.str.replace_all(r"\.\d+(\.|$)", ".*${1}"))
