"""A recording that is marked in program order, from which the tables of the program in full are made."""

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

from dsexplore._internal.capture.kernels.held_storage import Held
from dsexplore._internal.capture.recorder_in_use import in_use
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.repeats.layer_runs import FIRST, LAST, CannotSkip, LayerMark, LayerRuns
from dsexplore._internal.worlds.repeats.repeated_rows import RowBoundary, join_segments, repeat, with_buffers


class PartMark(NamedTuple):
    """The begin of one forward, one backward, or one pair of both, of a microbatch."""

    skipped: int
    """Number of equal parts that are skipped."""
    freed: int = 0
    """Bytes of activations that skipped parts have added, and that are freed from here on."""


class _Mark(NamedTuple):
    label: LayerMark | PartMark | list[Held]
    """The part that begins there; for gradients of skipped layers, their memory."""
    step: int
    issued: int
    """Number of collectives issued so far."""
    segment: int
    """The segment of kernels that begins there."""
    calls: Mapping[int, int]
    """At parts of microbatches: calls of modules so far, by identity of the entry."""


@dataclass
class MarkedRecording:
    """The recording that was opened last, with marks of what is skipped."""

    containers: list[Sequence[nn.Module]] = field(default_factory=list)
    """Layers of each container that repeat each other, as far as is known before they are called."""
    not_repeating: set[int] = field(default_factory=set)
    """Indices of containers with layers that were seen to differ: all layers of these are run."""
    microbatches: list[tuple[int, int]] = field(default_factory=list)
    """For each step of a schedule, how many microbatches ran, and how many there are."""
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
        return bool(self.repeating) or any(run < count for run, count in self.microbatches)

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

    def mark(self, label: LayerMark | PartMark | list[Held]) -> None:
        """Mark a place in the program."""
        segment = 0
        if self.kernels is not None:
            self.kernels.mark(None)
            segment = len(self.kernels.segments)
        calls = self._recorder.modules.calls() if isinstance(label, PartMark) else {}
        issued, steps = len(self._recording.issued), len(self._recording.steps)
        self.marks.append(_Mark(label, steps, issued, segment, calls))

    def make(self, gradients: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Make gradients for skipped layers: record no op that makes them, but the place and their memory."""
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
        """Return the tables of the program in full.

        Args:
            tables: of the recording, which has ended.

        Raises:
            CannotSkip: what was skipped does not repeat what was run.
        """
        steps = len(self._recording.steps) if self._recording.ends_with_step else None
        marks = [mark for mark in self.marks if steps is None or mark.step < steps]
        if not marks:
            return tables
        find = self._recorder.modules.find
        names = [[find(layer).name for layer in self.repeating.get(at, ())] for at in range(len(self.containers))]
        seq = list(accumulate((len(issued.messages) for issued in self._recording.issued), initial=0))
        goes_on = pl.col("segment").is_in([mark.segment for mark in marks]).alias("goes_on")
        frames = {"events": tables.events, "kernels": tables.kernels.with_columns(goes_on)}
        frames["memory"] = tables.memory.with_columns(goes_on)
        runs = LayerRuns([mark.label for mark in marks], names)
        given = {at: mark.label for at, mark in enumerate(marks, 1) if isinstance(mark.label, list)}
        freed = {at: sum((Counter({held.use: held.size}) for held in label), Counter()) for at, label in given.items()}
        cuts = [RowBoundary(seq[mark.issued], mark.segment) for mark in marks]
        frames, cuts, grown = repeat(frames, cuts, runs.times, runs, freed)
        if grown[3:].any():
            raise CannotSkip("the memory of layers is not freed again")
        parts = [(mark.label, at) for at, mark in enumerate(marks) if isinstance(mark.label, PartMark)]
        times = {at: part.skipped for at, (part, _) in enumerate(parts, 1) if part.skipped}
        dropped = {at: {"activations": part.freed} for at, (part, _) in enumerate(parts, 1)}
        frames = join_segments(repeat(frames, [cuts[at] for _, at in parts], times, freed=dropped)[0])
        events, kernels, memory = (frames[name].drop("goes_on", strict=False) for name in frames)
        modules = self._called(tables.modules, [(part.skipped, marks[at].calls) for part, at in parts], names)
        return self._add_microbatches(replace(tables, events=events, kernels=kernels, memory=memory, modules=modules))

    def _called(
        self, modules: pl.DataFrame, parts: Sequence[tuple[int, Mapping[int, int]]], names: Sequence[Sequence[str]]
    ) -> pl.DataFrame:
        """Add the calls of skipped parts to the table of modules; a skipped layer has those of a layer that ran."""
        calls = Counter(dict(modules.select("module", "calls").iter_rows()))
        entries = {id(entry): entry.name for entry in self._recorder.modules.in_order()}
        for (skipped, before), (_, after) in pairwise(parts):
            for entry, name in entries.items() if skipped else ():
                calls[name] += skipped * (after.get(entry, 0) - before.get(entry, 0))
        for layers in names:
            for layer in layers[FIRST : len(layers) - LAST]:
                for name in [name for name in calls if name == layer or name.startswith(f"{layer}.")]:
                    calls[name] = calls[layers[FIRST - 1] + name[len(layer) :]]
        counted = [calls[name] for name in modules["module"]]
        return modules.with_columns(calls=pl.Series(counted, dtype=modules.schema["calls"]))

    def _add_microbatches(self, tables: Tables) -> Tables:
        """Add what a stage has per microbatch: its number in the schedule, and buffers for messages."""
        if not tables.info.schedule or not self.microbatches:
            return tables
        run, count = self.microbatches[0]
        schedule = json.dumps({**json.loads(tables.info.schedule), "microbatches": count})
        total = sum(count for _, count in self.microbatches)
        memory = with_buffers(tables.memory, tables.events, total, count - run)
        return replace(tables, memory=memory, info=replace(tables.info, schedule=schedule))
