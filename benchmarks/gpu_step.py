"""How far predicted steps are off those of a GPU. Run: python benchmarks/gpu_step.py [--only WORD] [FILE.json]

The programs are those of `gpu_programs`: transformers' models on one GPU, as they are. On a machine that has one,
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
import statistics
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu_programs import PROGRAMS, Program

if TYPE_CHECKING:
    from dsexplore.cost import Range

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


def compared(name: str, found: dict[str, Any]) -> Compared:
    """A program's second step, predicted for a DGX H100, beside what was measured."""
    import dsexplore  # which machines that only measure may not have

    with (
        dsexplore.simulate(world_size=1, fake=True, device="cuda", gpu="h100"),
        dsexplore.commtrace(costs=True) as trace,
    ):
        step = PROGRAMS[name]()
        for _ in range(2):
            step()
            trace.step()
    prediction = trace.predict("dgx-h100", attention="cudnn")
    busy = sum(seconds for _, _, seconds in found["kernels"])
    times = (statistics.median(found["steps"]), busy, found["memory"])
    return Compared(name, prediction.step, prediction.compute, prediction.memory, *times)


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
    found = json.loads(options.file.read_text(encoding="utf-8"))
    print(f"measured on {found['gpu']} with torch {found['torch']}")
    rows = []
    for name in names:
        if name in found["programs"]:
            rows.append(compared(name, found["programs"][name]))
            print(rows[-1].line(), flush=True)
    busy = [row for row in rows if not row.waits_for_cpu]
    for what, errors in (
        ("step", [row.step.expected / row.measured_step - 1 for row in busy]),
        ("kernels", [row.compute.expected / row.measured_compute - 1 for row in rows]),
        ("memory", [row.memory / row.measured_memory - 1 for row in rows]),
    ):
        if errors:
            print(f"{what}: median error {statistics.median(map(abs, errors)):.1%} of {len(errors)} programs")
    print(f"in range: {sum(row.is_inside for row in rows)} of {len(rows)} steps")


if __name__ == "__main__":
    main()
