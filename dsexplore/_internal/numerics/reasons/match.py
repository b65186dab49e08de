"""`Match`: what a rule says of a tensor whose numbers differ."""

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
"""In the order of this list:

* ``factor``: n times or 1/n of what is right: summed where it should be averaged, reduced twice, or scaled twice;
* ``missing reduction``: each rank has its part, and their sum or mean is right; or a softmax of its own columns;
* ``permutation``: the right rows, columns or heads in another order;
* ``shift``: what is right at other positions, as of another rank's chunk;
* ``mask``: right at some positions of a sequence, or in some sequences, alone;
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
    """The reason of a difference, with what shows it and what to change."""

    reason: Reason
    looks_like: str
    """What the numbers show, as a clause: ``the sum over tp is right``."""
    change: str
    """The change to try, as an imperative."""
    axes: tuple[str, ...] = ()
    """Of the mesh, those over which a reduction is missing."""


Rule = Callable[[Sequence[Part], Compared, Comparison], Match | None]
"""Looks at the parts of an entry in one layout, whose numbers are not right in it."""
LENIENCE = 1000.0
"""How many times what rounding does may remain where a rule explains a difference."""


def is_near(value: Tensor, expected: Tensor, entry: Compared, factor: float = 1.0) -> bool:
    """Return True if values are those expected up to rounding."""
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
