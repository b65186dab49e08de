"""The first NaN or infinity among the summaries of tensors that a trace with ``numerics=True`` holds."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from dsexplore._internal.units import format_ranks

KEYS = ("step", "phase", "module", "name", "call")
"""Columns of `schema.NUMERICS` that name a tensor, the same on all ranks."""


@dataclass(frozen=True)
class NonFinite:
    """The first tensor with a NaN or an infinity."""

    step: int
    phase: str
    module: str
    name: str
    ranks: tuple[int, ...]
    """The ranks that have one in this tensor."""
    value: str
    """``NaN`` or ``infinity``."""

    def __str__(self) -> str:
        what = {"backward": f"the gradient of its {self.name}", "gradient": f"the gradient of {self.name}"}
        of = what.get(self.phase, f"its {self.name}")
        return (
            f"The first {self.value} is in {self.phase} of step {self.step}, {self.module or 'the model'}, in {of}, on "
            f"{format_ranks(self.ranks)}."
        )


def first_non_finite(numerics: pl.DataFrame) -> NonFinite | None:
    """Return the place of the first NaN or infinity in program order; None if there is none.

    Args:
        numerics: see `schema.NUMERICS`.
    """
    wrong = numerics.filter(~(pl.col("min").is_finite() & pl.col("max").is_finite()))
    if wrong.is_empty():
        return None
    row = wrong.sort("step", "seq", "rank").row(0, named=True)
    same = wrong.filter(pl.all_horizontal(pl.col(key) == row[key] for key in KEYS))
    is_nan = bool((same["min"].is_nan() | same["max"].is_nan()).any())
    ranks = tuple(sorted(same["rank"].to_list()))
    step, phase, module, name = (row[key] for key in KEYS[:4])
    return NonFinite(step, phase, module, name, ranks, "NaN" if is_nan else "infinity")
