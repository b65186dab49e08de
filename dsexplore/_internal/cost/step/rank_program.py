"""One rank's step as work for the streams of a GPU: kernels, collectives and waits, in program order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.cost.collectives.host_ranks import waiting_seconds
from dsexplore._internal.cost.kernels.compute import (
    SPEEDS,
    Attention,
    host_seconds,
    issue_seconds,
    kernel_seconds,
    slowest_of,
)
from dsexplore._internal.cost.kernels.product_time import stated_rate
from dsexplore._internal.cost.range import Range
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.causes import is_fsdp2
from dsexplore._internal.trace.collectives import OPS
from dsexplore._internal.trace.tables import Tables

Sync = Literal["fsdp gather", "fsdp reduce", "ddp", "wait", "async", "send", "recv"]
"""How a collective is synchronized with the compute stream: what it waits for, and what waits for it; see
`stream_simulation`."""

Times = tuple[float, float, float]
"""Seconds by `Estimate`: low, expected, high."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Work of the compute stream.

    Attributes:
        seconds: busy time.
        host: seconds of the CPU that launches it, likewise low, expected and high.
        module: the module that runs.
        phase: of the step.
        kind: see `capture.kernels.op_costs.Kind`.
        shape: of a product: batch, m, n, k, where it is known.
    """

    seconds: Times
    host: Times
    module: str
    phase: str
    kind: str
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Collective:
    """An issued collective.

    Attributes:
        seq: its number in the trace.
        seconds: from the moment when all ranks have begun it.
        stream: the stream that it runs on.
        link: the link that it occupies: ``"node"`` or ``"network"``.
        sync: see `Sync`.
        module: whose parameters it moves, or that ran.
        phase: of the step.
        op: its op, such as ``all_gather``.
        axis: of the mesh.
        message_bytes: as nccl-tests counts them.
        peer: of a send or recv.
        ranks: of its group.
        why: what makes the range of its seconds as wide as it is; see `Range`.
        host: seconds of the CPU that issues it, by `Estimate`.
    """

    seq: int
    seconds: Times
    stream: str
    link: str
    sync: Sync
    module: str
    phase: str
    op: str
    axis: str
    message_bytes: int
    peer: int | None = None
    ranks: int = 0
    why: str = ""
    host: Times = (0.0, 0.0, 0.0)
    kind: ClassVar[str] = "communication"


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of the compute stream for the collective with this number."""

    seq: int


Item = Kernels | Collective | Wait


@dataclass(frozen=True)
class StepProgram:
    """The work of one rank in one step."""

    rank: int
    step: int
    items: list[Item]
    notes: list[str] = field(default_factory=list)


def programs(tables: Tables, cluster: Cluster, options: Options) -> list[StepProgram]:
    """Build the programs of all ranks of a trace that have kernels.

    Raises:
        UsageError: the trace has no kernels.
    """
    kernels = tables.kernels
    if kernels.is_empty():
        raise UsageError(
            "this trace has collectives only, and no costs of what is computed between them: record it again with "
            "commtrace(costs=True), run(…, costs=True), or dsexplore run --predict"
        )
    step = options.step if options.step is not None else _fullest_step(kernels)
    if kernels.filter(step=step).is_empty():
        raise UsageError(f"step {step} computes nothing in this trace: it has steps {_listed(kernels['step'])}")
    reader = _ItemReader(tables, cluster, options)
    return [reader.program(int(rank), step) for rank in kernels["rank"].unique().sort()]


