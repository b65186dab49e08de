"""`Match`: the reason that a rule recognizes in a tensor whose numbers differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part
from dsexplore._internal.numerics.part_layouts import rms

Reason = Literal[
    "factor",
    "missing reduction",
    "permutation",
    "shift",
    "mask",
    "dropout",
    "stale parameters",
    "stale gradients",
    "unequal batches",
    "local norm",
    "padding",
]
"""Reasons of a difference:

* ``factor``: n times or 1/n of the right values: summed instead of averaged, reduced twice, or scaled twice;
* ``missing reduction``: each rank has its part, and their sum or mean is right; or a softmax over its own columns;
* ``permutation``: the right rows, columns or heads in another order;
* ``shift``: the right values at other positions, such as those of another rank's chunk;
* ``mask``: right only at some positions of a sequence, or only in some sequences;
* ``dropout``: ranks that should drop the same elements drop others, or backward others than forward;
* ``stale parameters``: ranks began with different parameters, or some do not get an update;
* ``stale gradients``: gradients of earlier steps are still in those of this one;
* ``unequal batches``: means over different numbers of elements are averaged with equal weights;
* ``local norm``: gradients are clipped by the norm of a part of them, or updates scaled by norms of shards;
* ``padding``: positions that the reference omits are counted in.
"""
REASONS: tuple[Reason, ...] = get_args(Reason)


@dataclass(frozen=True)
class Match:
    """The reason of a difference, with the evidence and a change to try."""

    reason: Reason
    looks_like: str
    """Evidence in the numbers, as a clause: ``the sum over tp is right``."""
    change: str
    """Change to try, as an imperative."""
    axes: tuple[str, ...] = ()
    """Mesh axes over which a reduction is missing."""


Rule = Callable[[Sequence[Part], Compared, Comparison], Match | None]
"""Function that returns the match for the parts of a wrong entry in one layout; None if it does not fit."""
LENIENCE = 1000.0
"""Difference that may remain after a rule explains the rest, as a multiple of the allowed rounding."""


def is_near(value: Tensor, expected: Tensor, entry: Compared, factor: float = 1.0) -> bool:
    """Return True if values are the expected ones up to rounding; `factor` is a factor that these contain."""
    if value.shape != expected.shape:
        return False
    return rms(value - expected) <= LENIENCE * entry.allowed * max(abs(factor), 1.0)


def is_close(first: float, second: float) -> bool:
    """Return True if two factors are the same up to rounding."""
    return abs(first - second) <= 1e-5 * max(abs(first), abs(second))


def runs_text(indices: Tensor, most: int = 3) -> str:
    """Return indices as ranges in their order: ``0:4, 8:12``."""
    numbers = indices.tolist()
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    shown = ", ".join(str(start) if end == start + 1 else f"{start}:{end}" for start, end in runs[:most])
    return f"{shown}, …" if len(runs) > most else shown
