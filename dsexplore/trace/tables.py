"""`Tables`: the content of a trace as plain tables, and where it was recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from dsexplore.trace import schema
from dsexplore.trace.represented_ranks import weights

OF_EACH_RANK = ("stands_for", "clocks", "clock_offsets", "clock_residuals", "ends", "began")
"""The fields of `TraceInfo` that have one value for each of its ranks, or none."""


@dataclass(frozen=True)
class TraceInfo:
    """Where and how a trace was recorded."""

    world_size: int = 1
    ranks: tuple[int, ...] = ()
    """The ranks whose events are in the trace."""
    stands_for: tuple[str, ...] = ()
    """For each of `ranks` the ranks that it stands for, itself included, as ``"0-1015"``; empty where each stands for
    itself alone. See `dsexplore.trace.represented_ranks`."""
    mesh: str = ""
    """The world's mesh as written by the user, ``"dp=2,tp=4"``; empty where none was named."""
    simulated: bool = False
    """True on a fake process group: counts and bytes are real, values and times are not."""
    target: str = ""
    """The target whose traffic a simulation shows: ``cuda``, GPUs with NCCL, or ``cpu``, CPUs with gloo; empty where
    the ranks are real, and for a process group that the program simulates itself."""
    clocks: tuple[str, ...] = ()
    """For each of `ranks` a name of the clock that its times are on, equal for ranks that share one, as the processes
    of one host do; ``""`` for a rank whose clock is not known. Empty where none is known."""
    clock_offsets: tuple[int, ...] = ()
    """For each of `ranks` the nanoseconds that were subtracted from its times; see `dsexplore.trace.merge`.
    Empty where nothing shows how the clocks differ."""
    clock_residuals: tuple[int, ...] = ()
    """For each of `ranks` the nanoseconds within which its offset is known, as far as chance goes: a rank that always
    notices ends late is not seen by it. The trace's notes say by how much an offset can be wrong at most."""
    ends: tuple[str, ...] = ()
    """For each of `ranks` how its recording ended, see `dsexplore.trace.ends`; ``""`` where that is not known."""
    began: tuple[int, ...] = ()
    """For each of `ranks` when its recording began, in nanoseconds since the Unix epoch; 0 where that is not known."""
    attempt: str = ""
    """A name that the files have in common which one attempt of a job saved; empty where nothing was saved, and of a
    simulation."""
    whole_steps: int = 0
    """How many steps had ended when the recording did: events of a later step are of one that was begun. 0 where none
    had ended, or the end of none was seen."""
    torch_version: str = ""
    schedule: str = ""
    """The pipeline schedule that called the stages, as JSON; see `dsexplore.capture.pipelines.describe`."""
    notes: tuple[str, ...] = ()
    """Remarks that a reader must know: an exception that ended the recording, an op that was not known, …"""

    def of_rank(self, rank: int) -> TraceInfo:
        """Return the info of a trace with `rank` alone."""
        own: dict[str, Any] = {"ranks": (rank,)}
        for name in OF_EACH_RANK:
            own[name] = tuple(value for of, value in zip(self.ranks, getattr(self, name), strict=False) if of == rank)
        return replace(self, **own)

    @property
    def weights(self) -> Mapping[int, int]:
        """Number of ranks that each of `ranks` represents: 1 unless `stands_for` says more."""
        return weights(self.ranks, self.stands_for)

    @property
    def ranks_stood_for(self) -> int:
        """Number of ranks that the trace describes: those in it, and those that they represent."""
        return sum(self.weights.values())


@dataclass(frozen=True)
class Tables:
    """The content of a trace at one moment; columns are those of `dsexplore.trace.schema`."""

    events: pl.DataFrame = field(default_factory=lambda: schema.empty("events"))
    parameters: pl.DataFrame = field(default_factory=lambda: schema.empty("parameters"))
    modules: pl.DataFrame = field(default_factory=lambda: schema.empty("modules"))
    groups: pl.DataFrame = field(default_factory=lambda: schema.empty("groups"))
    info: TraceInfo = field(default_factory=TraceInfo)
    kernels: pl.DataFrame = field(default_factory=lambda: schema.empty("kernels"))
    memory: pl.DataFrame = field(default_factory=lambda: schema.empty("memory"))
