"""`MarkedRecording`: a recording with marks where layers and microbatches are skipped, and the tables with all rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import polars as pl
import torch
from torch import nn

from dsexplore._internal.capture.kernels.fused_tensors import USES, Held
from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.repeats.layer_runs import FIRST, LAST, CannotSkip, LayerMark, LayerRuns
from dsexplore._internal.worlds.repeats.repeated_rows import (
    Frames,
    RowBoundary,
    join_segments,
    repeat,
    with_buffers,
)


class PartMark(NamedTuple):
    """The begin of a part of a step: a microbatch's forward, its backward, or a pair of both."""

    skipped: int
    """Number of equal parts that are skipped."""
    freed: int = 0
    """Bytes of activations of skipped parts that are freed here."""


Label = LayerMark | PartMark | list[Held]
"""What begins at a mark: a layer, or a part of a step; for gradients of skipped layers, the memory that they hold."""


class Microbatches(NamedTuple):
    """The microbatches of a schedule's step."""

    run: int
    """Number that ran."""
    total: int


class _Mark(NamedTuple):
    """A place in the recording."""

    label: Label
    step: int
    issued: int
    """Number of collectives issued so far."""
    segment: int
    """The segment of kernels that begins here."""
    calls: Mapping[int, int]
    """For a `PartMark`, {identity of a module's entry: its calls so far}."""


