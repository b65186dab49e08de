"""`Trace`: what was communicated, and all that can be done with it. Of recorders and views it imports types alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl

from dsexplore.display import Displayable, OptionsOfView
from dsexplore.errors import UsageError
from dsexplore.signatures import names_arguments, with_options
from dsexplore.trace import files, schema
from dsexplore.trace.diff import compare
from dsexplore.trace.exports import write_csv, write_perfetto
from dsexplore.trace.merge import merge_as_they_come, merge_modules
from dsexplore.trace.passes import run_pass
from dsexplore.trace.select import check_names, select
from dsexplore.trace.step_marks import StepMarks
from dsexplore.trace.tables import Tables, TraceInfo
from dsexplore.trace.torch_json import write_torch_json
from dsexplore.trace.totals import totals
from dsexplore.trace.unmatched import unmatched
from dsexplore.units import format_count

if TYPE_CHECKING:
    from dsexplore.analysis.findings.finding import Findings
    from dsexplore.analysis.headline import Headline
    from dsexplore.analysis.numeric_difference import NumericDifference
    from dsexplore.analysis.parameter_history import ParameterHistory
    from dsexplore.analysis.plan_difference import PlanDifference
    from dsexplore.analysis.skew import Skew
    from dsexplore.analysis.step_timeline import Timeline
    from dsexplore.analysis.world_map import WorldMap
    from dsexplore.cost.cluster import Cluster
    from dsexplore.cost.prediction import Prediction
    from dsexplore.views.explorer.explorer import Explorer
    from dsexplore.views.trace.diff_explorer import DiffExplorer


class Trace(Displayable):
    """Collectives, parameters, modules and groups of a recorded program.

    Args:
        tables: the content, or a function that returns it: while a recording runs, the content so far.
        steps: marks the steps of the recording; None where none runs.
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
    def info(self) -> TraceInfo:
        """Where and how it was recorded."""
        return self.tables.info

    def step(self) -> None:
        """Mark the end of a training step: later events have the next ``step`` number.

        Raises:
            UsageError: the recording has ended.
        """
        step_marks(self, "trace.step()").step()

    def __dir__(self) -> list[str]:
        """Leave `tables` out: the same in the form that the package's own functions take."""
        return [name for name in super().__dir__() if name != "tables"]

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
        """Return the events as a polars frame; call ``.to_pandas()`` on it for a pandas one."""
        return self.events

    @with_options(("module", *schema.EVENTS))
    def where(self, **conditions: object) -> Trace:
        """Return a `Trace` of the events that meet all conditions, with the same modules, parameters and groups.

        Each condition names a column of the events and a value or a list of values; ``None`` is null.
        ``module="layers.0"`` matches trigger or owner by shell pattern, with or without the root's name: the module
        itself and those inside it.

        Raises:
            UsageError: no such column, a value of another type than the column's, or a phase, op, axis, group or
                module that the trace does not know.
        """
        tables = self.tables
        check_names(tables, conditions)
        return Trace(select(tables, conditions))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the trace and return where to: ``step.parquet`` is one file, ``trace/`` gets one file per rank.

        Raises:
            UsageError: the directory has files of ranks that this trace has not.
        """
        return files.save(self.tables, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Trace:
        """Read a file, a directory with one file per rank, or several files, which are merged.

        No code from a file is ever run. Ctrl-C while a directory is read returns the ranks read so far; a warning and
        the trace's notes say so.

        Raises:
            FileNotFoundError: nothing is there.
            TraceFileError: a file that is truncated, damaged, foreign or from a newer version; a directory without
                trace files, or with files that do not belong to one recording.
        """
        if isinstance(path, (str, os.PathLike)):
            return cls(files.load(path))
        return cls(files.load_several([Path(one) for one in path]))

    @staticmethod
    def merge(traces: Iterable[Trace]) -> Trace:
        """Merge the traces of several ranks of one recording; see `dsexplore.trace.merge`.

        Ctrl-C while iterating over `traces`, which may be a generator that loads them, merges those so far; a warning
        and the trace's notes say so.

        Raises:
            UsageError: none given, a rank given twice, or traces of different worlds.
        """
        total = len(traces) if isinstance(traces, Sized) else None
        return Trace(merge_as_they_come((trace.tables for trace in traces), "merging", total))

    def unmatched(self) -> pl.DataFrame:
        """Return messages between recorded ranks that are sent but not received, or vice versa, or differ in size.

        One row each, with both ranks, sizes and source lines; empty if all sends have their receives. The notes of a
        merged trace list the first ones. See `dsexplore.trace.unmatched`.
        """
        return unmatched(self.tables)

    def skew(self) -> Skew:
        """Return a `Skew`: which ranks are late to collectives, how long the others wait, how long transfers take.

        It shows itself with a picture. ``.sentence`` says it, ``.late_ranks`` are the ranks, ``.to_frame()`` has a row
        per collective that several ranks measured, and ``.to_frame(by="rank")``, ``"module"``, ``"axis"``, ``"phase"``,
        ``"op"`` or ``"group"`` sums of them. A simulated trace has no times, and says so.
        """
        skew: Skew = run_pass("skew", self.tables)
        return skew

    def findings(self) -> Findings:
        """Return the traffic that the program need not send, as `dsexplore.analysis.findings.finding.Findings`.

        Each finding has module, line, bytes per rank and step, why, and a change to try. Findings show themselves as a
        table; ``.to_frame()`` is one, and ``.trace(0)`` has the events that the first finding speaks of.
        """
        findings: Findings = run_pass("findings", self.tables)
        return findings

    def headline(self) -> Headline:
        """Return a `dsexplore.analysis.headline.Headline`: what a step sends, in at most four sentences.

        ``.to_frame()`` has the bytes per rank and step by mesh axis, and milliseconds where times were measured.
        """
        headline: Headline = run_pass("headline", self.tables)
        return headline

    def timeline(
        self,
        lanes: str | None = None,
        colors: str | None = None,
        *,
        sizes: str = "wire",
        hardware: Cluster | str | os.PathLike[str] | None = None,
    ) -> Timeline:
        """Return a `dsexplore.analysis.step_timeline.Timeline`: the step's collectives over time, in lanes.

        Times are measured ones where the ranks were real, and predicted ones where hardware is named. Simulated ranks
        have none: one is shown in program order, several in the earliest order in which they can run, given that they
        wait for one another.

        Args:
            lanes: what has a lane of its own: ``phase``, ``axis``, ``module``, ``op``, ``rank`` or ``collective``, an
                op on an axis. None: ranks where there are several, else phases. ``stage``: the schedule of a pipeline.
                With hardware: ``stream``, the compute stream and the streams of collectives (None is the same), or
                ``stage``.
            colors: what the colors say: ``phase``, ``axis``, ``op`` or ``rank``.
            sizes: which bytes the spans have, ``wire`` or ``message``.
            hardware: the machine that a step is predicted on, as `predict` takes it.

        Raises:
            UsageError: no such lanes, colors, sizes or hardware; no pipeline; hardware without ``costs=True``.
        """
        options = {"lanes": lanes, "colors": colors, "sizes": sizes}
        timeline: Timeline
        if hardware is not None or lanes == "stage":
            timeline = run_pass("predicted_timeline", self.tables, **options, hardware=hardware)
        else:
            timeline = run_pass("timeline", self.tables, **options)
        return timeline

    def world_map(
        self,
        ranks_per_node: int | None = None,
        *,
        sizes: str = "wire",
        axis: str | None = None,
        shade: str | None = None,
        hardware: Cluster | str | os.PathLike[str] | None = None,
    ) -> WorldMap:
        """Return a `dsexplore.analysis.world_map.WorldMap`: the ranks that each rank communicates with, by node.

        Args:
            ranks_per_node: ranks on each node; consecutive ones share a node. None: the cluster's number, else 8. With
                hardware whose NVLink domains are several nodes, boxes are domains.
            sizes: which bytes it shows, ``wire`` or ``message``.
            axis: the mesh axis whose groups are outlined.
            shade: ``bytes``, or ``seconds`` in which collectives of a rank or a link ran; None: seconds with hardware.
            hardware: the machine that seconds are predicted on, as `predict` takes it; None for measured ones.

        Raises:
            UsageError: fewer than one rank per node, no such sizes, axis, shade or hardware, or no times for seconds.
        """
        options = {"ranks_per_node": ranks_per_node, "sizes": sizes, "axis": axis}
        world: WorldMap
        if hardware is None or shade == "bytes":
            options |= {"ranks_per_node": 8} if ranks_per_node is None else {}
            world = run_pass("world_map", self.tables, **options, shade=shade or "bytes")
        else:
            seen = shade or "seconds"
            world = run_pass("predicted_world_map", self.tables, **options, shade=seen, hardware=hardware)
        return world

    def parameter_history(self, name: str, sizes: str = "wire") -> ParameterHistory:
        """Return one parameter's shards and its traffic in a step.

        Args:
            name: as in ``trace.parameters["name"]``, or its end: ``layers.0.attention.wq.weight``.
            sizes: which bytes are shown, ``"wire"`` or ``"message"``.

        Raises:
            UsageError: no such sizes or parameter, or several that end so.
        """
        history: ParameterHistory = run_pass("parameter_history", self.tables, parameter=name, sizes=sizes)
        return history

    def diff(self, other: Trace) -> TraceDiff:
        """Return the traffic of `other` minus that of this trace, per module × op × axis × phase.

        Raises:
            UsageError: ``other`` is no trace.
        """
        if not isinstance(other, Trace):
            raise UsageError(f"a trace is compared with a trace, not with {other!r}: of a saved one, give load(path)")
        return TraceDiff(Trace(self.tables), Trace(other.tables))

    def predict(
        self,
        hardware: Cluster | str | os.PathLike[str] = "h100",
        *,
        ranks_per_node: int | None = None,
        compiled: bool | None = None,
        overlap: bool = True,
        step: int | None = None,
        async_tp: bool = False,
        attention: Literal["flash-2", "cudnn"] = "flash-2",
    ) -> Prediction:
        """Predict how long one step of this program takes on a cluster and how much memory it needs, with ranges.

        Args:
            hardware: a GPU (``"h100"`` means ``"dgx-h100"``), a cluster, ``"cpu"``, the path of a cluster's file,
                or a `Cluster`.
            ranks_per_node: ranks that a launcher starts on each node, where it is not the cluster's number.
            compiled: whether modules run compiled; None for as the program asked.
            overlap: whether communication may run beside compute.
            step: which step of the trace; None for the last of those that train most and, of these, evaluate least.
            async_tp: whether collectives of tensor parallelism run in pieces beside their products, as torch's async
                tensor parallelism and Megatron's ``--tp-comm-overlap`` do.
            attention: whose attention kernels run: those of FlashAttention-2, or of cuDNN where they are faster.

        Raises:
            UsageError: the trace was recorded without ``costs=True``, has no such step, or there is no such hardware.
        """
        prediction: Prediction = run_pass(
            "predict",
            self.tables,
            hardware=hardware,
            ranks_per_node=ranks_per_node,
            compiled=compiled,
            overlap=overlap,
            step=step,
            async_tp=async_tp,
            attention=attention,
        )
        return prediction

    def to_csv(self, path: str | os.PathLike[str]) -> Path:
        """Write the events as comma-separated values and return the path; a shape is written ``8x1024``."""
        return write_csv(self.tables, path)

    def to_perfetto(self, path: str | os.PathLike[str]) -> Path:
        """Write a timeline for https://ui.perfetto.dev or chrome://tracing and return the path.

        One process per rank, one track per group; without measured times, events stand in program order, 1 µs each.
        A path that ends with ``.gz`` is compressed.
        """
        return write_perfetto(self.tables, path)

    def to_torch_json(self, path: str | os.PathLike[str] = "comm_mode_log.json") -> Path:
        """Write the module tree in the form of torch's ``CommDebugMode.generate_json_dump`` and return the path."""
        return write_torch_json(self.tables, path)

    def by_module(self) -> pl.DataFrame:
        """Return count and bytes per owner module and axis.

        As in `by_op`, `by_axis` and `by_phase`, the sums are over all ranks of the trace, and include the ranks that a
        rank represents (`TraceInfo.stands_for`).
        """
        return totals(self.tables, "owner", "axis")

    def by_op(self) -> pl.DataFrame:
        """Return count and bytes per op."""
        return totals(self.tables, "op")

    def by_axis(self) -> pl.DataFrame:
        """Return count and bytes per mesh axis."""
        return totals(self.tables, "axis")

    def by_phase(self) -> pl.DataFrame:
        """Return count and bytes per phase, in the order in which a step runs them."""
        order = {phase: place for place, phase in enumerate(schema.PHASES)}
        return totals(self.tables, "phase").sort(pl.col("phase").replace_strict(order, default=99))


