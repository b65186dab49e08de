"""Where each mesh axis cuts a dim of a picture: the runs of its coordinates, the outermost axis first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dsexplore.sharding.tensor import Placed
from dsexplore.views.sharding.shard_blocks import Place, Stretch


@dataclass(frozen=True, slots=True)
class Run:
    """Indices side by side that are held at the same coordinates of an axis."""

    start: int
    stop: int
    place: Place | None
    """None where the axis cuts these indices further than is drawn."""


@dataclass(frozen=True)
class AxisCuts:
    """How one axis cuts the indices of one dim."""

    number: int
    """Of the placement, and of its axis in `Placed.axes`."""
    runs: tuple[Run, ...]
    """From end to end."""


def axis_cuts(tensor: Placed, dim: int | None, stretches: Sequence[Stretch]) -> list[AxisCuts]:
    """The axes of more than one rank that cut a dim, the outermost first.

    Plain cuts are in mesh order; a strided one lies inside those that make its pieces.
    """
    if dim is None:
        return []
    numbers = [
        number
        for number, (placement, axis) in enumerate(zip(tensor.placements, tensor.axes, strict=True))
        if placement.cuts and placement.dim == dim and axis.size > 1
    ]
    found = [AxisCuts(number, _runs(stretches, number)) for number in numbers]
    found.sort(key=lambda cuts: (any(run.place is None for run in cuts.runs), tensor.placements[cuts.number].pieces))
    starts: set[int] = set()
    parted = []
    for cuts in found:
        parted.append(AxisCuts(cuts.number, tuple(part for run in cuts.runs for part in _parted(run, starts))))
        starts |= {run.start for run in parted[-1].runs}
    return parted


def _parted(run: Run, starts: set[int]) -> list[Run]:
    """A run divided wherever one of ``starts`` lies in it: indices at which the runs of axes further out begin."""
    inside = sorted(start for start in starts if run.start < start < run.stop)
    return [Run(start, stop, run.place) for start, stop in pairwise([run.start, *inside, run.stop])]


def _runs(stretches: Sequence[Stretch], number: int) -> tuple[Run, ...]:
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
    """Index at which a run begins, but for the first → the outermost of `cuts` that cuts there, by its place there."""
    found: dict[int, int] = {}
    for place, axis in enumerate(cuts):
        for run in axis.runs[1:]:
            found.setdefault(run.start, place)
    return found