@dataclass
class MarkedRecording:
    """The recording that was opened last, with marks where layers and microbatches are skipped."""

    containers: list[Sequence[nn.Module]] = field(default_factory=list)
    """The layers of each container whose layers look equal before they are called."""
    not_repeating: set[int] = field(default_factory=set)
    """Indices of containers whose layers turned out to differ, and all run."""
    microbatches: list[Microbatches] = field(default_factory=list)
    """By step of a schedule."""
    marks: list[_Mark] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._recorder = in_use()
        self._recording = self._recorder.recordings[-1]
        self.kernels = self._recording.kernels
        """The recording of costs; None where there is none."""

    @property
    def is_alone(self) -> bool:
        """True if no other recording is open, such as one of the program's own."""
        return list(self._recorder.recordings) == [self._recording]

    @property
    def has_skipped(self) -> bool:
        """True if microbatches or layers were skipped."""
        return bool(self.repeating) or any(step.run < step.total for step in self.microbatches)

    @property
    def repeating(self) -> dict[int, Sequence[nn.Module]]:
        """Layers of the containers with skipped ones, by index."""
        return {number: layers for number, layers in enumerate(self.containers) if number not in self.not_repeating}

    def container_number(self, layers: Sequence[nn.Module]) -> int:
        """Return the index of a container; one that is new, or has not repeated in an earlier step, gets a new one."""
        for number, repeating in self.repeating.items():
            if layers == repeating:
                return number
        self.containers.append(layers)
        return len(self.containers) - 1

    def mark(self, label: Label) -> None:
        """Mark this place in the recording; a new segment of kernels begins."""
        segment = 0
        if self.kernels is not None:
            self.kernels.mark(None)
            segment = len(self.kernels.segments)
        calls = self._recorder.modules.calls() if isinstance(label, PartMark) else {}
        issued, steps = len(self._recording.issued), len(self._recording.steps)
        self.marks.append(_Mark(label, steps, issued, segment, calls))

    def make(self, gradients: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Make gradients for skipped layers; of these, only the place and the memory are recorded, no ops.

        Args:
            gradients: makes them, and returns a tensor for each storage.
        """
        if self.kernels is None:
            gradients()
            return
        self.kernels.paused += 1
        try:
            made = list(gradients())
        finally:
            self.kernels.paused -= 1
        if made:
            held: list[Held] = []
            self.mark(held)
            held += self.kernels.memory.holds(made)

    def whole(self, tables: Tables) -> Tables:
        """Return the tables of the program with all its layers and microbatches.

        Args:
            tables: the tables of the recording, which has ended.

        Raises:
            CannotSkip: a skipped part does not repeat one that ran.
        """
        steps = len(self._recording.steps) if self._recording.ends_with_step else None
        marks = [mark for mark in self.marks if steps is None or mark.step < steps]
        if not marks:
            return tables
        goes_on = pl.col("segment").is_in([mark.segment for mark in marks]).alias("goes_on")
        frames = {
            "events": tables.events,
            "kernels": tables.kernels.with_columns(goes_on),
            "memory": tables.memory.with_columns(goes_on),
        }
        names = self._layer_names()
        frames, cuts = self._repeat_layers(frames, marks, names)
        parts = [
            _Part(mark.label.skipped, mark.label.freed, cut, mark.calls)
            for mark, cut in zip(marks, cuts, strict=True)
            if isinstance(mark.label, PartMark)
        ]
        times = {interval: part.skipped for interval, part in enumerate(parts, 1) if part.skipped}
        freed = {interval: {"activations": part.freed} for interval, part in enumerate(parts, 1)}
        frames = join_segments(repeat(frames, [part.cut for part in parts], times, freed=freed).frames)
        events, kernels, memory = (frames[name].drop("goes_on", strict=False) for name in frames)
        modules = self._with_skipped_calls(tables.modules, parts, names)
        return self._with_all_microbatches(
            replace(tables, events=events, kernels=kernels, memory=memory, modules=modules)
        )

    def _layer_names(self) -> list[list[str]]:
        """Return the names of each container's layers; none for a container whose layers all run."""
        find = self._recorder.modules.find
        return [[find(layer).name for layer in self.repeating.get(at, ())] for at in range(len(self.containers))]

    def _repeat_layers(
        self, frames: Frames, marks: Sequence[_Mark], names: Sequence[Sequence[str]]
    ) -> tuple[Frames, list[RowBoundary]]:
        """Return the tables with the rows of skipped layers, and the places of the marks in them.

        Raises:
            CannotSkip: a skipped layer does not repeat one that ran, or does not free its memory.
        """
        seq = list(accumulate((len(issued.messages) for issued in self._recording.issued), initial=0))
        cuts = [RowBoundary(seq[mark.issued], mark.segment) for mark in marks]
        freed: dict[int, Counter[str]] = {}
        for interval, mark in enumerate(marks, 1):
            if isinstance(mark.label, list):
                freed[interval] = Counter()
                for held in mark.label:
                    freed[interval][held.use] += held.size
        layers = LayerRuns([mark.label for mark in marks], names)
        repeated = repeat(frames, cuts, layers.times, layers, freed)
        if any(repeated.grown[use] for use in USES):
            raise CannotSkip("the memory of layers is not freed again")
        return repeated.frames, repeated.cuts

    def _with_skipped_calls(
        self, modules: pl.DataFrame, parts: Sequence[_Part], names: Sequence[Sequence[str]]
    ) -> pl.DataFrame:
        """Add the calls of skipped parts to the table of modules; a skipped layer has those of a layer that ran."""
        calls = Counter(dict(modules.select("module", "calls").iter_rows()))
        entries = {id(entry): entry.name for entry in self._recorder.modules.in_order()}
        for part, following in pairwise(parts):
            if part.skipped:
                for entry, name in entries.items():
                    calls[name] += part.skipped * (following.calls.get(entry, 0) - part.calls.get(entry, 0))
        for layers in names:
            for layer in layers[FIRST : len(layers) - LAST]:
                for name in [name for name in calls if name == layer or name.startswith(f"{layer}.")]:
                    calls[name] = calls[layers[FIRST - 1] + name[len(layer) :]]
        counted = [calls[name] for name in modules["module"]]
        return modules.with_columns(calls=pl.Series(counted, dtype=modules.schema["calls"]))

    def _with_all_microbatches(self, tables: Tables) -> Tables:
        """Add what depends on the number of microbatches: that number in the schedule, and receive buffers."""
        if not tables.info.schedule or not self.microbatches:
            return tables
        first = self.microbatches[0]
        schedule = json.dumps({**json.loads(tables.info.schedule), "microbatches": first.total})
        total = sum(step.total for step in self.microbatches)
        memory = with_buffers(tables.memory, tables.events, total, first.total - first.run)
        return replace(tables, memory=memory, info=replace(tables.info, schedule=schedule))


class _Part(NamedTuple):
    """A `PartMark` and its place in tables with all layers."""

    skipped: int
    freed: int
    cut: RowBoundary
    calls: Mapping[int, int]