def step_marks(trace: Trace, call: str = "step_marks(trace)") -> StepMarks:
    """Return what marks the steps of a trace's recording; its ``of_optimizers`` counts until `Trace.step` is called.

    Args:
        trace: of a recording that runs.
        call: what asks for them, for the error.

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
    """Read a trace: one file, a directory with one file per rank, or several files; see `Trace.load`."""
    return Trace.load(path)


@dataclass(frozen=True)
class TraceDiff(Displayable):
    """Two traces side by side: ``before`` and ``after``. Counts and bytes are sums over all ranks of each."""

    before: Trace
    after: Trace

    if TYPE_CHECKING:
        explore: ClassVar[OptionsOfView[DiffExplorer]]

    def __repr__(self) -> str:
        collectives = f"{format_count(len(self.before), 'collective')} before and {len(self.after):,} after"
        return f"<TraceDiff: {format_count(len(self), 'difference')}, {collectives}>"

    def to_frame(self, *, unchanged: bool = False) -> pl.DataFrame:
        """Return one row per module × op × axis × phase that differs; columns: `dsexplore.trace.diff.COLUMNS`.

        Rows are in the order of the joined module tree, as `modules`.

        Args:
            unchanged: include rows that are the same in both.
        """
        rows = compare(self.before.tables, self.after.tables)
        return rows if unchanged else rows.filter(pl.col("change") != "=")

    @property
    def modules(self) -> pl.DataFrame:
        """Modules of both traces as one tree; columns: `schema.MODULES`."""
        return merge_modules([self.before.modules, self.after.modules])

    def headline(self) -> PlanDifference:
        """Return a `dsexplore.analysis.plan_difference.PlanDifference`: the difference in at most five sentences.

        ``.to_frame()`` has the rows of the diff per rank and step, so that traces with different numbers of them
        compare.
        """
        headline: PlanDifference = run_pass("diff headline", self.before.tables, after=self.after.tables)
        return headline

    def numerics(self) -> NumericDifference:
        """Return a `dsexplore.analysis.numeric_difference.NumericDifference`: where the values of both runs part.

        ``.sentence`` says it, and ``.to_frame()`` has a row per tensor that both have summarized.

        Raises:
            UsageError: one of them was recorded without ``numerics=True``.
        """
        difference: NumericDifference = run_pass("diff numerics", self.before.tables, after=self.after.tables)
        return difference

    def timeline(self, lanes: str | None = None, colors: str | None = None) -> Timeline:
        """Return a `dsexplore.analysis.step_timeline.Timeline` of both last steps on one scale, A's lanes above B's.

        Args:
            lanes: as of `Trace.timeline`, of one rank of each; None for phases.
            colors: as of `Trace.timeline`.

        Raises:
            UsageError: no such lanes or colors.
        """
        options = {"after": self.after.tables, "lanes": lanes, "colors": colors}
        timeline: Timeline = run_pass("diff timeline", self.before.tables, **options)
        return timeline

    def __len__(self) -> int:
        """Return the number of rows that differ; 0 if both communicate the same."""
        return self.to_frame().height
