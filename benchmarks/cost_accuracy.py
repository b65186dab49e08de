"""How far predicted collectives are from published tables, beside two predictions that torch ships.

Each table of ``data/collectives.toml`` is predicted twice: in sample, with the measured points that the cluster files
carry, and left out, with every point of the table's source taken away, so that only the mechanism and other sources
speak. The mechanism's constants were chosen while looking at some of these tables, which the files name; so "left out"
is not unseen. Bound: none; the page docs/cost.md has what this prints.

Then tables of ``data/unseen_collectives.toml``, which no cluster file has points of. The ranges and a few constants
were chosen with them at hand, but for those that are held out, which are reported apart. Most were made by one process
that drives all GPUs of a node, as ``nccl-tests -g 8`` does: up to some size they show how long its CPU needs to launch
them. These rows are told from the others by their own shortest time, and counted apart.

Then the times of ``data/nccl_perf.csv``, of 2, 4 and 8 GPUs of nine kinds. Cluster files have one version of the
library for each of seven machines. All were predicted before any was in a file; "left out" repeats that, as nothing
else was changed. The versions and machines that no file has say what the points of the files are worth elsewhere.

Then gloo on one machine: of the sweeps ``data/gloo-2.json`` and ``gloo-4.json`` a part calibrates a cluster, which
predicts the other part. What repeats itself between rounds of the same sweep is the least error that is possible.
Others of your own: ``dsexplore comm --real 4 -e 16MiB --rounds 8 --save mine.json``, then ``--sweeps mine.json``.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from goals import beside_goal

from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepPoint
from dsexplore._internal.cost.collectives.calibrate import calibrated
from dsexplore.cost import Cluster, collective_time, known_clusters

DATA = Path(__file__).with_name("data") / "collectives.toml"
UNSEEN = DATA.with_name("unseen_collectives.toml")
CLUSTERS = {"dgx-b200": "b200", "hgx-h20": "hgx-h200", "gb200-nvl4": "gb200-nvl72", "rtx-4090": "rtx4090"}
"""The cluster file by which a table is predicted, where it is not called as the table's machine."""
NCCL_PERF = DATA.with_name("nccl_perf.csv")
"""From NVIDIA's aiconfigurator-core 0.12.0 (PyPI, Apache-2.0), systems/data/*/comm/nccl: half precision, the median of
the runs of a version."""
PERF_SOURCE = "NVIDIA aiconfigurator-core"
PERF_MACHINES = {
    "a100-sxm": "dgx-a100",
    "b200-sxm": "b200",
    "b300-sxm": "b200",
    "gb200": "gb200-nvl72",
    "gb300": "gb200-nvl72",
    "h100-sxm": "dgx-h100",
    "h200-sxm": "hgx-h200",
    "l40s": "8xl40s",
    "rtx-pro-6000-server": "8xrtx-pro-6000",
}
"""The cluster file by which each machine is predicted."""
LAUNCHED = 1.2
"""Times the shortest time of a table made by one process, from where on a time counts as that of the collective."""
SMALL = 64 << 10
"""Message bytes with which a table begins that says how long launching takes."""
BANDS = {
    "512 B to 64 KiB": (512, 64 << 10),
    "64 KiB to 8 MiB": (64 << 10, 8 << 20),
    "8 to 512 MiB": (8 << 20, (512 << 20) + 1),
}
SWEEPS = [DATA.with_name("gloo-2.json"), DATA.with_name("gloo-4.json")]
SOME_OPS = ("all_reduce", "all_gather", "all_to_all", "broadcast", "send")
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


def _tables(path: Path) -> Iterator[tuple[dict, str]]:
    """The tables of a file with the cluster that predicts each; none of machines that no cluster file speaks of."""
    known = known_clusters()
    for table in tomllib.loads(path.read_text(encoding="utf-8"))["table"]:
        name = CLUSTERS.get(table["cluster"], table["cluster"])
        if name in known:
            yield table, name


