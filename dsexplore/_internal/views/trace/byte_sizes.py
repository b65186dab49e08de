"""The option ``sizes`` of all views of a trace: wire bytes or message bytes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import format_sum

Sizes = npt.NDArray[np.float64]

WIRE, MESSAGE = "wire", "message"
_COLUMN_OF = {WIRE: "wire_bytes", MESSAGE: "message_bytes"}
WORDS = {
    WIRE: "wire bytes, the least that a rank must send",
    MESSAGE: "message bytes, the whole buffer of each collective",
}
"""{value of ``sizes``: its explanation}."""


def signed(sizes: Sizes, unknown: npt.NDArray[Any] | None) -> Sizes:
    """Return sums of bytes, negated where sizes are missing: −x means at least x, −0 means that no size is known.

    Args:
        sizes: sums of bytes.
        unknown: number of unknown sizes in each sum; None if all sizes are known.
    """
    return sizes if unknown is None else np.where(unknown > 0, -sizes, sizes)


def size_text(size: float) -> str:
    """Return a number of `signed` as text."""
    return format_sum(abs(size), is_partial(size))


def is_partial(size: float) -> bool:
    """Return True if sizes are missing in a number of `signed`."""
    return math.copysign(1.0, size) < 0


def column_of(sizes: str) -> str:
    """Return the column of the events that is summed for a value of ``sizes``.

    Raises:
        UsageError: The value is neither ``"wire"`` nor ``"message"``.
    """
    if sizes not in _COLUMN_OF:
        raise UsageError(f"sizes={sizes!r}: no such sizes; they are {', '.join(map(repr, _COLUMN_OF))}")
    return _COLUMN_OF[sizes]


def bytes_summed(tables: Tables, sizes: str) -> str:
    """Return the kind of bytes, and what they are summed over: ``wire bytes, of rank 0 in one step``."""
    return f"{sizes} bytes, {summed_over(tables)}"


def summed_over(tables: Tables) -> str:
    """Return what the sizes of a table are summed over: ``of rank 0 in one step``, ``summed over 4 ranks``."""
    ranks = tables.events["rank"].unique().sort().to_list() or list(tables.info.ranks)
    steps = in_steps(tables.events)["step"].n_unique()
    if len(ranks) <= 1:
        ranks_text = f"of rank {ranks[0]}" if ranks else "of no rank"
        return f"{ranks_text}, summed over {steps:,} steps" if steps > 1 else f"{ranks_text} in one step"
    over = f"summed over {len(ranks):,} ranks"
    return f"{over} and {steps:,} steps" if steps > 1 else over
