"""How far predicted steps are off those of a GPU. Run: python benchmarks/gpu_step.py [--only WORD] [FILE.json]

The programs are those of `gpu_programs` and `gpu_more_programs`: transformers' models on one GPU, as they are. On a
machine that has one,
``--measure FILE.json`` times their steps, reads the largest memory that their tensors took, and adds up the times of
their kernels by name; dsexplore need not be installed there. Without it, each program is run here on fake tensors, with
the CPU in the GPU's place, and its predicted step, time of kernels and memory stand beside what the file has.

Attention is predicted as cuDNN's, which the torch of the file takes. Goals, as for the steps that others published: the
median error of the step at most 15 %, of memory at most 10 %. Steps that wait for the CPU, whose kernels take less than
three quarters of them, are listed but count in no median: how fast a CPU launches kernels is not what is examined.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu_more_programs import PROGRAMS as MORE_PROGRAMS
from gpu_programs import PROGRAMS as FIRST_PROGRAMS
from gpu_programs import Program

if TYPE_CHECKING:
    from dsexplore import Trace
    from dsexplore._internal.cost.cluster import Cluster
    from dsexplore.cost import Range

PROGRAMS: Mapping[str, Program] = {**FIRST_PROGRAMS, **MORE_PROGRAMS}
DATA = Path(__file__).with_name("data") / "gpu_steps.json"
WARM_UP = 3
STEPS = 10


def measured(program: Program) -> dict[str, Any]:
    """What a program takes on this machine's GPU.

    Returns:
        ``steps``: seconds of each of `STEPS` steps; ``memory``: bytes, the most that tensors held in one of them;
        ``kernels``: of one further step, by name, how many ran and their seconds, the longest first.
    """
    step = program()
    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    memory = torch.cuda.max_memory_allocated()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    kernels = [[each.key, each.count, each.self_device_time_total * 1e-6] for each in profile.key_averages()]
    kernels.sort(key=lambda kernel: -kernel[2])
    return {"steps": seconds, "memory": memory, "kernels": [kernel for kernel in kernels if kernel[2] > 0]}


def measure(names: Iterable[str], file: Path) -> None:
    """Write what each program takes to a file, after each of them."""
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "programs": {},
    }
    for name in names:
        try:
            found["programs"][name] = measured(PROGRAMS[name])
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        else:
            each = found["programs"][name]
            print(
                f"{name:36} {statistics.median(each['steps']) * 1e3:8.2f} ms {each['memory'] / 2**30:6.2f} GiB",
                flush=True,
            )
        file.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
        gc.collect()
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Compared:
    """One program: seconds and bytes, predicted and measured.

    Attributes:
        step: predicted.
        compute: predicted time of the kernels.
        memory: predicted.
        measured_step: the median.
        measured_compute: the sum over the kernels of one step.
        measured_memory: at the peak.
    """

    name: str
    step: Range
    compute: Range
    memory: int
    measured_step: float
    measured_compute: float
    measured_memory: int

    @property
    def waits_for_cpu(self) -> bool:
        """Whether the kernels take less than three quarters of the measured step."""
        return self.measured_compute < 0.75 * self.measured_step

    @property
    def is_inside(self) -> bool:
        """Whether the measured step is in the predicted range."""
        return self.step.low <= self.measured_step <= self.step.high

    def line(self) -> str:
        """All of it as one line."""
        times = (
            f"{name} {ours.expected * 1e3:6.1f} of {theirs * 1e3:6.1f} ms {ours.expected / theirs - 1:+4.0%}"
            for name, ours, theirs in (
                ("step", self.step, self.measured_step),
                ("kernels", self.compute, self.measured_compute),
            )
        )
        memory = f"{self.memory / 2**30:5.1f} of {self.measured_memory / 2**30:5.1f} GiB"
        change = self.memory / self.measured_memory - 1
        notes = ("" if self.is_inside else ", out of range") + (", waits for the CPU" if self.waits_for_cpu else "")
        return f"{self.name:33} {'  '.join(times)}  {memory} {change:+4.0%}{notes}"


@dataclass(frozen=True)
class KernelKind:
    """A kind of kernels that move bytes.

    Attributes:
        kernels: what their names contain.
        ops: the ops that launch them; empty for all of the optimizer.
    """

    kernels: str
    ops: frozenset[str]


KERNEL_KINDS: Mapping[str, KernelKind] = {
    "casts": KernelKind(r"unrolled_elementwise_kernel<at::native::direct_copy|bfloat16_copy", frozenset({"_to_copy"})),
    "sums": KernelKind(r"reduce_kernel.*sum_functor", frozenset({"sum"})),
    "layer norms": KernelKind(r"_layer_norm_kernel", frozenset({"native_layer_norm"})),
    "layer norms, backward": KernelKind(r"GammaBeta|layer_norm_grad_input", frozenset({"native_layer_norm_backward"})),
    "gathers and scatters": KernelKind(
        r"scatter_gather|indexing_backward|_gather_kernel",
        frozenset({"index", "index_put", "gather", "scatter_add", "embedding", "embedding_dense_backward"}),
    ),
    "lists of tensors": KernelKind(r"multi_tensor_apply", frozenset()),
}


def moved(trace: Trace, found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """The bytes that a step's kernels of each kind move, and the seconds that they took."""
    import polars as pl  # which machines that only measure may not have

    kernels = trace.tables.kernels.filter(pl.col("step") == 1)
    each = {}
    for name, kind in KERNEL_KINDS.items():
        rows = kernels.filter(pl.col("op").is_in(kind.ops) if kind.ops else pl.col("phase") == "optimizer")
        size = rows.filter(~pl.col("compiled")).select(pl.sum("read_bytes") + pl.sum("written_bytes")).item()
        seconds = sum(seconds for kernel, _, seconds in found["kernels"] if re.search(kind.kernels, kernel))
        if size and seconds:
            each[name] = (float(size), seconds)
    return each