def unseen_rows(held_out: bool) -> Iterator[tuple[Row, bool]]:
    """Measured times of `UNSEEN` from 512 B to 512 MiB, and whether each shows how long launching takes."""
    for table, name in _tables(UNSEEN):
        if table.get("held_out", False) != held_out:
            continue
        bound = LAUNCHED * min(table["microseconds"]) if table["launch"] == "one process" else 0.0
        for size, microseconds in zip(table["bytes"], table["microseconds"], strict=True):
            if 512 <= size <= 512 << 20:
                launched = microseconds < bound and table["bytes"][0] <= SMALL
                yield _row(table, name, Cluster.load(name), size, microseconds * 1e-6), launched


def rows(leave_out: bool) -> Iterator[Row]:
    """All measured times from 512 B to 512 MiB."""
    for table, name in _tables(DATA):
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
    for op in OPS:
        if not (rows_of_op := [row for row in found if row.op == op]):
            continue
        print(f"{op:15}{'all machines':19}{_line(rows_of_op)}")
        for band, (low, high) in BANDS.items():
            if part := [row for row in rows_of_op if low <= row.size < high]:
                print(f"{'':15}{band:19}{_line(part)}")
        machines: dict[str, list[Row]] = defaultdict(list)
        for row in rows_of_op:
            machines[f"{row.cluster} {row.nodes} x {row.ranks_per_node}"].append(row)
        for machine, part in machines.items():
            print(f"{'':15}{machine:19}{_line(part)}")


def report_unseen() -> None:
    """Errors of tables that no cluster file has points of, and of the rows that show how long launching takes."""
    for held_out, title in (
        (False, "without points in a cluster file, but looked at"),
        (True, "held out: read after the last change to the mechanism, the cluster files and the ranges"),
    ):
        found = list(unseen_rows(held_out))
        print(f"\n{title}: median / 90th percentile of the error, 512 B to 512 MiB")
        report([row for row, launched in found if not launched])
        print("and where one process launches all ranks of a node, and that takes longer than the collective")
        for rows_of, part in (
            ("its times", [row for row, launched in found if launched]),
            ("all of these rows", [row for row, _ in found]),
        ):
            print(f"{rows_of:34}{_line(part)}")
        if held_out:
            several = [row for row, _ in found if row.nodes > 1]
            error = statistics.median(abs(row.ours / row.seconds - 1) for row in several)
            inside = statistics.mean(row.inside for row in several)
            print(beside_goal("held out, on several nodes: median error", error, len(several), most=0.25))
            print(beside_goal("held out, on several nodes: in range", inside, len(several), least=0.80))


def perf_rows(path: Path = NCCL_PERF) -> Iterator[tuple[Row, Row, bool]]:
    """Each time of a file of columns machine, library, op, ranks, bytes, microseconds: predicted without the points of
    its source, and with them, and whether a cluster file has times of that machine and library."""
    clusters = {
        name: (_without(Cluster.load(name), PERF_SOURCE), Cluster.load(name)) for name in PERF_MACHINES.values()
    }
    with path.open(encoding="utf-8", newline="") as lines:
        for each in csv.DictReader(lines):
            machine, name = each["machine"], PERF_MACHINES[each["machine"]]
            table = {"op": each["op"], "nodes": 1, "ranks_per_node": int(each["ranks"])}
            size, seconds = int(each["bytes"]), float(each["microseconds"]) * 1e-6
            label = f"{machine} {each['library']}"
            folder = f"{machine.replace('-', '_')}/comm/{each['library'].replace(' ', '/')}:"
            known = any(folder in one.source for one in clusters[name][1].measured)
            without, with_it = (
                _row(table, name, cluster, size, seconds)._replace(cluster=label) for cluster in clusters[name]
            )
            yield without, with_it, known


def report_perf() -> None:
    """Errors on `NCCL_PERF`, by machine and version and by op."""
    found = list(perf_rows())
    print("\n2, 4 and 8 GPUs of nine kinds: median / 90th percentile of the error, and in range")
    print(f"{'':40}{'n':>5}   {'left out':22}{'with points of the files':22}")
    for label in dict.fromkeys(row.cluster for row, _, _ in found):
        part = [each for each in found if each[0].cluster == label]
        print(f"{label:32}{'in a file' if part[0][2] else '':10}{_perf_line(part)}")
    for title, kinds in (
        ("H100", ("h100",)),
        ("A100", ("a100",)),
        ("switched", ("a100", "h", "b", "gb")),
        ("PCIe", ("l40s", "rtx")),
    ):
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            part = [each for each in found if each[0].op == op and each[0].cluster.startswith(kinds)]
            print(f"{title + ' ' + op:42}{_perf_line(part)}")
    print(f"{'all':42}{_perf_line(found)}")
    print(f"{'of versions and machines in no file':42}{_perf_line([each for each in found if not each[2]])}")


