"""Passes through repeated layers: forward, backward, and FSDP2's reductions, each with an interval per layer.

Worked example: of layers 0 to 9, layers 0, 1, 2 and 9 were run, at positions 0 to 3. In forward, the interval at
position 2 equals that at position 1, and is repeated seven times: for layers 2 to 8. In backward, the interval at
position 1 equals that at position 2, which represents layer 8, and is repeated seven times too: for layers 7 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Literal, NamedTuple

FIRST, LAST = 3, 1
"""How many layers are run before those that are skipped, and after them. The first and the last may differ from the
others; of two that are equal, one is compared with the other."""
_REPEATED = 2
"""Position in a pass of the interval that is repeated; it is compared with the one before it."""
_OF_ALL = ("optimizer", "start-up")
"""Phases in which no layer is skipped."""
Way = Literal["forward", "backward", "reduce"]
"""Kind of a pass; ``reduce``: FSDP2's reductions after a pipeline's last backward."""


class CannotSkip(BaseException):
    """Raised, with the reason, if a program has to run in full; no ``except Exception`` of the program catches it."""


class LayerMark(NamedTuple):
    """The moment at which a pass reaches a layer."""

    container: int
    """Index of the container that holds the layers."""
    way: Way
    layer: int


class _Period(NamedTuple):
    """The interval of one layer in a pass."""

    container: int
    layer: int
    """Position of its layer among those that the pass runs."""
    skipped: int
    """Number of layers that the pass skips: 0 if it runs all."""
    shifts: Sequence[int]
    """Offset that turns a position into a layer number, by repetition; -1 is the last repetition."""

    def position(self, layer: int) -> int | None:
        """Return the position of a layer; None for one that is skipped."""
        position = layer if layer < FIRST else layer - self.skipped
        return position if position >= min(layer, FIRST) else None


class LayerRuns:
    """The passes through repeated layers in a recording, and the names of modules in them.

    Args:
        marks: label of each mark in the recording; `LayerMark` for the start of a layer.
        names: per container, the names of its layers; empty if all of them run.

    Attributes:
        times: as `repeat` takes it.

    Raises:
        CannotSkip: layers do not run one after another.
    """

    def __init__(self, marks: Sequence[object], names: Sequence[Sequence[str]]) -> None:
        self.times: dict[int, int] = {}
        self._names, self._periods = names, dict[int, _Period]()
        self._layers = {layer: (number, at) for number, layers in enumerate(names) for at, layer in enumerate(layers)}
        self._place = cache(self._find)
        for first, mark in enumerate(marks):
            if isinstance(mark, LayerMark) and names[mark.container] and first + 1 not in self._periods:
                self._read(first, mark, marks)

    def _read(self, first: int, mark: LayerMark, marks: Sequence[object]) -> None:
        """Read the pass that begins with a mark."""
        count = len(self._names[mark.container])
        step = -1 if mark.layer else 1  # torch 2.15 reduces from the last layer on, older ones from the first
        for layers in ([*range(FIRST), *range(count - LAST, count)], range(count)):
            if marks[first : first + len(layers)] == [mark._replace(layer=layer) for layer in layers[::step]]:
                break
        else:
            raise CannotSkip("layers are not reached one after another")
        skipped = count - len(layers)
        before, after = (0, skipped)[::step]
        for at, index in enumerate(range(len(layers))[::step]):
            shifts = [*range(before, after, step), after] if at == _REPEATED else [before if at < _REPEATED else after]
            self._periods[first + at + 1] = _Period(mark.container, index, skipped, shifts)
        compared = range(_REPEATED, _REPEATED + 1 if skipped else count - 1)
        self.times |= {first + at + 1: skipped for at in compared}

    def relative(self, name: str, phase: str, interval: int) -> str:
        """Return a name with its layer number replaced by the distance from the interval's layer."""
        place, period = self._place(name), self._periods[interval]
        if place is None or phase in _OF_ALL or place[0] != period.container:
            return name
        position = period.position(place[1])
        return "" if position is None else f"{position - period.layer:+d}{place[2]}"

    def renamed(self, name: str, phase: str, interval: int, number: int) -> str:
        """Return a name with the number of the layer that a repetition stands for.

        Raises:
            CannotSkip: a layer is named in a place where the skipped ones cannot be known.
        """
        place, period = self._place(name), self._periods.get(interval)
        if place is None or phase in _OF_ALL:
            return name
        container, layer, rest = place
        layers = self._names[container]
        if period is None or period.container != container:
            if layer in (0, len(layers) - 1):
                return name
        elif not period.skipped:
            return name
        else:
            position = period.position(layer)
            if position is not None and abs(position - period.layer) <= 1:
                return layers[position + period.shifts[number]] + rest
        raise CannotSkip(f"{name} does something in {phase} outside of its turn")

    def _find(self, name: str) -> tuple[int, int, str] | None:
        """Return (container, layer, rest of the name) for a module inside a layer, else None."""
        end = len(name)
        while end > 0 and name[:end] not in self._layers:
            end = name.rfind(".", 0, end)
        return (*self._layers[name[:end]], name[end:]) if end > 0 else None