@dataclass(frozen=True)
class Options:
    """The options of a prediction.

    Attributes:
        ranks_per_node: ranks that the launcher starts on a node; None for `Cluster.ranks_per_node`.
        compiled: whether modules run compiled; None for as the program asked.
        overlap: whether communication may run beside compute.
        step: which step of the trace; None for the last of those that train most and, of these, evaluate least.
        async_tp: whether collectives of tensor parallelism run in pieces beside their products; see `in_pieces`.
        attention: which kernels compute attention; see `cost.kernels.gpu_generations.Generation`.
        expandable_segments: whether the allocator's segments can grow, as with
            ``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``.
        expert_imbalance: how many times as many tokens as the mean the busiest rank of experts has, where the trace has
            even all_to_alls; those with uneven splits are as they are.
        cuda_graphs: whether CUDA graphs launch all kernels, so that none waits for the CPU.
    """

    ranks_per_node: int | None = None
    compiled: bool | None = None
    overlap: bool = True
    step: int | None = None
    async_tp: bool = False
    attention: Attention = "flash-2"
    expandable_segments: bool = False
    expert_imbalance: float = 1.0
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        nodes, kinds = self.ranks_per_node, get_args(Attention)
        if nodes is not None and (not isinstance(nodes, int) or nodes < 1):
            raise UsageError(f"ranks_per_node={nodes!r} is not a number of ranks: give 1 or more")
        if self.attention not in kinds:
            raise UsageError(f"attention={self.attention!r} is not known: name one of {', '.join(map(repr, kinds))}")
        if not 1 <= self.expert_imbalance < float("inf"):
            raise UsageError(
                f"expert_imbalance={self.expert_imbalance!r}: the busiest rank has 1 or more times the mean's tokens"
            )


def _fullest_step(kernels: pl.DataFrame) -> int:
    """Return the last step among those with most training work and, of these, least work without gradients.

    A step with an evaluation is avoided if another step has none. What follows the last optimizer step is not a step.
    """
    work, apart = pl.col("flops") + pl.col("read_bytes"), pl.col("phase") == "no-grad forward"
    totals = kernels.group_by("step").agg(work=work.filter(~apart).sum(), apart=work.filter(apart).sum()).sort("step")
    full = totals.filter(pl.col("work") >= 0.9 * pl.col("work").max())
    return int(full.filter(pl.col("apart") <= 1.1 * pl.col("apart").min())["step"][-1])


def _listed(numbers: pl.Series) -> str:
    return ", ".join(map(str, numbers.unique().sort()))


_COSTS = (
    *("kind", "op", "dtype", "shape", "count", "flops", "read_bytes", "written_bytes", "fused_bytes", "fused_count"),
    *("compiled", "phase"),
)
"""The columns that the seconds of a row depend on."""


def _numbered(rows: pl.DataFrame) -> tuple[npt.NDArray[np.uint32], pl.DataFrame]:
    """Return the index of each row in the frame of distinct rows, and that frame."""
    different = rows.with_row_index("row").group_by(rows.columns, maintain_order=True).agg("row")
    numbers = different.select("row").with_row_index("number").explode("row").sort("row")["number"]
    return numbers.to_numpy(), different.drop("row")


