"""Combine numbered siblings, such as the layers of a ``ModuleList``, under one name."""

from __future__ import annotations

import polars as pl

OUTSIDE = "(outside any module)"
"""Place of what was sent while no module was running."""


def place_of(name: pl.Expr) -> pl.Expr:
    """Replace numbers in module names by ``*``: ``Net.layers.3.up`` → ``Net.layers.*.up``."""
    return pl.when(name == "").then(pl.lit(OUTSIDE)).otherwise(name.str.replace_all(r"\.\d+(\.|$)", ".*${1}"))
