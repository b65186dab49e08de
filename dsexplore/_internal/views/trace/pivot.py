"""Events summed by module, axis and phase, for the columns of the tree and for heatmaps.

A trace has far fewer distinct (module, axis, phase) than events. Once they are found, a filter is one pass over the
events, and columns, subtrees and places are sums of few numbers. They are sorted by module, and modules are in
preorder, so a subtree is a slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]
Sizes = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pivot:
    """The m distinct (module, axis, phase) of a trace's events, sorted."""

    owner: Codes
    """(m,) row in the module tree."""
    axis: Codes
    """(m,) code of the axis."""
    phase: Codes
    """(m,) code of the phase."""
    of_event: Codes
    """(events,) index of each event's (module, axis, phase)."""

    def within(self, row: int, end: int) -> slice:
        """Return the slice of the entries whose module is in rows ``[row, end)``."""
        first, last = np.searchsorted(self.owner, (row, end))
        return slice(int(first), int(last))

    def sums(self, mask: Mask, sizes: Sizes) -> PivotSums:
        """Sum the events in the mask: return count and bytes per entry."""
        if mask.all():
            at, size = self.of_event, sizes
        else:
            kept = np.flatnonzero(mask)
            at, size = self.of_event.take(kept), sizes.take(kept)
        counts, totals = (np.bincount(at, weights, minlength=len(self.owner)) for weights in (None, size))
        return PivotSums(self, counts.astype(np.float64), totals.astype(np.float64))


@dataclass(frozen=True)
class PivotSums:
    """Count and bytes of the events that pass a filter, by (module, axis, phase)."""

    pivot: Pivot
    counts: Sizes
    """(m,) number of events."""
    bytes: Sizes
    """(m,) wire or message bytes."""
    whole: Mask | None = None
    """(m,) mask of the entries whose events pass, if of each entry all events pass or none; else None."""

    @cached_property
    def held(self) -> Codes:
        """Sorted indices of the entries with events."""
        return np.flatnonzero(self.counts > 0)  # ten times as fast in numpy as for numbers

    def held_inside(self, spans: list[tuple[int, int]]) -> Codes:
        """Return the entries of `held` whose module is in some spans of rows."""
        entries = [self.pivot.within(*span) for span in spans]
        ends = [np.searchsorted(self.held, (part.start, part.stop)) for part in entries]
        return np.concatenate([self.held[first:last] for first, last in ends])

    def whole_inside(self, spans: list[tuple[int, int]]) -> Mask | None:
        """Return `whole` restricted to the modules in some spans of rows; all of it without spans."""
        if self.whole is None or not spans:
            return self.whole
        mask = np.zeros(len(self.whole), bool)
        for span in spans:
            part = self.pivot.within(*span)
            mask[part] = self.whole[part]
        return mask

    def total(self, spans: list[tuple[int, int]]) -> tuple[int, int]:
        """Return (count, bytes) of the modules in some spans of rows."""
        parts = [self.pivot.within(*span) for span in spans]
        return sum(int(self.counts[part].sum()) for part in parts), sum(int(self.bytes[part].sum()) for part in parts)

    def only(self, kept: Mask) -> PivotSums:
        """Return the sums with zeros for the entries outside the (m,) mask ``kept``."""
        return PivotSums(self.pivot, np.where(kept, self.counts, 0.0), np.where(kept, self.bytes, 0.0), kept)


def find_pivot(
    owner: Codes, axis: npt.NDArray[np.integer[Any]], phase: npt.NDArray[np.integer[Any]], most: int = 10_000_000
) -> Pivot:
    """Find the distinct (module, axis, phase) of events.

    Args:
        owner: (events,) Row of the owner.
        axis: (events,) Code of the axis.
        phase: (events,) Code of the phase.
        most: maximal size of a lookup table, which takes 10 ms for 1,000,000 events; sorting, if it would be larger,
            takes 200 ms.
    """
    axes, phases = (int(codes.max(initial=0)) + 1 for codes in (axis, phase))
    key = (owner * axes + axis) * phases + phase
    top = int(key.max(initial=0)) + 1
    if top <= most:
        distinct = np.flatnonzero(np.bincount(key, minlength=top))
        lookup = np.zeros(top, np.int64)
        lookup[distinct] = np.arange(len(distinct))
        of_event = lookup[key]
    else:
        distinct, of_event = np.unique(key, return_inverse=True)
    owner_and_axis, of_phase = np.divmod(distinct, phases)
    of_owner, of_axis = np.divmod(owner_and_axis, axes)
    return Pivot(of_owner, of_axis, of_phase, of_event.astype(np.int64))
