"""The blocks of a tensor's picture: stretches of each dim, and the shards that they form.

Few shards are drawn one by one. If there are many, consecutive shards of equal size are folded into one stretch, so the
number of blocks is bounded for any number of ranks. Each block has its true position and proportion.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsexplore._internal.sharding.chunks import Cut, Range, borders, held_ranges
from dsexplore._internal.sharding.tensor import PlacedTensor

Place = tuple[int, int]
"""Range of coordinates on one axis, end excluded."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Indices of one dim, and the coordinates of the ranks that hold them."""

    ranges: tuple[Range, ...]
    places: tuple[tuple[int, Place], ...]
    """(index of a placement, coordinates on its axis); at all coordinates of other axes, ranks hold these indices."""
    folded: int = 1
    """Number of shards folded into this one."""


def stretches(tensor: PlacedTensor, dim: int, most: int) -> list[Stretch]:
    """Return the stretches of a whole dim, at most about ``most``; ranks that hold nothing have none."""
    size = tensor.shape[dim]
    numbers, cuts = cuts_of(tensor, dim)
    total = math.prod(cut.parts for cut in cuts)
    if not cuts or not size:
        return [Stretch(((0, size),), ())]
    if _is_nested(size, cuts):
        if total <= most:
            return _single_blocks(size, numbers, cuts, 1)
        if cuts[1].parts <= most:
            return _single_blocks(size, numbers[1:], cuts[1:], cuts[0].parts)
    for kept in range(len(cuts), 0, -1):
        if math.prod(cut.parts * cut.pieces for cut in cuts[:kept]) <= most:
            return _single_blocks(size, numbers[:kept], cuts[:kept], math.prod(cut.parts for cut in cuts[kept:]))
    first = cuts[0]
    if first.pieces == 1:
        return _folded_by_size(size, numbers[0], first, total // first.parts)
    return [Stretch(((0, size),), (), total)]


def cuts_of(tensor: PlacedTensor, dim: int) -> tuple[list[int], list[Cut]]:
    """Return (indices, cuts) of the placements that cut a dim."""
    numbers = [i for i, placement in enumerate(tensor.placements) if placement.cuts and placement.dim == dim]
    return numbers, [Cut(tensor.axes[i].size, tensor.placements[i].pieces) for i in numbers]


def single_places(numbers: Sequence[int], at: Sequence[int]) -> tuple[tuple[int, Place], ...]:
    """Return the places at these coordinates, one on the axis of each of some placements."""
    return tuple((number, (here, here + 1)) for number, here in zip(numbers, at, strict=True))


def _is_nested(size: int, cuts: Sequence[Cut]) -> bool:
    """Return True if the first of two axes cuts each part of the second, as FSDP cuts tensor-parallel shards."""
    return len(cuts) == 2 and 1 < cuts[0].pieces == cuts[1].parts and cuts[1].pieces == 1 and size % cuts[0].pieces == 0


def _single_blocks(size: int, numbers: Sequence[int], cuts: Sequence[Cut], inside: int) -> list[Stretch]:
    """Return a stretch for each combination of coordinates, which stands for ``inside`` shards.

    Args:
        size: length of the dim.
        numbers: indices of the placements that cut it.
        cuts: their cuts.
        inside: number of shards into which other placements cut each stretch.
    """
    pieces = []
    for at in itertools.product(*(range(cut.parts) for cut in cuts)):
        ranges = held_ranges(size, cuts, at)
        if ranges:
            pieces.append(Stretch(tuple(ranges), single_places(numbers, at), inside))
    return pieces


def _folded_by_size(size: int, number: int, cut: Cut, inside: int) -> list[Stretch]:
    """Return a stretch for each run of equally long parts of one cut; each part holds ``inside`` shards."""
    edges = [0, *sorted(borders(size, cut)), cut.parts]
    pieces = []
    for low, high in itertools.pairwise(edges):
        held = held_ranges(size, [cut], [low]), held_ranges(size, [cut], [high - 1])
        if held[0] and held[1]:
            pieces.append(Stretch(((held[0][0][0], held[1][0][1]),), ((number, (low, high)),), (high - low) * inside))
    return pieces


@dataclass(frozen=True, slots=True)
class ShardBlock:
    """A part of the picture held by one rank, by several ranks with the same part, or by folded shards."""

    rows: tuple[Range, ...]
    columns: tuple[Range, ...]
    places: tuple[tuple[int, Place], ...]
    folded: int
    """Number of shards that it stands for."""
    folded_down: int = 1
    """Number of shards that it stands for, one below another."""
    folded_across: int = 1
    """Number of shards that it stands for, side by side."""


@dataclass(frozen=True, slots=True)
class Panel:
    """The picture of two dims, at some indices of the other dims."""

    fixed: tuple[tuple[int, Range], ...]
    """(dim, its indices) of the other dims that are cut."""
    blocks: tuple[ShardBlock, ...]
    places: tuple[tuple[int, Place], ...] = ()
    """(index of the placement, coordinates) of the axes that cut the other dims."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawn tensor; ``rows`` and ``columns`` are dims, None if the tensor has fewer."""

    rows: int | None
    columns: int | None
    panels: tuple[Panel, ...]
    hidden_panels: int = 0
    """Number of panels that are not drawn."""
    down: tuple[Stretch, ...] = ()
    """Stretches of the dim that runs down."""
    across: tuple[Stretch, ...] = ()
    """Stretches of the dim that runs across."""


def picture(tensor: PlacedTensor, most_blocks: int = 96, most_panels: int = 4) -> Picture:
    """Return the picture of a tensor, with at most about ``most_blocks`` blocks in ``most_panels`` panels."""
    rows, columns = drawn_dims(tensor)
    others = [dim for dim in tensor.cut_dims() if dim not in (rows, columns)]
    cut = [dim for dim in (rows, columns) if dim is not None and tensor.cuts(dim)]
    panels_by_dim = [stretches(tensor, dim, most_panels) for dim in others]
    count = math.prod(map(len, panels_by_dim))
    budget = max(4, most_blocks // max(1, min(count, most_panels)))
    limits = dict.fromkeys(cut, budget if len(cut) == 1 else max(2, math.isqrt(budget)))
    if len(cut) == 2:  # one dim may use the blocks that the other does not need
        needs = {dim: math.prod(by.parts * by.pieces for by, _ in tensor.cuts(dim)) for dim in cut}
        for dim, other in itertools.permutations(cut):
            if needs[dim] <= limits[dim]:
                limits[other] = max(limits[other], budget // needs[dim])
    whole = [Stretch(((0, 1),), ())]
    down = stretches(tensor, rows, limits.get(rows, 1)) if rows is not None else whole
    across = stretches(tensor, columns, limits.get(columns, 1)) if columns is not None else whole
    chosen = list(itertools.islice(itertools.product(*panels_by_dim), most_panels))
    panels = [
        Panel(
            tuple((dim, part.ranges[0]) for dim, part in zip(others, parts, strict=True)),
            tuple(block_of(row, column, parts) for row in down for column in across),
            tuple(place for part in parts for place in part.places),
        )
        for parts in chosen
    ]
    return Picture(
        rows, columns, panels=tuple(panels), hidden_panels=count - len(panels), down=tuple(down), across=tuple(across)
    )


def block_of(row: Stretch, column: Stretch, others: Sequence[Stretch] = ()) -> ShardBlock:
    """Return the block of some rows and some columns, at the stretches of other dims."""
    places = tuple(sorted(place for part in (row, column, *others) for place in part.places))
    folded = math.prod(part.folded for part in (row, column, *others))
    return ShardBlock(
        rows=row.ranges,
        columns=column.ranges,
        places=places,
        folded=folded,
        folded_down=row.folded,
        folded_across=column.folded,
    )


def drawn_dims(tensor: PlacedTensor) -> tuple[int | None, int | None]:
    """Return the dims that run down and across: the first two that are cut, else the largest others."""
    dims = len(tensor.shape)
    if dims < 2:
        return None, 0 if dims else None
    cut = tensor.cut_dims()[:2]
    uncut = sorted((dim for dim in range(dims) if dim not in cut), key=lambda dim: (-tensor.shape[dim], dim))
    first, second = sorted((cut + uncut)[:2])
    return first, second


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive indices of a dim that are held at the same coordinates of an axis."""

    start: int
    stop: int
    place: Place | None
    """Coordinates on the axis; None if the axis cuts these indices more finely than is drawn."""


@dataclass(frozen=True)
class AxisCuts:
    """The cuts of one axis in one dim."""

    number: int
    """Index of the placement, and of its axis in `PlacedTensor.axes`."""
    runs: tuple[Run, ...]
    """Runs that cover the dim from end to end."""


def axis_cuts(tensor: PlacedTensor, dim: int | None, stretches: Sequence[Stretch]) -> list[AxisCuts]:
    """Return the cuts of the axes of more than one rank in a dim, outermost axis first.

    Plain shards are in mesh order; a strided shard is inside the axes that make its pieces.
    """
    if dim is None:
        return []
    numbers = [
        number
        for number, (placement, axis) in enumerate(zip(tensor.placements, tensor.axes, strict=True))
        if placement.cuts and placement.dim == dim and axis.size > 1
    ]
    ordered = [AxisCuts(number, _runs(stretches, number)) for number in numbers]
    ordered.sort(key=lambda cuts: (any(run.place is None for run in cuts.runs), tensor.placements[cuts.number].pieces))
    starts: set[int] = set()
    parted = []
    for cuts in ordered:
        parted.append(AxisCuts(cuts.number, tuple(part for run in cuts.runs for part in _split_run(run, starts))))
        starts |= {run.start for run in parted[-1].runs}
    return parted


def _split_run(run: Run, starts: set[int]) -> list[Run]:
    """Split a run at each of ``starts`` inside it: indices at which the runs of axes further out begin."""
    inside = sorted(start for start in starts if run.start < start < run.stop)
    return [Run(start, stop, run.place) for start, stop in pairwise([run.start, *inside, run.stop])]


def _runs(stretches: Sequence[Stretch], number: int) -> tuple[Run, ...]:
    """Return the runs of the axis of a placement, given by its index."""
    pieces = sorted(
        ((start, stop, dict(stretch.places).get(number)) for stretch in stretches for start, stop in stretch.ranges),
        key=lambda piece: piece[:2],
    )
    runs: list[Run] = []
    for start, stop, place in pieces:
        if runs and place is not None and runs[-1].place == place and runs[-1].stop == start:
            runs[-1] = Run(runs[-1].start, stop, place)
        else:
            runs.append(Run(start, stop, place))
    return tuple(runs)


def boundaries(cuts: Sequence[AxisCuts]) -> dict[int, int]:
    """Return {index at which a run begins: position in ``cuts`` of the outermost axis that cuts there}.

    The first index of the dim is omitted.
    """
    outermost: dict[int, int] = {}
    for place, axis in enumerate(cuts):
        for run in axis.runs[1:]:
            outermost.setdefault(run.start, place)
    return outermost
