"""`Compared`: one tensor of the reference, compared with the parts of it that ranks hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dsexplore._internal.numerics.numeric_records import NumericRecord, Phase
from dsexplore._internal.numerics.part_layouts import (
    Holder,
    Indices,
    Layout,
    block,
    composed,
    possible_layouts,
    rms,
    same_indices,
    varying_axes,
)


@dataclass(frozen=True)
class Part:
    """The part of a tensor that one rank holds, and the reference's values of that part."""

    holder: Holder
    value: Tensor
    """Values of the rank, in float64."""
    indices: Indices
    """Indices of the part in the whole tensor."""
    expected: Tensor
    """Values of the reference at these indices."""
    factor: float
    """Factor that brings the reference's values nearest to the rank's; always 1 except for gradients of outputs."""
    error: float
    """Root mean square of the difference, after multiplying the reference by `factor`."""


@dataclass
class Compared:
    """One output, gradient or parameter of the reference, and its parts on the ranks."""

    record: NumericRecord
    whole: Tensor
    """Values of the reference, in float64."""
    parts: list[Part]
    """Parts on the ranks, in the layout that agrees best; empty if the shapes fit no layout."""
    allowed: float
    """Largest root mean square of a difference that counts as rounding."""
    scale: float
    """Root mean square of the reference's values."""
    rounding: float | None = None
    """Relative difference between the program's dtypes and float64 in the reference; None if either did not run."""
    measured: float | None = None
    """Relative difference of the parallel program in its own dtypes; None if it was not compared."""
    alternatives: list[list[Part]] = field(default_factory=list)
    """Parts in each possible layout, if the values differ in all of them."""
    _wrong: tuple[int, ...] | None = field(default=None, repr=False)

    @property
    def phase(self) -> Phase:
        """Phase of the record."""
        return self.record.phase

    @property
    def is_compared(self) -> bool:
        """True if the ranks' parts fit the reference's shape."""
        return bool(self.parts)

    @property
    def wrong_ranks(self) -> tuple[int, ...]:
        """Ranks whose numbers differ by more than rounding."""
        if self._wrong is None:
            wrong = {part.holder.rank for part in self.parts if not part.error <= self.allowed * abs(part.factor)}
            self._wrong = tuple(sorted(wrong))
        return self._wrong

    @property
    def is_right(self) -> bool:
        """True if no rank's values differ by more than rounding, up to the factor of gradients of outputs."""
        return self.is_compared and not self.wrong_ranks

    def relative_error(self, rank: int | None = None) -> float:
        """Return the largest difference of a rank, or of all, relative to the reference's root mean square."""
        errors = [part.error for part in self.parts if rank is None or part.holder.rank == rank]
        worst = max((error if not math.isnan(error) else math.inf for error in errors), default=0.0)
        if worst <= self.allowed and not self.scale:
            return 0.0
        return worst / self.scale if self.scale else math.inf


def replicas(parts: Sequence[Part]) -> list[list[Part]]:
    """Group parts by the indices that they hold: each group has the replicas of one part."""
    groups: list[list[Part]] = []
    for part in parts:
        for group in groups:
            if same_indices(group[0].indices, part.indices):
                group.append(part)
                break
        else:
            groups.append([part])
    return groups


@dataclass(frozen=True)
class HeldValues:
    """The value of a holder, before its place in the whole tensor is known."""

    holder: Holder
    value: Tensor
    shape: tuple[int, ...]
    """Shape of the DTensor that the value is a part of, or of the value itself."""
    within: Indices
    """Indices of the value in a tensor of that shape."""
    covered: frozenset[str]
    """Axes of the DTensor's mesh, whose placements give the layout along them."""
    fixed: Indices | None = None
    """Indices of the value in the whole tensor; None if unknown."""


def compare(
    record: NumericRecord, whole: Tensor, held: Sequence[HeldValues], allowed: float, *, scales: bool
) -> Compared:
    """Compare the ranks' values with the whole tensor, in the layout in which they agree best.

    Args:
        record: record of the reference.
        whole: values of the reference in float64.
        held: values of the ranks.
        allowed: largest root mean square of a difference that counts as rounding.
        scales: whether all values of a rank may differ by one factor.
    """
    tried = []
    for layout in _candidate_layouts(held, whole):
        parts = [_part(part, layout[part.holder], whole, scales=scales) for part in held]
        wrong = sum(not part.error <= allowed * abs(part.factor) for part in parts)
        if not wrong:
            return Compared(record=record, whole=whole, parts=parts, allowed=allowed, scale=rms(whole))
        tried.append((wrong, sum(part.error for part in parts), parts))
    tried.sort(key=lambda attempt: attempt[:2])
    alternatives = [parts for _, _, parts in tried]
    return Compared(
        record=record,
        whole=whole,
        parts=alternatives[0] if alternatives else [],
        allowed=allowed,
        scale=rms(whole),
        alternatives=alternatives,
    )


def _candidate_layouts(held: Sequence[HeldValues], whole: Tensor) -> list[Layout]:
    """Return the layouts of the ranks' values that fit the whole tensor; only one if all indices are known."""
    if all(part.fixed is not None for part in held):
        return [{part.holder: part.fixed for part in held if part.fixed is not None}]
    shapes = {part.holder: part.shape for part in held}
    covered = frozenset[str]().union(*(part.covered for part in held))
    axes = [axis for axis in varying_axes(shapes) if axis not in covered]
    return [
        {part.holder: composed(layout[part.holder], part.within) for part in held}
        for layout in possible_layouts(shapes, tuple(whole.shape), axes)
    ]


def _part(held: HeldValues, indices: Indices, whole: Tensor, *, scales: bool) -> Part:
    """Return the part of a rank at these indices of the whole, with its error; infinite if the shape is another."""
    expected = block(whole, indices)
    factor, error = 1.0, math.inf
    if expected.shape == held.value.shape:
        factor = factor_between(held.value, expected) if scales else 1.0
        error = rms(held.value - expected * factor)
    return Part(holder=held.holder, value=held.value, indices=indices, expected=expected, factor=factor, error=error)


def factor_between(value: Tensor, expected: Tensor) -> float:
    """Return the factor that brings `expected` nearest to `value`; 1 if either is zero."""
    square = float((expected * expected).sum())
    product = float((expected * value).sum())
    return product / square if square > 0 and product else 1.0
