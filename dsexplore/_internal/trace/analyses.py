"""The methods of `Trace` that analyze it: sums, skew, findings, timelines, predictions.

Analyses are on a floor above traces, as views are. Like ``display.py`` for the views, `PASSES` is the only place in
`trace` that names their modules; each is imported when it is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from dsexplore._internal.display import Displayable
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import known_sum
from dsexplore._internal.trace.unmatched import unmatched

if TYPE_CHECKING:
    from dsexplore._internal.analysis.findings.finding import Findings
    from dsexplore._internal.analysis.headline import Headline
    from dsexplore._internal.analysis.parameter_history import ParameterHistory
    from dsexplore._internal.analysis.skew import Skew
    from dsexplore._internal.analysis.step_timeline import Timeline
    from dsexplore._internal.analysis.world_map import WorldMap
    from dsexplore._internal.cost.cluster import HardwareLike
    from dsexplore._internal.cost.step.prediction import Prediction

PASSES = {
    # the method of Trace: the function of Tables that it calls
    "findings": "dsexplore._internal.analysis.findings.all_rules:findings",
    "skew": "dsexplore._internal.analysis.skew:skew",
    "io_waits": "dsexplore._internal.analysis.io_waits:io_waits",
    "headline": "dsexplore._internal.analysis.headline:Headline",
    "world_map": "dsexplore._internal.analysis.make_world_map:world_map",
    "predicted_world_map": "dsexplore._internal.cost.step.predicted_map:predicted_world_map",
    "predict": "dsexplore._internal.cost.step.prediction:predict",
    "parameter_history": "dsexplore._internal.analysis.parameter_history:parameter_history",
    "timeline": "dsexplore._internal.analysis.step_timeline:timeline_of",
    "predicted_timeline": "dsexplore._internal.cost.step.predicted_timeline:predicted_timeline",
    # the methods of TraceDiff, with the other trace's Tables as ``after``
    "diff headline": "dsexplore._internal.analysis.plan_difference:plan_difference",
    "diff numerics": "dsexplore._internal.analysis.numeric_difference:numeric_difference",
    "diff timeline": "dsexplore._internal.analysis.joint_timeline:joint_timeline",
}


def run_pass(name: str, tables: Tables, **options: Any) -> Any:
    """Import and call the function of `PASSES` with that name."""
    module, _, function = PASSES[name].partition(":")
    return getattr(import_module(module), function)(tables, **options)


def totals(tables: Tables, *keys: str) -> pl.DataFrame:
    """Return ``count``, ``message_bytes`` and ``wire_bytes`` grouped by the columns `keys`, the largest first.

    The sums are over all ranks of the trace, and include the ranks that a rank represents. Collectives of unknown size
    are counted, but not in sums of bytes; these are null where no size is known.
    """
    times = pl.lit(1, pl.Int64)
    if tables.info.stands_for:
        times = pl.col("rank").replace_strict(dict(tables.info.weights), default=1, return_dtype=pl.Int64)
    return (
        tables.events.with_columns(times.alias("times"))
        .group_by(*keys, maintain_order=True)
        .agg(
            pl.col("times").sum().alias("count"),
            *(known_sum(pl.col(size) * pl.col("times")).alias(size) for size in ("message_bytes", "wire_bytes")),
        )
        .sort("message_bytes", "count", *keys, descending=[True, True, *(False for _ in keys)], nulls_last=True)
    )


class Analyses(Displayable):
    """Sums and analyses of a trace; the code of an analysis is imported when it is called."""

    _INTERNAL = frozenset({"tables"})

    @property
    def tables(self) -> Tables:
        """All tables and the info, as of now."""
        raise NotImplementedError

    def unmatched(self) -> pl.DataFrame:
        """Return messages between recorded ranks that are sent but not received, or vice versa, or differ in size.

        One row each, with both ranks, sizes and source lines; empty if all sends have their receives. The notes of a
        merged trace list the first ones. See `trace.unmatched`.

        Examples:
            >>> trace.unmatched().is_empty()
            True
        """
        return unmatched(self.tables)

    def skew(self) -> Skew:
        """Return a `Skew`: which ranks are late to collectives, how long the others wait, how long transfers take.

        It is displayed as a drawing. ``.verdict()`` names the late ranks. ``.to_frame()`` has a row per collective that
        several ranks measured, and ``.to_frame(by="rank")`` sums of these; ``by`` may also be ``"module"``, ``"axis"``,
        ``"phase"``, ``"op"`` or ``"group"``. A simulated trace has no times; its verdict says so.

        Examples:
            >>> trace.skew().is_timed  # simulated ranks have no times
            False
        """
        skew: Skew = run_pass("skew", self.tables)
        return skew

    def findings(self) -> Findings:
        """Return the traffic that the program need not send, as `analysis.findings.finding.Findings`.

        Each finding has module, line, bytes per rank and step, a reason, and a change to try. Findings are displayed as
        a table. ``.to_frame()`` returns it as a frame, and ``.trace(0)`` the events of the first finding.

        Examples:
            >>> len(trace.findings())
            0
        """
        findings: Findings = run_pass("findings", self.tables)
        return findings

    def io_waits(self) -> pl.DataFrame:
        """Return how long the program waited for its disk and its input, per module and phase, the longest first.

        Waits for transfers of `dsexplore.aio` and for each ``DataLoader`` are recorded on real ranks; columns:
        `analysis.io_waits.COLUMNS`. `Trace.io` has each read, write and wait.

        Examples:
            >>> trace.io_waits().is_empty()
            True
        """
        waits: pl.DataFrame = run_pass("io_waits", self.tables)
        return waits

    def headline(self) -> Headline:
        """Return a `analysis.headline.Headline`: what a step sends, in at most four sentences.

        ``.to_frame()`` has the bytes per rank and step by mesh axis, and milliseconds where times were measured.

        Examples:
            >>> print(trace.headline().verdict())
            The program sends 1.5 KiB on the wire per rank, all on dp.
        """
        headline: Headline = run_pass("headline", self.tables)
        return headline

    def timeline(
        self,
        lanes: str | None = None,
        color_by: str | None = None,
        *,
        sizes: str = "wire",
        hardware: HardwareLike | None = None,
    ) -> Timeline:
        """Return a `analysis.step_timeline.Timeline`: the step's collectives over time, in lanes.

        Times are measured ones where the ranks were real, and predicted ones where hardware is named. Simulated ranks
        have none: one is shown in program order, several in the earliest order in which they can run, given that they
        wait for one another.

        Args:
            lanes: column whose values have a lane each: ``phase``, ``axis``, ``module``, ``op``, ``rank`` or
                ``collective``, an op on an axis. None: ``rank`` for several ranks, else ``phase``. ``stage``: the
                schedule of a pipeline. With hardware: ``stream`` (or None), a lane for the compute stream and each
                stream of collectives, or ``stage``.
            color_by: column whose values have a color each: ``phase``, ``axis``, ``op`` or ``rank``.
            sizes: bytes that the spans show, ``wire`` or ``message``.
            hardware: machine that a step is predicted on, as `predict` takes it; None for measured times.

        Raises:
            UsageError: no such lanes, color_by, sizes or hardware; no pipeline; hardware without ``costs=True``.

        Examples:
            >>> trace.timeline(lanes="op")
            <Timeline of 2 collectives, 1 rank, simulated, in program order>
        """
        options = {"lanes": lanes, "color_by": color_by, "sizes": sizes}
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
        hardware: HardwareLike | None = None,
    ) -> WorldMap:
        """Return a `analysis.world_map.WorldMap`: the ranks that each rank communicates with, by node.

        Args:
            ranks_per_node: number of consecutive ranks on each node; None for that of the hardware, else 8. If the
                hardware's NVLink domains have several nodes, boxes are domains.
            sizes: bytes that the map shows, ``wire`` or ``message``.
            axis: mesh axis whose groups are outlined; None for no outlines.
            shade: ``bytes``, or ``seconds`` in which collectives of a rank or a link ran; None for seconds if hardware
                is given, else bytes.
            hardware: machine that seconds are predicted on, as `predict` takes it; None for measured seconds.

        Raises:
            UsageError: fewer than one rank per node, no such sizes, axis, shade or hardware, or no times for seconds.

        Examples:
            >>> trace.world_map(ranks_per_node=2).extent
            '4 ranks on 2 nodes of 2'
        """
        options: dict[str, object] = {"ranks_per_node": ranks_per_node, "sizes": sizes, "axis": axis}
        world: WorldMap
        if hardware is None or shade == "bytes":
            if ranks_per_node is None:
                options["ranks_per_node"] = 8
            world = run_pass("world_map", self.tables, **options, shade=shade or "bytes")
        else:
            options |= {"shade": shade or "seconds", "hardware": hardware}
            world = run_pass("predicted_world_map", self.tables, **options)
        return world

    def parameter_history(self, name: str, sizes: str = "wire") -> ParameterHistory:
        """Return one parameter's shards and its traffic in a step.

        Args:
            name: name of the parameter in ``trace.parameters``, or its end: ``layers.0.attention.wq.weight``.
            sizes: bytes that are shown, ``"wire"`` or ``"message"``.

        Raises:
            UsageError: there are no such sizes, or no parameter of that name, or several names end so.

        Examples:
            >>> with dsexplore.commtrace(mesh="dp=2", hardware="cpu") as trace:
            ...     model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
            ...     model(torch.ones(2, 4)).sum().backward()
            >>> trace.parameter_history("weight")
            <ParameterHistory: DistributedDataParallel.module.weight, 4 moments in a step>
        """
        history: ParameterHistory = run_pass("parameter_history", self.tables, parameter=name, sizes=sizes)
        return history

    def predict(
        self,
        hardware: HardwareLike = "h100",
        *,
        ranks_per_node: int | None = None,
        compiled: bool | None = None,
        overlap: bool = True,
        step: int | None = None,
        async_tp: bool = False,
        attention: Literal["flash-2", "cudnn"] = "flash-2",
        expandable_segments: bool = False,
        expert_imbalance: float = 1.0,
        cuda_graphs: bool = False,
    ) -> Prediction:
        """Predict how long one step of this program takes on a cluster and how much memory it needs, with ranges.

        Args:
            hardware: a GPU (``"h100"`` means ``"dgx-h100"``), a cluster, ``"cpu"``, the path of a cluster's file,
                or a `Cluster`.
            ranks_per_node: number of ranks that a launcher starts on each node; None for the cluster's number.
            compiled: whether modules run compiled; None if those do that the program compiles.
            overlap: whether communication may run beside compute.
            step: number of the step in the trace. None for the last one of the steps that train most and, of these,
                evaluate least.
            async_tp: whether collectives of tensor parallelism run in pieces beside their products, as torch's async
                tensor parallelism and Megatron's ``--tp-comm-overlap`` do.
            attention: attention kernels: ``"flash-2"``, or ``"cudnn"`` where cuDNN's are faster.
            expandable_segments: whether the allocator's segments can grow, which leaves it hardly any gaps, as with
                ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.
            expert_imbalance: tokens of the busiest rank of experts, as a multiple of the mean. Its messages and its
                computation are larger by this factor; an all_to_all that was recorded with uneven splits is not scaled.
            cuda_graphs: whether CUDA graphs launch all kernels, as in ``torch.cuda.graph`` or an engine's decoding, so
                that no kernel waits for the CPU that launches it.

        Raises:
            UsageError: the trace was recorded without ``costs=True``, has no such step, or there is no such hardware.

        Examples:
            >>> with dsexplore.commtrace(mesh="dp=4", costs=True) as trace:
            ...     dist.all_reduce(torch.ones(256))
            ...     trace.step()
            >>> print(f"{trace.predict('h100').step.expected * 1e6:.0f} µs")
            142 µs
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
            expandable_segments=expandable_segments,
            expert_imbalance=expert_imbalance,
            cuda_graphs=cuda_graphs,
        )
        return prediction

    def by_module(self) -> pl.DataFrame:
        """Return count and bytes per owner module and axis.

        As in `by_op`, `by_axis` and `by_phase`, the sums are over all ranks of the trace, and include the ranks that a
        rank represents (`TraceInfo.stands_for`).

        Examples:
            >>> trace.by_module().rows()
            [('', 'dp', 2, 1024, 1536)]
        """
        return totals(self.tables, "owner", "axis")

    def by_op(self) -> pl.DataFrame:
        """Return count and bytes per op.

        Examples:
            >>> trace.by_op().rows()
            [('all_reduce', 1, 1024, 1536), ('barrier', 1, 0, 0)]
        """
        return totals(self.tables, "op")

    def by_axis(self) -> pl.DataFrame:
        """Return count and bytes per mesh axis.

        Examples:
            >>> trace.by_axis().rows()
            [('dp', 2, 1024, 1536)]
        """
        return totals(self.tables, "axis")

    def by_phase(self) -> pl.DataFrame:
        """Return count and bytes per phase, in the order in which a step runs them.

        Examples:
            >>> trace.by_phase().rows()
            [('other', 2, 1024, 1536)]
        """
        order = {phase: place for place, phase in enumerate(schema.PHASES)}
        return totals(self.tables, "phase").sort(pl.col("phase").replace_strict(order, default=99))
