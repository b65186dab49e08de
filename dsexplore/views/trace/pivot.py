"""A trace's events added up by module, axis and phase: what the tree and the first figure are made of.

A trace has far fewer (module, axis, phase) cells than events, and its cells are found once. Then a filter is one
pass over the events, and everything after it (columns, subtrees, places) is arithmetic on cells. Cells are sorted
by module, and modules are in preorder, so a subtree is a slice of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Cells:
    """m distinct (module, axis, phase), sorted."""

    owner: Codes
    """(m,) row in the module tree."""
    axis: Codes
    phase: Codes
    of_event: Codes
    """(events,) the cell of each event."""

    def __len__(self) -> int:
        return len(self.owner)

    def within(self, row: int, end: int) -> slice:
        """The cells of the modules in rows ``[row, end)``."""
        first, last = np.searchsorted(self.owner, (row, end))
        return slice(int(first), int(last))

    def sums(self, mask: Mask, sizes: Sizes) -> Sums:
        """Count and bytes of the events in the mask."""
        if mask.all():
            at, size = self.of_event, sizes
        else:
            kept = np.flatnonzero(mask)
            at, size = self.of_event.take(kept), sizes.take(kept)
        m = len(self)
        return Sums(
            self, np.bincount(at, minlength=m).astype(np.float64), np.bincount(at, size, minlength=m).astype(np.float64)
        )


@dataclass(frozen=True)
class Sums:
    """What the cells hold under one filter."""

    cells: Cells
    counts: Sizes
    """(m,)"""
    bytes: Sizes
    """(m,) message bytes."""

    def total(self, spans: list[tuple[int, int]]) -> tuple[int, int]:
        """(count, bytes) of the modules in some spans of rows."""
        parts = [self.cells.within(*span) for span in spans]
        return sum(int(self.counts[part].sum()) for part in parts), sum(int(self.bytes[part].sum()) for part in parts)

    def only(self, cells: Mask) -> Sums:
        """The same of some cells, and nothing of the others."""
        return Sums(self.cells, np.where(cells, self.counts, 0.0), np.where(cells, self.bytes, 0.0))


def find_cells(
    owner: Codes,
    axis: tuple[npt.NDArray[Any], int],
    phase: tuple[npt.NDArray[Any], int],
    rows: int,
    most: int = 10_000_000,
) -> Cells:
    """The cells that events fall on.

    Args:
        owner: (events,) row of the owner.
        axis: (events,) codes, and how many there are.
        phase: likewise.
        rows: how many modules there are.
        most: up to so many possible cells are looked up in a table; beyond, they are found by sorting.
    """
    axes, phases = max(axis[1], 1), max(phase[1], 1)
    key = (owner * axes + axis[0]) * phases + phase[0]
    if rows * axes * phases <= most:
        distinct = np.flatnonzero(np.bincount(key, minlength=1))
        lookup = np.zeros(rows * axes * phases + 1, np.int64)
        lookup[distinct] = np.arange(len(distinct))
        of_event = lookup[key]
    else:
        distinct, of_event = np.unique(key, return_inverse=True)
    rest, of_phase = np.divmod(distinct, phases)
    of_owner, of_axis = np.divmod(rest, axes)
    return Cells(of_owner, of_axis, of_phase, of_event.astype(np.int64))
