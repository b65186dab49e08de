"""A microbatch with all layers of a pipeline stage, from one in which some alike layers were left out.

What passes through the layers of a `Stretch`, a forward or a backward, is a run. Marks divide it into periods, one for
each layer. Where two layers have recorded the same but for the layer's number, so have those that were left out between
them and the last one, and their periods are put in.

Worked example: of layers 0 to 7 those numbered 0, 1, 2 and 7 were performed. In forward the periods are 0 1 2 7, and
that of layer 2 comes again for 3, 4, 5 and 6. In backward they are 7 2 1 0; what layer 2 recorded is what layer 6 would
have, as it stands behind layer 7, and the period of layer 1 comes for 5, 4, 3, 2 and 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from torch import nn

from dsexplore.capture.issued_collective import Issued
from dsexplore.capture.module_entry import ModuleEntry
from dsexplore.capture.repeated_parts import Part, more_calls
from dsexplore.worlds.simulated.alike_layers import FIRST, LAST, Stretch

Way = Literal["forward", "backward", "recompute"]
"""The pass that reaches a layer; a recomputation begins within the backward of its layer."""


class UnlikePeriods(Exception):
    """Two layers did not record the same, or a layer was reached out of turn."""


@dataclass(frozen=True)
class LayerMark:
    """The moment at which a pass reaches a layer.

    Attributes:
        collectives: how many the part had recorded.
        calls: how often each module had been called, by identity of the `ModuleEntry`.
        stretch: its number.
        way: what reaches the layer.
        layer: its number in the stretch.
    """

    collectives: int
    calls: Mapping[int, int]
    stretch: int
    way: Way
    layer: int


class _Place(NamedTuple):
    """The place of a module inside of a layer."""

    stretch: int
    layer: int
    path: str


class LayerModules:
    """The modules inside of the layers of stretches.

    Args:
        stretches: whose layers are left out.
        find: returns the entry of a module.
    """

    def __init__(self, stretches: Sequence[Stretch], find: Callable[[nn.Module], ModuleEntry]) -> None:
        self.lengths = [len(stretch.layers) for stretch in stretches]
        self._places: dict[int, _Place] = {}
        self._entries: dict[_Place, ModuleEntry] = {}
        for number, stretch in enumerate(stretches):
            for index, layer in enumerate(stretch.layers):
                for path, module in layer.named_modules():
                    place, entry = _Place(number, index, path), find(module)
                    self._places.setdefault(id(entry), place)  # that of a wrapper is what it wraps
                    self._entries.setdefault(place, entry)

    def place(self, entry: int) -> _Place | None:
        """The place of the entry of that identity; None outside of layers."""
        return self._places.get(entry)

    def entry(self, place: _Place) -> ModuleEntry:
        """The entry of the module at a place."""
        return self._entries[place]


@dataclass(frozen=True)
class _Period:
    """What was recorded between two marks.

    Attributes:
        stretch: its number; -1 before the first mark.
        layers: the layers that were performed, in the order in which the pass reached them.
        at: the number of the layer among these.
        part: the collectives, and calls of modules.
    """

    stretch: int
    layers: Sequence[int]
    at: int
    part: Part


@dataclass
class _Whole:
    """A microbatch with all layers, as it is put together."""

    issued: list[Issued] = field(default_factory=list)
    batches: list[tuple[int, int] | None] = field(default_factory=list)
    """Of each collective: the copy that it is part of, 0 for none, and the number of its batch there."""
    calls: Counter[int] = field(default_factory=Counter)
    copies: int = 0

    def add(self, period: _Period, layer: int, modules: LayerModules, *, is_copy: bool = False) -> None:
        """Put in a period, for a layer where it is one of a run."""
        self.copies += is_copy
        for one in period.part.issued:
            trigger, owner = (_moved(each, period, layer, modules) for each in one.origin[1:3])
            is_itself = not is_copy and trigger is one.origin.trigger and owner is one.origin.owner
            origin = one.origin._replace(trigger=trigger, owner=owner)
            self.issued.append(one if is_itself else replace(one, origin=origin))
            self.batches.append(None if one.batch is None else (self.copies if is_copy else 0, one.batch))
        for entry, count in period.part.calls.items():
            place = modules.place(entry)
            self.calls[entry if place is None else id(modules.entry(_target(place, period, layer)))] += count

    def part(self) -> Part:
        """All of it, with batches numbered in their order."""
        numbers: dict[tuple[int, int], int] = {}
        first = min((batch for _, batch in filter(None, self.batches)), default=0)
        issued = []
        for one, batch in zip(self.issued, self.batches, strict=True):
            number = None if batch is None else numbers.setdefault(batch, first + len(numbers))
            issued.append(one if number == one.batch else replace(one, batch=number))
        return Part(issued, {entry: count for entry, count in self.calls.items() if count})


def check_all(part: Part, marks: Sequence[LayerMark], modules: LayerModules) -> None:
    """Check that layers recorded the same in a part of a program that performed all of them.

    Raises:
        UnlikePeriods: they did not; the first and the last layer may differ from the others.
    """
    runs = _runs(part, marks, modules)
    for run in runs:
        if len(run) != modules.lengths[run[0].stretch]:
            raise UnlikePeriods
        middle = [period for period in run if 0 < run[0].layers[period.at] < len(run) - 1]
        for one, other in pairwise(middle):
            _compare(one, other, modules)
    if not runs:
        raise UnlikePeriods


def with_all(part: Part, marks: Sequence[LayerMark], modules: LayerModules) -> Part:
    """The part of a program that performed some layers as it would be with all of them.

    Raises:
        UnlikePeriods: two layers that stand for others did not record the same.
    """
    whole = _Whole()
    runs = _runs(part, marks, modules)
    first = marks[0] if marks else LayerMark(len(part.issued), part.calls, -1, "forward", -1)
    whole.add(_Period(-1, (), 0, Part(part.issued[: first.collectives], dict(first.calls))), 0, modules)
    members = Counter(one.batch for one in part.issued)
    for run in runs:
        if len(run) != FIRST + LAST:
            raise UnlikePeriods
        one, repeated = run[1:FIRST]
        _compare(one, repeated, modules)
        inside = Counter(each.batch for each in repeated.part.issued if each.batch is not None)
        if any(members[batch] > count for batch, count in inside.items()):
            raise UnlikePeriods  # a batch goes on beyond the layer
        for period, layers in zip(run, _targets(run, modules.lengths[one.stretch]), strict=True):
            for number, layer in enumerate(layers):
                whole.add(period, layer, modules, is_copy=number > 0)
    return whole.part()


def _targets(run: Sequence[_Period], length: int) -> list[range]:
    """For each layer that was performed those that it stands for, in the order in which the pass reaches them."""
    if run[0].layers[0] == 0:
        return [range(1), range(1, 2), range(2, length - 1), range(length - 1, length)]
    return [range(length - 1, length), range(length - 2, length - 1), range(length - 3, 0, -1), range(1)]


def _moved(entry: ModuleEntry | None, period: _Period, layer: int, modules: LayerModules) -> ModuleEntry | None:
    place = modules.place(id(entry)) if entry is not None else None
    return entry if place is None else modules.entry(_target(place, period, layer))


def _target(place: _Place, period: _Period, layer: int) -> _Place:
    """The place of a module in the period of a layer, known from that of one which stands for it."""
    return place if place.stretch != period.stretch else place._replace(layer=layer + _distance(place, period))


def _distance(place: _Place, period: _Period) -> int:
    """How far the layer of a module is from that of the period: 0, or 1 for a neighbour."""
    step = 1 if period.layers[0] == 0 else -1
    return step * (period.layers.index(place.layer) - period.at)


def _runs(part: Part, marks: Sequence[LayerMark], modules: LayerModules) -> list[list[_Period]]:
    """The periods of each pass through a stretch.

    Raises:
        UnlikePeriods: layers were not reached one after another, or a module of a layer that is no neighbour records in
            a period, so that it is unknown what stands for it where layers are left out.
    """
    passes = [mark for mark in marks if mark.way != "recompute"]
    ends = [*passes[1:], LayerMark(len(part.issued), part.calls, -1, "forward", -1)]
    _check_recomputed(marks)
    runs: list[list[_Period]] = []
    position = 0
    while position < len(passes):
        mark = passes[position]
        length = modules.lengths[mark.stretch]
        following = [one.layer for one in passes[position:] if (one.stretch, one.way) == (mark.stretch, mark.way)]
        layers = _order(following, length, is_forward=mark.way == "forward")
        run = []
        for at, (begin, end) in enumerate(zip(passes[position:], ends[position:], strict=True)):
            if at == len(layers):
                break
            if (begin.stretch, begin.way, begin.layer) != (mark.stretch, mark.way, layers[at]):
                raise UnlikePeriods
            inside = Part(part.issued[begin.collectives : end.collectives], more_calls(end.calls, begin.calls))
            run.append(_Period(mark.stretch, layers, at, inside))
        if len(run) < len(layers):
            raise UnlikePeriods
        runs.append(run)
        position += len(layers)
    early = part.issued[: passes[0].collectives] if passes else part.issued
    _check_names([_Period(-1, (), 0, Part(early)), *(period for run in runs for period in run)], modules)
    return runs


def _order(found: Sequence[int], length: int, *, is_forward: bool) -> Sequence[int]:
    """The layers that a pass is to reach, in order: all of them, or those that are performed where others are not."""
    everything = list(range(length))
    few = [*range(FIRST), *range(length - LAST, length)]
    step = 1 if is_forward else -1
    return few[::step] if found[: len(few)] == few[::step] else everything[::step]


def _check_recomputed(marks: Sequence[LayerMark]) -> None:
    """A layer is recomputed in its own backward, and not with others before it."""
    current = None
    for mark in marks:
        if mark.way != "recompute":
            current = mark
        elif current is None or (current.stretch, current.way, current.layer) != (mark.stretch, "backward", mark.layer):
            raise UnlikePeriods


def _check_names(periods: Sequence[_Period], modules: LayerModules) -> None:
    for period in periods:
        entries = [id(entry) for one in period.part.issued for entry in (one.origin.trigger, one.origin.owner) if entry]
        for entry in {*entries, *period.part.calls}:
            place = modules.place(entry)
            if place is None:
                continue
            if place.stretch != period.stretch:
                is_known = place.layer in (0, modules.lengths[place.stretch] - 1)
            else:
                is_known = place.layer in period.layers and abs(_distance(place, period)) <= 1
            if not is_known:
                raise UnlikePeriods


def _compare(one: _Period, other: _Period, modules: LayerModules) -> None:
    if list(_content(one, modules)) != list(_content(other, modules)) or _calls(one, modules) != _calls(other, modules):
        raise UnlikePeriods


def _content(period: _Period, modules: LayerModules) -> Iterator[tuple[Any, ...]]:
    """What each collective of a period is, but for the number of the layer."""
    batches: dict[int, int] = {}
    for one in period.part.issued:
        named = [_relative(id(each), period, modules) if each else None for each in one.origin[1:3]]
        batch = None if one.batch is None else batches.setdefault(one.batch, len(batches))
        rest = one.origin._replace(trigger=None, owner=None)
        yield one.raw_op, one.messages, id(one.group), one.rank, *named, rest, one.is_async, one.parties, batch


def _calls(period: _Period, modules: LayerModules) -> dict[Any, int]:
    found: Counter[Any] = Counter()
    for entry, count in period.part.calls.items():
        found[_relative(entry, period, modules)] += count
    return found


def _relative(entry: int, period: _Period, modules: LayerModules) -> tuple[Any, ...]:
    """A module as it is in each layer."""
    place = modules.place(entry)
    if place is None:
        return (entry,)
    if place.stretch != period.stretch:
        return place
    return "layer", _distance(place, period), place.path