def _perf_line(part: list[tuple[Row, Row, bool]]) -> str:
    cells = [f"{len(part):4}"]
    for which in (0, 1):
        rows = [each[which] for each in part]
        cells.append(
            f"{_errors([(row.ours, row.seconds) for row in rows])}{statistics.mean(row.inside for row in rows):7.0%}"
        )
    return "   ".join(cells)


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


def report_sweep(path: Path) -> None:
    """Parts of a sweep predicted from its other parts."""
    sweep = CommSweep.load(path)
    sizes = sorted({point.message_bytes for point in _taken(sweep)})
    every_second, short = set(sizes[::2]), set(sizes[: len(sizes) // 2 + 1])
    name = f"{path.name}: {sweep.conditions.ranks} ranks"
    print(f"\n{name:34}{'n':>4}  {'ours':>12}  {'in range':>8}")
    _print_errors("even rounds from odd rounds", [_between_rounds(point) for point in _taken(sweep)])
    _print_errors("nothing measured", _predicted(sweep, lambda _: False))
    _print_errors("every second size from the others", _predicted(sweep, lambda p: p.message_bytes in every_second))
    alone = [found for op in sweep.ops for found in _predicted(sweep, lambda p, op=op: p.op != op)]
    _print_errors("each op from the other ops", alone)
    _print_errors("four ops from five", _predicted(sweep, lambda p: p.op in SOME_OPS))
    _print_errors(f"above {max(short) >> 10} KiB from below", _predicted(sweep, lambda p: p.message_bytes in short))


def _taken(sweep: CommSweep) -> list[SweepPoint]:
    """Each op once: in place where torch has nothing else."""
    return [point for point in sweep.points if point.in_place == (point.op in ("all_reduce", "broadcast", "reduce"))]


def _between_rounds(point: SweepPoint) -> tuple[float, float, None]:
    even, odd = (_half(point, first).quiet_seconds for first in (0, 1))
    return even, odd, None


def _half(point: SweepPoint, first: int) -> SweepPoint:
    return replace(point, rounds=point.rounds[first::2], quartiles=point.quartiles[first::2])


def _predicted(sweep: CommSweep, known: Callable[[SweepPoint], bool]) -> list[tuple[float, float, bool]]:
    """Predicted and measured seconds of the points that are not known, and whether the range holds them."""
    base = Cluster.load("gloo-local")
    part = CommSweep(sweep.conditions, [point for point in sweep.points if known(point)])
    cluster = calibrated(part, base).cluster if part.points else base
    found = []
    for point in _taken(sweep):
        if not known(point):
            time = collective_time(point.op, point.message_bytes, sweep.conditions.ranks, hardware=cluster)
            found.append((time.expected, point.quiet_seconds, point.quiet_seconds in time))
    return found


def _print_errors(title: str, found: Sequence[tuple[float, float, bool | None]]) -> None:
    inside = [within for *_, within in found if within is not None]
    held = f"{statistics.mean(inside):8.0%}" if inside else f"{'-':>8}"
    print(f"{title:34}{len(found):4}  {_errors([(a, b) for a, b, _ in found])}  {held}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", nargs="+", type=Path, help="only these, saved by dsexplore comm --save")
    sweeps = parser.parse_args().sweeps
    if not sweeps:
        for leave_out, title in ((False, "in sample"), (True, "left out: each source predicted without its points")):
            print(f"\n{title}: median / 90th percentile of the error, 512 B to 512 MiB")
            report(list(rows(leave_out)))
        report_unseen()
        report_perf()
    for path in sweeps or SWEEPS:
        report_sweep(path)


if __name__ == "__main__":
    main()
