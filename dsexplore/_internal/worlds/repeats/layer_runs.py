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
"""Number of layers that run before the skipped ones, and after them. The first and the last layer may differ from the
others; the two between are compared with each other."""
_REPEATED = 2
"""Index in a pass of the interval that is repeated; it is compared with the one before it."""
_PHASES_OF_ALL_LAYERS = ("optimizer", "start-up")
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


class _LayerInterval(NamedTuple):
    """The interval of one layer in a pass."""

    container: int
    position: int
    """Position of the layer among those that the pass runs."""
    skipped: int
    """Number of layers that the pass skips: 0 if it runs all."""
    offsets: Sequence[int]
    """Layer number less position, by repetition; -1 is the last repetition."""

    def position_of(self, layer: int) -> int | None:
        """Return the position of a layer; None for one that is skipped."""
        if layer < FIRST:
            return layer
        position = layer - self.skipped
        return position if position >= FIRST else None


class _ModuleInLayer(NamedTuple):
    """A module's name, split at the name of its layer."""

    container: int
    layer: int
    suffix: str
    """The name after that of the layer, ``".mlp.up"``; empty for the layer itself."""


class LayerRuns:
    """The passes through repeated layers in a recording, and the names of modules in them.

    Args:
        marks: label of each mark in the recording; `LayerMark` for the start of a layer.
        names: per container, the names of its layers; empty if all of them run.

    Attributes:
        times: {interval of the recording: number of its repetitions to add}, for `repeat`.

    Raises:
        CannotSkip: layers do not run one after another.
    """

    def __init__(self, marks: Sequence[object], names: Sequence[Sequence[str]]) -> None:
        self.times: dict[int, int] = {}
        self._names, self._intervals = names, dict[int, _LayerInterval]()
        self._layers: dict[str, _ModuleInLayer] = {}
        for container, layers in enumerate(names):
            self._layers |= {name: _ModuleInLayer(container, layer, "") for layer, name in enumerate(layers)}
        self._split = cache(self._split_name)
        for first, mark in enumerate(marks):
            if isinstance(mark, LayerMark) and names[mark.container] and first + 1 not in self._intervals:
                self._read_pass(first, mark, marks)

    def _read_pass(self, first: int, mark: LayerMark, marks: Sequence[object]) -> None:
        """Read the pass whose first mark is at index `first`; interval ``i + 1`` begins with mark ``i``."""
        count = len(self._names[mark.container])
        is_reversed = mark.layer != 0  # a backward, or reductions of torch 2.15; older versions reduce in order
        for layers in ([*range(FIRST), *range(count - LAST, count)], [*range(count)]):
            order = layers[::-1] if is_reversed else layers
            if marks[first : first + len(order)] == [mark._replace(layer=layer) for layer in order]:
                break
        else:
            raise CannotSkip("layers are not reached one after another")
        skipped, positions = count - len(order), [*range(len(order))]
        before, after, step = 0, skipped, 1
        if is_reversed:
            positions.reverse()
            before, after, step = skipped, 0, -1
        for index, position in enumerate(positions):
            offsets = [before] if index < _REPEATED else [after]
            if index == _REPEATED:
                offsets = [*range(before, after, step), after]
            self._intervals[first + index + 1] = _LayerInterval(mark.container, position, skipped, offsets)
        for index in [_REPEATED] if skipped else range(_REPEATED, count - 1):
            self.times[first + index + 1] = skipped

    def relative_name(self, name: str, phase: str, interval: int) -> str:
        """Return a name with its layer number replaced by the distance from the interval's layer."""
        module, current = self._split(name), self._intervals[interval]
        if module is None or phase in _PHASES_OF_ALL_LAYERS or module.container != current.container:
            return name
        position = current.position_of(module.layer)
        return "" if position is None else f"{position - current.position:+d}{module.suffix}"

    def repeated_name(self, name: str, phase: str, interval: int, repetition: int) -> str:
        """Return a name with the number of the layer that a repetition stands for.

        Raises:
            CannotSkip: a layer is named where its repetitions cannot be known.
        """
        module, current = self._split(name), self._intervals.get(interval)
        if module is None or phase in _PHASES_OF_ALL_LAYERS:
            return name
        layers = self._names[module.container]
        if current is None or current.container != module.container:
            if module.layer in (0, len(layers) - 1):
                return name
        elif not current.skipped:
            return name
        else:
            position = current.position_of(module.layer)
            if position is not None and abs(position - current.position) <= 1:
                return layers[position + current.offsets[repetition]] + module.suffix
        raise CannotSkip(f"{name} does something in {phase} outside of its turn")

    def _split_name(self, name: str) -> _ModuleInLayer | None:
        """Split the name of a module at that of the layer that holds it; None for a module outside of layers."""
        end = len(name)
        while end > 0 and name[:end] not in self._layers:
            end = name.rfind(".", 0, end)
        return self._layers[name[:end]]._replace(suffix=name[end:]) if end > 0 else None
