"""`Trace`: what was communicated, and all that can be done with it. Of recorders and views it imports types alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import polars as pl

from dsexplore._internal.display import Displayable, OptionsOfView
from dsexplore._internal.errors import UsageError
from dsexplore._internal.signatures import names_arguments, with_options
from dsexplore._internal.trace import files, schema
from dsexplore._internal.trace.analyses import Analyses, run_pass
from dsexplore._internal.trace.diff import compare
from dsexplore._internal.trace.exports import write_csv, write_perfetto
from dsexplore._internal.trace.merge import merge_as_they_come, merge_modules
from dsexplore._internal.trace.select import check_names, select
from dsexplore._internal.trace.steps import StepMarks
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.torch_json import write_torch_json
from dsexplore._internal.units import format_count

if TYPE_CHECKING:
    from dsexplore._internal.analysis.numeric_difference import NumericDifference
    from dsexplore._internal.analysis.plan_difference import PlanDifference
    from dsexplore._internal.analysis.step_timeline import Timeline
    from dsexplore._internal.views.explorer.explorer import Explorer
    from dsexplore._internal.views.trace.diff_explorer import DiffExplorer


class Trace(Analyses):
    """Collectives, parameters, modules and groups of a recorded program.

    Args:
        tables: content of the trace, or a function that returns the content so far while a recording runs.
        steps: marks of the steps of a running recording; None if no recording runs.

    Examples:
        >>> with dsexplore.commtrace(mesh="dp=4") as trace:
        ...     dist.all_reduce(torch.ones(256))
        ...     dist.barrier()
        >>> trace
        <Trace: 2 collectives of rank 0, world of 4>
        >>> trace.events.select("op", "axis", "message_bytes").rows()
        [('all_reduce', 'dp', 1024), ('barrier', 'dp', 0)]
    """

    if TYPE_CHECKING:
        explore: ClassVar[OptionsOfView[Explorer]]

    def __init__(self, tables: Tables | Callable[[], Tables] | None = None, steps: StepMarks | None = None) -> None:
        self._tables = Tables() if tables is None else tables
        self._steps = steps
        self.results: Mapping[int, object] = {}
        """{rank: value of the last expression of a cell on real ranks}; otherwise empty, and never saved."""

    @property
    def tables(self) -> Tables:
        """All tables and the info, as of now."""
        return self._tables() if callable(self._tables) else self._tables

    @property
    def events(self) -> pl.DataFrame:
        """One row per collective and rank, in program order; columns: `schema.EVENTS`."""
        return self.tables.events

    @property
    def parameters(self) -> pl.DataFrame:
        """One row per parameter and rank; columns: `schema.PARAMETERS`."""
        return self.tables.parameters

    @property
    def modules(self) -> pl.DataFrame:
        """One row per module, parents before children, in the order of ``named_modules``; columns: `schema.MODULES`."""
        return self.tables.modules

    @property
    def groups(self) -> pl.DataFrame:
        """One row per process group; columns: `schema.GROUPS`."""
        return self.tables.groups

    @property
    def numerics(self) -> pl.DataFrame:
        """One row per tensor and rank of what `commtrace` summarizes with ``numerics=True``; columns:
        `schema.NUMERICS`."""
        return self.tables.numerics

    @property
    def io(self) -> pl.DataFrame:
        """One row per read and write of `dsexplore.aio`, and per wait of the program for these or for its input;
        columns: `schema.IO`."""
        return self.tables.io

    @property
    def info(self) -> TraceInfo:
        """Where and how it was recorded."""
        return self.tables.info

    def step(self) -> None:
        """Mark the end of a training step: later events have the next ``step`` number.

        Raises:
            UsageError: the recording has ended.

        Examples:
            >>> with dsexplore.commtrace(world_size=4) as trace:
            ...     for _ in range(2):
            ...         dist.barrier()
            ...         trace.step()
            >>> trace.events["step"].to_list()
            [0, 1]
        """
        step_marks(self, "trace.step()").step()

    def __len__(self) -> int:
        """Return the number of events."""
        return self.events.height

    def __repr__(self) -> str:
        tables = self.tables
        events, ranks, size = tables.events.height, tables.info.ranks, tables.info.world_size
        of_ranks = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
        if tables.info.stands_for:
            of_ranks += f" that stand for {tables.info.ranks_stood_for:,}"
        return f"<Trace: {format_count(events, 'collective')} of {of_ranks}, world of {size:,}>"

    def to_frame(self) -> pl.DataFrame:
        """Return the events as a polars frame; call ``.to_pandas()`` on it for a pandas one.

        Examples:
            >>> trace.to_frame()["op"].to_list()
            ['all_reduce', 'barrier']
        """
        return self.events

    @with_options(("module", "row", *schema.EVENTS))
    def where(self, **conditions: object) -> Trace:
        """Return a `Trace` of the events that meet all conditions, with the same modules, parameters and groups.

        Each condition names a column of the events and a value or a list of values; ``None`` is null.
        ``module="layers.0"`` matches trigger or owner by shell pattern, with or without the root's name: the module
        itself and those inside it. ``owner`` and ``trigger`` match whole names, and take shell patterns too. ``row``
        is the position in `events`: ``row=range(10)`` are the first ten.

        Raises:
            UsageError: no such column, a value of another type than the column's, or a phase, op, axis, group or
                module that the trace does not know.

        Examples:
            >>> trace.where(op="barrier")
            <Trace: 1 collective of rank 0, world of 4>
            >>> trace.where(row=range(1))
            <Trace: 1 collective of rank 0, world of 4>
        """
        tables = self.tables
        check_names(tables, conditions)
        return Trace(select(tables, conditions))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace and return where to: ``step.parquet`` is one file, ``trace/`` gets one file per rank.

        Raises:
            UsageError: the directory has files of ranks that this trace does not have.

        Examples:
            >>> trace.save("step.parquet").name
            'step.parquet'
        """
        return files.save(self.tables, path)

    @staticmethod
    def merge(traces: Iterable[Trace]) -> Trace:
        """Merge the traces of several ranks of one recording; see `trace.merge`.

        Ctrl-C while iterating over `traces`, which may be a generator that loads them, merges those so far; a warning
        and the trace's notes say so.

        Raises:
            UsageError: none given, a rank given twice, or traces of different worlds.

        Examples:
            >>> traces = []
            >>> for rank in range(2):
            ...     with dsexplore.commtrace(world_size=2, rank=rank) as of_rank:
            ...         dist.barrier()
            ...     traces.append(of_rank)
            >>> dsexplore.Trace.merge(traces)
            <Trace: 2 collectives of 2 ranks, world of 2>
        """
        total = len(traces) if isinstance(traces, Sized) else None
        return Trace(merge_as_they_come((trace.tables for trace in traces), "merging", total))

    def diff(self, other: Trace) -> TraceDiff:
        """Return the traffic of `other` minus that of this trace, per module × op × axis × phase.

        Raises:
            UsageError: ``other`` is not a trace.

        Examples:
            >>> trace.diff(trace.where(op="barrier"))
            <TraceDiff: 1 difference, 2 collectives before and 1 after>
        """
        if not isinstance(other, Trace):
            raise UsageError(f"a trace is compared with a trace, not with {other!r}: for a saved one, give load(path)")
        return TraceDiff(Trace(self.tables), Trace(other.tables))

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the events as comma-separated values and return the path; a shape is written ``8x1024``.

        Examples:
            >>> trace.to_csv("events.csv").read_text().count("all_reduce")
            1
        """
        return write_csv(self.tables, path)

    def to_perfetto(self, path: str | os.PathLike[str]) -> Path:
        """Write a timeline for https://ui.perfetto.dev or chrome://tracing and return the path.

        One process per rank, one track per group; without measured times, events stand in program order, 1 µs each.
        A path that ends with ``.gz`` is compressed.

        Examples:
            >>> trace.to_perfetto("timeline.json.gz").name
            'timeline.json.gz'
        """
        return write_perfetto(self.tables, path)

    def to_torch_json(self, path: str | os.PathLike[str] = "comm_mode_log.json") -> Path:
        """Write the module tree in the form of torch's ``CommDebugMode.generate_json_dump`` and return the path.

        Examples:
            >>> trace.to_torch_json("log.json").name
            'log.json'
        """
        return write_torch_json(self.tables, path)


def step_marks(trace: Trace, call: str = "step_marks(trace)") -> StepMarks:
    """Return the step marks of a trace's recording; ``of_optimizers`` counts until `Trace.step` is called.

    Args:
        trace: trace of a running recording.
        call: text of the user's call, for the error.

    Raises:
        UsageError: the recording has ended.
    """
    if trace._steps is None:
        raise UsageError(f"{call} was called after the recording ended: call it inside the block that records")
    return trace._steps


def finish(trace: Trace, tables: Callable[[], Tables]) -> None:
    """Replace the content of a trace by what `tables` returns, as the recorder does when the block ends."""
    trace._tables = tables
    trace._steps = None


@names_arguments
def load(path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Trace:
    """Read a trace: one file, a directory with one file per rank, or several files, which are merged.

    No code from a file is ever run. Ctrl-C while a directory is read returns the ranks read so far; a warning and the
    trace's notes say so.

    Args:
        path: file or directory that was saved, profiler traces, or dumps of the flight recorder; or several files.

    Raises:
        FileNotFoundError: the path does not exist.
        TraceFileError: a file is truncated, damaged, foreign or from a newer version; a directory has no trace files,
            or files that do not belong to one recording.

    Examples:
        >>> with dsexplore.commtrace(world_size=4, save="ranks") as trace:
        ...     dist.barrier()
        >>> dsexplore.load("ranks")
        <Trace: 1 collective of rank 0, world of 4>
    """
    if isinstance(path, (str, os.PathLike)):
        return Trace(files.load(path))
    return Trace(files.load_several([Path(file) for file in path]))


@dataclass(frozen=True)
class TraceDiff(Displayable):
    """Two traces side by side: ``before`` and ``after``. Counts and bytes are sums over all ranks of each.

    Examples:
        >>> with dsexplore.commtrace(mesh="dp=4") as trace:
        ...     dist.all_reduce(torch.ones(256))
        ...     dist.barrier()
        >>> diff = trace.diff(trace.where(op="barrier"))
        >>> diff
        <TraceDiff: 1 difference, 2 collectives before and 1 after>
    """

    before: Trace
    after: Trace

    if TYPE_CHECKING:
        explore: ClassVar[OptionsOfView[DiffExplorer]]

    def __repr__(self) -> str:
        collectives = f"{format_count(len(self.before), 'collective')} before and {len(self.after):,} after"
        return f"<TraceDiff: {format_count(len(self), 'difference')}, {collectives}>"

    def to_frame(self, *, unchanged: bool = False) -> pl.DataFrame:
        """Return one row per module × op × axis × phase that differs; columns: `trace.diff.COLUMNS`.

        Rows are in the order of the joined module tree, `modules`.

        Args:
            unchanged: whether to include rows that are the same in both traces.

        Examples:
            >>> diff.to_frame().select("op", "change").rows()
            [('all_reduce', '-')]
        """
        rows = compare(self.before.tables, self.after.tables)
        return rows if unchanged else rows.filter(pl.col("change") != "=")

    @property
    def modules(self) -> pl.DataFrame:
        """Modules of both traces as one tree; columns: `schema.MODULES`."""
        return merge_modules([self.before.modules, self.after.modules])

    def headline(self) -> PlanDifference:
        """Return a `analysis.plan_difference.PlanDifference`: the difference in at most five sentences.

        ``.to_frame()`` has the rows of the diff per rank and step, so that traces with other numbers of ranks or steps
        can be compared.

        Examples:
            >>> len(diff.headline().lines())
            2
        """
        headline: PlanDifference = run_pass("diff headline", self.before.tables, after=self.after.tables)
        return headline

    def numerics(self) -> NumericDifference:
        """Return a `analysis.numeric_difference.NumericDifference`: where the values of both runs first differ.

        ``.verdict()`` names the place, and ``.to_frame()`` has a row per tensor that both have summarized.

        Raises:
            UsageError: one of the traces was recorded without ``numerics=True``.
        """
        difference: NumericDifference = run_pass("diff numerics", self.before.tables, after=self.after.tables)
        return difference

    def timeline(self, lanes: str | None = None, color_by: str | None = None) -> Timeline:
        """Return a `analysis.step_timeline.Timeline` of both last steps on one scale, A's lanes above B's.

        Args:
            lanes: column whose values have a lane each, of one rank of each trace, see `Trace.timeline`; None for
                ``phase``.
            color_by: column whose values have a color each, see `Trace.timeline`.

        Raises:
            UsageError: no such lanes or color_by.

        Examples:
            >>> diff.timeline()
            <Timeline of 3 collectives, 1 rank, simulated, in program order>
        """
        options = {"after": self.after.tables, "lanes": lanes, "colors": color_by}
        timeline: Timeline = run_pass("diff timeline", self.before.tables, **options)
        return timeline

    def __len__(self) -> int:
        """Return the number of rows that differ; 0 if both communicate the same."""
        return self.to_frame().height