def compared(name: str, found: dict[str, Any], cluster: Cluster) -> tuple[Compared, dict[str, tuple[float, float]]]:
    """A program's second step, predicted for a cluster, beside what was measured; and what its kernels moved."""
    import dsexplore  # which machines that only measure may not have

    with (
        dsexplore.simulate(world_size=1, fake=True, hardware="h100"),
        dsexplore.commtrace(costs=True) as trace,
    ):
        step = PROGRAMS[name]()
        for _ in range(2):
            step()
            trace.step()
    prediction = trace.predict(cluster, attention="cudnn")
    busy = sum(seconds for _, _, seconds in found["kernels"])
    times = (statistics.median(found["steps"]), busy, found["memory"])
    row = Compared(name, prediction.step, prediction.compute, prediction.memory, *times)
    return row, moved(trace, found)


def print_medians(rows: list[Compared]) -> None:
    """Print how far the predictions of some programs are off."""
    busy = [row for row in rows if not row.waits_for_cpu]
    for what, errors in (
        ("step", [row.step.expected / row.measured_step - 1 for row in busy]),
        ("kernels", [row.compute.expected / row.measured_compute - 1 for row in rows]),
        ("memory", [row.memory / row.measured_memory - 1 for row in rows]),
    ):
        if errors:
            print(f"  {what}: median error {statistics.median(map(abs, errors)):.1%} of {len(errors)} programs")
    print(f"  in range: {sum(row.is_inside for row in rows)} of {len(rows)} steps")


def print_shares(each: Iterable[dict[str, tuple[float, float]]], cluster: Cluster) -> None:
    """Print the part of the bandwidth that plain copies reach at which kernels of each kind move their bytes."""
    sums: dict[str, list[tuple[float, float]]] = {}
    for one in each:
        for name, both in one.items():
            sums.setdefault(name, []).append(both)
    best = cluster.memory.bandwidth * cluster.memory.achievable
    for name, parts in sums.items():
        size, seconds = (sum(column) for column in zip(*parts, strict=True))
        print(f"  {name}: {size / seconds / best:.2f} of the bandwidth of plain copies, in {len(parts)} programs")


def main() -> None:
    """Measure, or print each prediction beside what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=DATA)
    parser.add_argument("--only", default="", help="programs whose name has this word")
    parser.add_argument("--measure", action="store_true", help="measure on this machine's GPU, and write FILE")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = [name for name in PROGRAMS if options.only in name]
    if options.measure:
        measure(names, options.file)
        return
    from dsexplore._internal.cost.cluster import Cluster

    found = json.loads(options.file.read_text(encoding="utf-8"))
    cluster = Cluster.load("hgx-h200" if "H200" in found["gpu"] else "dgx-h100")
    print(f"measured on {found['gpu']} with torch {found['torch']}, predicted for {cluster.title}")
    rows, bytes_moved = [], []
    for name in names:
        if name in found["programs"]:
            row, kinds = compared(name, found["programs"][name], cluster)
            rows.append(row)
            bytes_moved.append(kinds)
            print(row.line(), flush=True)
    for title, programs in (("the first programs", FIRST_PROGRAMS), ("the further ones", MORE_PROGRAMS)):
        print(title)
        print_medians([row for row in rows if row.name in programs])
    print("kernels that move bytes")
    print_shares(bytes_moved, cluster)


if __name__ == "__main__":
    main()
