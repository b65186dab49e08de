"""Places in a model: the numbered siblings of one place, as the layers of a ``ModuleList`` are, under one name."""

from __future__ import annotations

import polars as pl

OUTSIDE = "(outside any module)"
"""The place of what was sent while no module ran."""


def place_of(name: pl.Expr) -> pl.Expr:
    """``Net.layers.3.up`` → ``Net.layers.*.up``: the numbered siblings of one place in the model together."""
    return pl.when(name == "").then(pl.lit(OUTSIDE)).otherwise(name.str.replace_all(r"\.\d+(\.|$)", ".*${1}"))
