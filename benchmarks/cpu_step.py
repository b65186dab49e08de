"""How far predicted steps on local ranks are off measured ones. Run: python benchmarks/cpu_step.py [--ranks 2 4]

A small Llama is trained on CPU ranks with gloo, under tensor parallelism, FSDP2 and DDP. The very ranks do three things
in turn: they measure their collectives, as `dsexplore.calibrate` does; they run a step whose group sends nothing, which
is what the step computes; and the real step, with a barrier before each. All ranks compute at the same time in both, so
that they share the processors alike. The step is then traced in a simulated world, and predicted from the calibration
and the measured compute.

A step's time is the slowest rank's, of a turn's rounds that which a quarter undercut, and of the turns the quietest, as
it is for collectives. Printed are the predicted and the measured step, what is exposed in both, and the modules with
most of it. Measured as exposed is how long traced steps waited for their collectives, which includes waiting for a
rank that is late.

Goal: each step within 20 % of what is measured.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep
from dsexplore._internal.cost.collectives.calibrate import calibrated
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_seconds
from dsexplore._internal.worlds import demo
from dsexplore.cost import Cluster, beside, with_measured_compute

STYLES = ("tp", "fsdp2", "ddp")
SHAPE = demo.Shape(layers=4, dim=512, heads=8, kv_heads=4, hidden=1536, vocabulary=4096)
BATCH, SEQUENCE = 2, 128
OPS = ("all_reduce", "all_gather", "reduce_scatter")
LARGEST = "16MiB"
TRACED = 4
"""Real steps that are traced, of which the first does not count."""
MODULES = 4
"""Modules that are named, with the most that is exposed."""


def build(style: str, mesh: DeviceMesh, silent: bool = False) -> Callable[[], None]:
    """A function that trains one step.

    Args:
        style: one of `STYLES`.
        mesh: of one axis.
        silent: whether the mesh's group sends nothing.
    """
    torch.manual_seed(0)
    model: nn.Module = demo.Llama(SHAPE)
    if style == "tp":
        demo.shard_tensors(model, mesh)  # type: ignore[arg-type] # it is a Llama
    elif style == "fsdp2":
        demo.shard_parameters(model, mesh)  # type: ignore[arg-type] # likewise
    elif silent:
        model = DistributedDataParallel(model, process_group=mesh.get_group(), init_sync=False)
        model.register_comm_hook(None, lambda _state, bucket: _done(bucket.buffer()))
    else:
        model = DistributedDataParallel(model, process_group=mesh.get_group())
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(SHAPE.vocabulary, (BATCH, SEQUENCE + 1))

    def step() -> None:
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _done(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future that has its value already."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future


def traced(style: str, ranks: int) -> Trace:
    """A step of one of so many simulated ranks, with what it computes; the optimizer's state is there already."""
    with (
        dsexplore.simulate(mesh={"ranks": ranks}, fake=True, hardware="cpu") as mesh,
        dsexplore.commtrace(costs=True) as trace,
    ):
        step = build(style, mesh)
        for _ in range(2):
            step()
            trace.step()
    return trace


class Measured(NamedTuple):
    """What one style took on the ranks.

    Attributes:
        silent: seconds of a step without communication, in each turn.
        real: seconds of a real step, likewise.
        trace: of some real steps, with times.
    """

    silent: list[float]
    real: list[float]
    trace: Trace


def on_rank(styles: Sequence[str], turns: int, rounds: int) -> tuple[CommSweep, dict[str, Measured]]:
    """On a rank: its collectives, and what each style took."""
    import torch.testing._internal.distributed.fake_pg  # noqa: F401 # registers the backend that sends nothing

    warnings.simplefilter("ignore")
    real = dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
    nothing = DeviceMesh.from_group(dist.new_group(backend="fake"), "cpu", mesh_dim_names=("ranks",))
    steps = {style: (build(style, nothing, silent=True), build(style, real)) for style in styles}
    for both in steps.values():
        for step in both * 2:
            step()
    sweeps, times = [], {style: Measured([], [], _traced_ranks(steps[style][1])) for style in styles}
    for _ in range(turns):
        sweeps.append(dsexplore.comm.sweep(ops=OPS, smallest="1KiB", largest=LARGEST, factor=4, rounds=1))
        for style, both in steps.items():
            pairs = [[_slowest(step) for step in both] for _ in range(rounds)]
            for seconds, of_kind in zip(times[style], zip(*pairs, strict=True), strict=False):
                seconds.append(statistics.quantiles(of_kind, n=4)[0])
    return _joined(sweeps), times


def _traced_ranks(step: Callable[[], None]) -> Trace:
    """Some steps of this rank with times."""
    with dsexplore.commtrace() as trace:
        for _ in range(TRACED):
            dist.barrier()
            step()
            trace.step()
    return trace


def _joined(sweeps: Sequence[CommSweep]) -> CommSweep:
    """One sweep of all their rounds."""
    points = [
        replace(
            same[0],
            rounds=tuple(seconds for point in same for seconds in point.rounds),
            quartiles=tuple(seconds for point in same for seconds in point.quartiles),
        )
        for same in zip(*(one.points for one in sweeps), strict=True)
    ]
    return CommSweep(sweeps[0].conditions, points)


def _slowest(step: Callable[[], None]) -> float:
    """Seconds of a step on the slowest rank."""
    dist.barrier()
    began = time.perf_counter()
    step()
    seconds = torch.tensor([time.perf_counter() - began])
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item()


def report(style: str, ranks: int, measured: Measured, cluster: Cluster) -> float:
    """Print a style beside what was predicted for it.

    Returns:
        predicted to measured.
    """
    trace = traced(style, ranks)
    computing, step = min(measured.silent), min(measured.real)
    prediction = trace.predict(with_measured_compute(cluster, trace, computing))
    ours = prediction.step
    print(
        f"{style:6} {ranks} ranks: predicted {ours}, measured {format_seconds(step)}: {ours.expected / step - 1:+.0%}"
        f" ({'in' if step in ours else 'out of'} range; without communication {format_seconds(computing)};"
        f" turns of the real step: {', '.join(map(format_seconds, measured.real))})",
        flush=True,
    )
    frame = beside(prediction, measured.trace).filter(pl.col("exposed") + pl.col("exposed_measured") > 0)
    stood = frame["exposed_measured"].sum()
    print(f"  exposed: predicted {prediction.exposed}, traced {format_seconds(stood)}")
    for row in frame.sort("exposed", descending=True).head(MODULES).iter_rows(named=True):
        print(
            f"    {row['module'] or '(none)':30} {row['phase']:9} predicted {format_seconds(row['exposed']):>8}"
            f"  traced {format_seconds(row['exposed_measured']):>8}"
        )
    return ours.expected / step


def main() -> None:
    """Measure, predict, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=STYLES)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8, help="of each turn")
    options = parser.parse_args()
    errors = []
    for ranks in options.ranks:
        ran = dsexplore.run_ranks(on_rank, ranks, args=(options.styles, options.turns, options.rounds), timeout=1800)
        sweep, measured = ran.values[0]
        cluster = calibrated(sweep, Cluster.load("gloo-local")).cluster
        errors += [abs(report(style, ranks, measured[style], cluster) - 1) for style in options.styles]
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    print(f"largest error {max(errors):.0%}, median {statistics.median(errors):.0%}; {load}")


if __name__ == "__main__":
    main()
