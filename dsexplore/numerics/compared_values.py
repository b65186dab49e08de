"""`Compared`: one tensor of the reference, and what each rank has in its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from dsexplore.numerics.numeric_records import NumericRecord, Phase
from dsexplore.numerics.part_layouts import (
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
    """What one rank has, and what the reference has in its place."""

    holder: Holder
    value: Tensor
    indices: Indices
    expected: Tensor
    factor: float
    """By which the reference's values come nearest to the rank's; 1 but for gradients of outputs."""
    error: float
    """Root mean square of the difference after that."""


@dataclass
class Compared:
    """One output, gradient or parameter of the reference, and its parts on the ranks."""

    record: NumericRecord
    whole: Tensor
    """The reference's values."""
    parts: list[Part]
    """Empty where the ranks' shapes fit no layout: such a tensor is not compared."""
    allowed: float
    """The largest root mean square of a difference that is rounding."""
    scale: float
    """Root mean square of the reference's values."""
    rounding: float | None = None
    """Relative difference between the program's dtypes and float64 in the reference; None where one did not run."""
    measured: float | None = None
    """Relative difference of the parallel program in its own dtypes; None where it was not compared."""
    alternatives: list[list[Part]] = field(default_factory=list)
    """The parts in each layout that fits, where the ranks' numbers agree in none."""
    _wrong: tuple[int, ...] | None = field(default=None, repr=False)

    @property
    def phase(self) -> Phase:
        """Record's phase."""
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
        """True if no rank's numbers differ by more than rounding; the factor of gradients of outputs is looked past."""
        return self.is_compared and not self.wrong_ranks

    def relative_error(self, rank: int | None = None) -> float:
        """Return the largest difference of a rank, or of all, relative to the reference's root mean square."""
        errors = [part.error for part in self.parts if rank is None or part.holder.rank == rank]
        worst = max((error if not math.isnan(error) else math.inf for error in errors), default=0.0)
        if worst <= self.allowed and not self.scale:
            return 0.0
        return worst / self.scale if self.scale else math.inf


def replicas(parts: Sequence[Part]) -> list[list[Part]]:
    """Group parts by what they hold of the whole: those of replicas together."""
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
    """The value of a holder before its layout is known."""

    holder: Holder
    value: Tensor
    shape: tuple[int, ...]
    """Of the DTensor that it is a part of, or its own."""
    within: Indices
    """Its indices in that."""
    covered: frozenset[str]
    """Axes that the DTensor's mesh spans: its placements say what they cut."""
    fixed: Indices | None = None
    """Its indices in the whole, where they are known."""


def compare(
    record: NumericRecord, whole: Tensor, held: Sequence[HeldValues], allowed: float, *, scales: bool
) -> Compared:
    """Compare the ranks' values with a whole, by the layout in which they agree best.

    Args:
        record: the reference's record.
        whole: its values in float64.
        held: the values of the ranks.
        allowed: see `Compared`.
        scales: whether to look past a factor by which all of a rank's values differ.
    """
    tried = []
    for layout in _layouts(held, whole):
        parts = [_part(part, layout[part.holder], whole, scales) for part in held]
        wrong = sum(not part.error <= allowed * abs(part.factor) for part in parts)
        if not wrong:
            return Compared(record, whole, parts, allowed, rms(whole))
        tried.append((wrong, sum(part.error for part in parts), parts))
    tried.sort(key=lambda attempt: attempt[:2])
    alternatives = [parts for _, _, parts in tried]
    return Compared(
        record, whole, alternatives[0] if alternatives else [], allowed, rms(whole), alternatives=alternatives
    )


def _layouts(held: Sequence[HeldValues], whole: Tensor) -> list[Layout]:
    if all(part.fixed is not None for part in held):
        return [{part.holder: part.fixed for part in held if part.fixed is not None}]
    shapes = {part.holder: part.shape for part in held}
    covered = frozenset[str]().union(*(part.covered for part in held))
    axes = [axis for axis in varying_axes(shapes) if axis not in covered]
    return [
        {part.holder: composed(layout[part.holder], part.within) for part in held}
        for layout in possible_layouts(shapes, tuple(whole.shape), axes)
    ]


def _part(values: HeldValues, indices: Indices, whole: Tensor, scales: bool) -> Part:
    expected = block(whole, indices)
    if expected.shape != values.value.shape:
        return Part(values.holder, values.value, indices, expected, 1.0, math.inf)
    factor = factor_between(values.value, expected) if scales else 1.0
    return Part(values.holder, values.value, indices, expected, factor, rms(values.value - expected * factor))


def factor_between(value: Tensor, expected: Tensor) -> float:
    """Return the factor by which `expected` comes nearest to `value`; 1 where one of them is zero."""
    square = float((expected * expected).sum())
    product = float((expected * value).sum())
    return product / square if square > 0 and product else 1.0