class _ItemReader:
    """Builds items from the rows of a trace's tables."""

    def __init__(self, tables: Tables, cluster: Cluster, options: Options) -> None:
        self.tables, self.cluster, self.options = tables, cluster, options
        self.groups = {row["group"]: row["ranks"] for row in tables.groups.iter_rows(named=True)}
        size = tables.info.world_size
        self.domain = cluster.domain_of_job(size, options.ranks_per_node)
        waiting = 1 if tables.events.is_empty() else size
        self._slowest = [slowest_of(waiting, cluster, speed) for speed in SPEEDS]
        self._launched = 0.0 if options.cuda_graphs and cluster.generation != "cpu" else 1.0
        low, expected, high = (self._launched * issue_seconds(cluster, speed) for speed in SPEEDS)
        self._issue: Times = low, expected, high
        here = min(size, self.domain)
        self._share_processors = cluster.processors is not None and here > cluster.processors
        self._times: dict[tuple[Any, ...], Range] = {}
        self._costs: dict[tuple[Any, ...], tuple[Times, Times]] = {}
        self._busy = 0.0
        self.notes: dict[str, None] = {}
        if self._slowest[1] > 1:
            self.notes[
                f"of {waiting:,} ranks that wait for each other, the slowest is expected to compute "
                f"{100 * (self._slowest[1] - 1):.1f} % longer than the mean rank: its times are counted"
            ] = None

        if self._share_processors:
            self.notes[
                f"{here} ranks share {cluster.processors} processors, and while one waits for a message another "
                "computes: of a collective only the time that its bytes take is counted"
            ] = None

    def program(self, rank: int, step: int) -> StepProgram:
        """Build the items of one rank and step, in program order."""
        kernels = self.tables.kernels.filter(rank=rank, step=step).sort("segment", maintain_order=True)
        events = self.tables.events.filter(
            (pl.col("rank") == rank) & (pl.col("step") == step) & (pl.col("phase") != "start-up")
        )
        waited = set(kernels["waits_for"].drop_nulls())
        collectives = [self._collective(row, rank, waited) for row in events.iter_rows(named=True)]
        self._busy = self._multiplying(kernels)
        items = self._ordered_items(kernels, collectives)
        return StepProgram(rank, step, items, list(self.notes))

    def _multiplying(self, kernels: pl.DataFrame) -> float:
        """Return the fewest seconds that matrix products keep the GPU busy in the step."""
        products = kernels.filter(kind="matmul").group_by("dtype").agg(pl.sum("flops"))
        return float(sum(flops / stated_rate(dtype, self.cluster) for dtype, flops in products.iter_rows()))

    def _ordered_items(self, kernels: pl.DataFrame, collectives: list[Collective]) -> list[Item]:
        """Return kernels, waits for issued collectives, and the collectives, each before the kernels that follow it."""
        issued = [collective.seq for collective in collectives]
        kernels = kernels.filter((pl.col("kind") != "wait") | pl.col("waits_for").is_in(issued))
        rows = self._items(kernels)
        before = np.maximum.accumulate(kernels["before"].to_numpy())
        issued_before = np.searchsorted(np.maximum.accumulate(np.asarray(issued, dtype=np.int64)), before)
        places = np.searchsorted(issued_before, range(1, len(issued) + 1))
        items: list[Item] = []
        done = 0
        for collective, place in zip(collectives, places, strict=True):
            items += rows[done:place]
            items.append(collective)
            done = place
        return items + rows[done:]

    def _items(self, kernels: pl.DataFrame) -> list[Item]:
        """Return the item of each row; equal rows, as of repeated layers and microbatches, share one item."""
        of_row, costs = _numbered(kernels.select(_COSTS))
        makers = [self._maker(cost) for cost in costs.iter_rows(named=True)]
        of_row, distinct = _numbered(kernels.select("module", "waits_for", cost=pl.Series(of_row)))
        items = np.empty(len(distinct), dtype=object)
        items[:] = [makers[cost](module, waits_for) for module, waits_for, cost in distinct.iter_rows()]
        return list(items[of_row])

    def _maker(self, row: Mapping[str, Any]) -> Callable[[str, int], Item]:
        """Return a function (module, awaited collective's seq) → item of a row with these costs."""
        if row["kind"] == "wait":
            return lambda _module, waits_for: Wait(waits_for)
        seconds, host = self._cost(row)
        shape = tuple(row["shape"] or ()) if row["kind"] == "matmul" else ()
        return lambda module, _waits_for: Kernels(
            seconds, host, module, phase=row["phase"], kind=row["kind"], shape=shape
        )

    def _cost(self, row: Mapping[str, Any]) -> tuple[Times, Times]:
        """Return the seconds of a row and of its launch, cached for rows with equal costs."""
        key = self._busy, *(tuple(value) if isinstance(value, list) else value for value in row.values())
        if key not in self._costs:
            compiled = self.options.compiled if self.options.compiled is not None else row["compiled"]
            low, expected, high = (
                slowest * kernel_seconds(row, self.cluster, speed, compiled, self.options.attention, self._busy)
                for slowest, speed in zip(self._slowest, SPEEDS, strict=True)
            )
            least, host, most = (self._launched * host_seconds(row, self.cluster, speed, compiled) for speed in SPEEDS)
            self._costs[key] = (low, expected, high), (least, host, most)
        return self._costs[key]

    def _collective(self, row: Mapping[str, Any], rank: int, waited: set[int]) -> Collective:
        size, per_node, aligned = self._parties(row, rank)
        message_bytes = row["message_bytes"]
        if row["op"] == "all_to_all" and row["send_splits"] is None:
            message_bytes = round(message_bytes * self.options.expert_imbalance)
        time = self._time(row["op"], message_bytes, size, per_node, aligned)
        return Collective(
            seq=row["seq"],
            seconds=(time.low, time.expected, time.high),
            stream=_stream(row),
            link="node" if per_node >= size else "network",
            sync=_sync(row, waited),
            module=row["owner"] or row["trigger"],
            phase=row["phase"],
            op=row["op"],
            axis=row["axis"],
            message_bytes=message_bytes,
            peer=row["peer"],
            ranks=row["group_size"],
            why=time.why,
            host=self._issue,
        )

    def _parties(self, row: Mapping[str, Any], rank: int) -> tuple[int, int, bool]:
        """Return the number of ranks that take part, of those in this rank's domain, and whether they keep to rails.

        A message has two ranks.
        """
        if row["op"] in ("send", "recv"):
            if row["peer"] is None:
                return 2, 1, True
            near = row["peer"] // self.domain == rank // self.domain
            return 2, 2 if near else 1, self._keep_to_rails([rank, row["peer"]])
        ranks = self.groups.get(row["group"]) or list(range(row["group_size"]))
        here = max(1, sum(other // self.domain == rank // self.domain for other in ranks))
        return row["group_size"], here, self._keep_to_rails(ranks)

    def _keep_to_rails(self, ranks: Sequence[int]) -> bool:
        """Return True if the ranks have the same places on each domain, or the network has no rails."""
        network = self.cluster.network
        if network is None or not network.rails:
            return True
        rails: dict[int, set[int]] = {}
        for rank in ranks:
            rails.setdefault(rank // self.domain, set()).add(rank % self.domain % int(network.rails))
        return len({frozenset(places) for places in rails.values()}) == 1

    def _time(self, op: str, message_bytes: int, size: int, per_node: int, aligned: bool) -> Range:
        key = op, message_bytes, size, per_node, aligned
        if key not in self._times:
            if op not in OPS:
                self.notes[f"{op} is not a collective whose time is known: left out of the prediction"] = None
                self._times[key] = Range.exactly(0.0)
            else:
                time = collective_time(op, message_bytes, size, min(per_node, size), self.cluster, aligned=aligned)
                waiting = waiting_seconds(self.cluster, op, size) if self._share_processors else 0.0
                low, expected, high = (max(0.0, end - waiting) for end in (time.low, time.expected, time.high))
                self._times[key] = Range(low, expected, high, why=time.why)
        return self._times[key]


def _stream(row: Mapping[str, Any]) -> str:
    """Return the stream that a collective runs on: FSDP2 has one per kind of collective, others one per group."""
    if _is_fsdp(row["cause"]):
        return f"FSDP {row['op']}"
    return f"{row['axis'] or row['group']} {'messages' if row['op'] in ('send', 'recv') else 'collectives'}"


def _is_fsdp(cause: str) -> bool:
    """Return True if FSDP2 itself communicates; DTensor inside its hooks is marked by a colon in the cause."""
    return is_fsdp2(cause) and ":" not in cause


def _sync(row: Mapping[str, Any], waited: set[int]) -> Sync:
    op, cause = row["op"], row["cause"]
    if op == "send":
        return "send"
    if op == "recv":
        return "recv"
    if _is_fsdp(cause):
        return "fsdp gather" if op == "all_gather" else "fsdp reduce"
    if cause.startswith("DDP gradient"):
        return "ddp"
    return "async" if row["seq"] in waited or row["is_async"] else "wait"
