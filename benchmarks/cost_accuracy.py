"""How far predicted collectives are from published tables, beside two predictions that torch ships.

Each table of ``data/collectives.toml`` is predicted twice: in sample, with the measured points that the cluster files
carry, and left out, with every point of the table's source taken away, so that only the mechanism and other sources
speak. The mechanism's constants were chosen while looking at some of these tables, which the files name; so "left out"
is not unseen. Bound: none; the page docs/cost.md has what this prints.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from dsexplore.cost import Cluster, collective_time

DATA = Path(__file__).with_name("data") / "collectives.toml"
CLUSTERS = {"dgx-b200": "b200", "hgx-h20": "hgx-h200", "gb200-nvl4": "gb200-nvl72", "a100-pcie": "h100-pcie"}
"""The cluster file by which a table is predicted, where it is not called as the table's machine."""
SKIPPED = {"a100-pcie", "a100-pcie-pairs"}
"""Machines of which no cluster file speaks."""
BANDS = ((512, 64 << 10), (64 << 10, 8 << 20), (8 << 20, (512 << 20) + 1))
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send")
GPUS = {"dgx-a100": "AMPERE", "dgx-h100": "HOPPER", "hgx-h200": "HOPPER", "b200": "BLACKWELL"}


class Row(NamedTuple):
    """One measured time with its predictions; None where a model does not speak of the op or the machine."""

    cluster: str
    op: str
    nodes: int
    ranks_per_node: int
    size: int
    seconds: float
    ours: float
    inside: bool
    inductor: float | None
    dtensor: float | None


def rows(leave_out: bool) -> Iterator[Row]:
    """All measured times from 512 B to 512 MiB."""
    for table in tomllib.loads(DATA.read_text(encoding="utf-8"))["table"]:
        if table["cluster"] in SKIPPED:
            continue
        name = CLUSTERS.get(table["cluster"], table["cluster"])
        cluster = _without(Cluster.load(name), table["source"]) if leave_out else Cluster.load(name)
        for size, microseconds in zip(table["bytes"], table["microseconds"], strict=True):
            if not 512 <= size <= 512 << 20 or microseconds < table.get("floor", 0):
                continue
            yield _row(table, name, cluster, size, (microseconds - table.get("launch_overhead", 0)) * 1e-6)


def _without(cluster: Cluster, source: str) -> Cluster:
    """A cluster, and the one that it is like, less the tables of one source."""
    like = cluster.like and _without(Cluster.load(cluster.like), source)
    kept = tuple(table for table in cluster.measured if not table.source.startswith(source))
    if like:  # its tables, since a cluster is found by name only
        have = {(table.op, table.nodes, table.ranks_per_node) for table in kept}
        kept += tuple(t for t in like.measured if (t.op, t.nodes, t.ranks_per_node) not in have)
    return replace(cluster, measured=kept, like="")


def _row(table: dict, name: str, cluster: Cluster, size: int, seconds: float) -> Row:
    nodes, per_node = table["nodes"], table["ranks_per_node"]
    ours = collective_time(table["op"], size, nodes * per_node, per_node, cluster)
    args = (table["op"], size, nodes, per_node)
    return Row(
        *(name, table["op"], nodes, per_node, size, seconds, ours.expected, seconds in ours),
        inductor(name, *args),
        dtensor(*args),
    )


def inductor(name: str, op: str, size: int, nodes: int, per_node: int) -> float | None:
    """Seconds by ``torch._inductor.comm_analysis``, with the GPU named instead of detected.

    The size is the whole buffer. Inductor itself gives an all_gather's input, with which it is three quarters off.
    """
    from unittest.mock import patch

    from torch._inductor import comm_analysis

    if name not in GPUS or op not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        return None
    ranks = nodes * per_node
    coll = comm_analysis.NCCL_COLL[op.upper()]
    gpu = comm_analysis.NVIDIA_GPU_TYPE[GPUS[name]]
    with (
        patch.object(comm_analysis, "get_gpu_type", lambda: gpu),
        patch.object(comm_analysis, "_has_nvlink", lambda: True),
        patch("torch.cuda.is_available", lambda: True),
        patch("torch.cuda.device_count", lambda: per_node),
    ):
        return comm_analysis.estimate_nccl_collective_runtime_impl(size, ranks, coll) * 1e-3


def dtensor(op: str, size: int, nodes: int, per_node: int) -> float | None:
    """Seconds by ``torch.distributed.tensor._collective_utils``, which knows rings of an A100 or H100."""
    from torch.distributed.tensor import _collective_utils as utils

    costs: dict[str, Callable] = {
        "all_reduce": utils.allreduce_cost,
        "all_gather": utils.allgather_cost,
        "reduce_scatter": utils.reduce_scatter_cost,
    }
    if op not in costs:
        return None
    far = nodes > 1
    topology = SimpleNamespace(
        mesh_dim_devices=[nodes * per_node],
        mesh_dim_bandwidth=[87.7 * (0.22 if far else 1)],
        mesh_dim_latency=[2.7 if far else 0.6],
    )
    return costs[op](size / 2**30, topology, 0) * 1e-6


def report(found: list[Row]) -> None:
    """Median and 90th percentile of the error, per op and size band, of ours and of torch's two."""
    print(f"{'':34}{'n':>4}  {'ours':>12}  {'in range':>8}  {'inductor':>12}  {'DTensor':>12}")
    groups: dict[tuple, list[Row]] = defaultdict(list)
    for row in found:
        where = f"{row.cluster} {row.nodes} x {row.ranks_per_node}"
        groups[(row.op, "all machines")].append(row)
        groups[(row.op, where)].append(row)
        for low, high in BANDS:
            if low <= row.size < high:
                groups[(row.op, f"{low >> 10 or 0.5:g} KiB to {high >> 10:g} KiB")].append(row)
    for op in OPS:
        for (named, what), part in groups.items():
            if named == op:
                print(f"{op:15}{what:19}{_line(part)}")


def _line(part: list[Row]) -> str:
    cells = [f"{len(part):4}", _errors([(row.ours, row.seconds) for row in part])]
    cells.append(f"{statistics.mean(row.inside for row in part):8.0%}")
    for name in ("inductor", "dtensor"):
        cells.append(_errors([(getattr(r, name), r.seconds) for r in part if getattr(r, name) is not None]))
    return "  ".join(cells)


def _errors(pairs: list[tuple[float, float]]) -> str:
    """``"4% / 12%"``: median and 90th percentile of the relative error."""
    if not pairs:
        return f"{'-':>12}"
    errors = sorted(abs(predicted / true - 1) for predicted, true in pairs)
    return f"{statistics.median(errors):5.0%} /{errors[int(0.9 * (len(errors) - 1))]:5.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.parse_args()
    for leave_out, title in ((False, "in sample"), (True, "left out: each source predicted without its points")):
        print(f"\n{title}: median / 90th percentile of the error, 512 B to 512 MiB")
        report(list(rows(leave_out)))


if __name__ == "__main__":
    main()
