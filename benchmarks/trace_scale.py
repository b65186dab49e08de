"""What recording costs at scale: a Llama-3-405B training step on up to 16,384 simulated ranks.

    python benchmarks/trace_scale.py [--ranks 64 1024 16384] [--rounds 3] [--layers 126] [--check]

126 layers of width 16,384 in bfloat16, tensor and sequence parallel 8 × FSDP2, one sequence of 8,192 tokens: forward,
backward and AdamW on fake tensors. Each measurement is a process of its own, so that peak memory is its own; three
kinds alternate:

* plain: torch alone, as a script would do it: a fake process group, the model made on meta, ``to_empty`` under a
  ``FakeTensorMode``;
* untraced: `dsexplore.simulate(…, fake=True)`, the model made as on real ranks;
* traced: the same under `record`, from opening the recording to its finished tables, then saved.

Printed are medians over the rounds; seconds of the step are wall time, and ratios are of CPU time, which neighbours on
the machine disturb less (the step runs on one thread). The price of recording is measured by one more process per
round, in which untraced and traced steps of one model take turns, six of each: a difference of a few percent drowns
between two processes, and mostly between two whole steps too, where a neighbour disturbs one of them for a second. So
these steps are timed in laps, one for each block's forward and one for its backward: the time of a step is the sum
over its laps of what each took on average in the fastest sixth of the steps of all rounds, as a neighbour can only
slow it down. Beside it stand what single rounds say, by the faster third of their steps, and what whole steps say.
What a step leaves to Python's garbage collector is collected before the next one begins.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from llama import (
    LLAMA_405B,
    Llama,
    Shape,
    apply_fully_shard,
    apply_tensor_parallel,
    sharded,
    training_loss,
)
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

TENSOR_PARALLEL = 8
KINDS = ("plain", "untraced", "traced")
TURNS = 6
TRACED_GOAL = 1.04
FILE_GOAL = 5_000_000


@dataclass(frozen=True)
class Measured:
    """One process's result."""

    build_seconds: float
    step_seconds: float
    step_cpu_seconds: float
    peak_bytes: int
    events: int = 0
    file_bytes: int = 0


class Training:
    """A sharded model, its optimizer and a batch."""

    def __init__(self, model: Llama, shape: Shape) -> None:
        self._model = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        self._tokens = torch.zeros(1, shape.sequence, dtype=torch.long)

    def step(self) -> None:
        training_loss(self._model, self._tokens).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def timed(prepare: Callable[[], Training], recording: Callable[[], AbstractContextManager[Any]]) -> Measured:
    """Build, then run one step, opening and closing the recording included."""
    began = time.perf_counter()
    training = prepare()
    built = time.perf_counter()
    cpu = time.process_time()
    with recording() as trace:
        training.step()
    finished, cpu = time.perf_counter(), time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    measured = Measured(built - began, finished - built, cpu, peak)
    if trace is None:
        return measured
    with tempfile.TemporaryDirectory() as folder:
        size = trace.save(Path(folder) / "step.parquet").stat().st_size
    return replace(measured, events=len(trace), file_bytes=size)


def measure_plain(ranks: int, shape: Shape) -> Measured:
    """Torch alone."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks // TENSOR_PARALLEL, TENSOR_PARALLEL), mesh_dim_names=("dp", "tp"))
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def prepare() -> Training:
        with torch.device("meta"):
            model = Llama(shape)
        apply_tensor_parallel(model, mesh["tp"])
        apply_fully_shard(model, mesh["dp"])
        mode.__enter__()
        model.to_empty(device="cpu")
        return Training(model, shape)

    try:
        return timed(prepare, nullcontext)
    finally:
        mode.__exit__(None, None, None)
        dist.destroy_process_group()


def measure_simulated(ranks: int, shape: Shape, traced: bool) -> Measured:
    """The tool's simulated world."""
    import dsexplore
    from dsexplore.capture.record import record

    with dsexplore.simulate(mesh=f"dp={ranks // TENSOR_PARALLEL},tp={TENSOR_PARALLEL}", fake=True) as mesh:

        def prepare() -> Training:
            return Training(sharded(shape, mesh), shape)

        return timed(prepare, record if traced else nullcontext)


class Laps:
    """Splits steps where a block's forward ends and where its backward begins.

    Args:
        blocks: of the model.
    """

    def __init__(self, blocks: Iterable[nn.Module]) -> None:
        self._marks: list[float] = []
        for block in blocks:
            block.register_forward_hook(self._mark_both)

    def _mark(self, *_: Any) -> None:
        self._marks.append(time.process_time())

    def _mark_both(self, _block: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        self._mark()
        output.register_hook(self._mark)

    def of(self, step: Callable[[], None], recording: Callable[[], AbstractContextManager[Any]]) -> list[float]:
        """CPU seconds of a step's laps; opening and closing the recording belong to the first and the last one."""
        self._marks.clear()
        self._mark()
        with recording():
            step()
        self._mark()
        return [end - begin for begin, end in pairwise(self._marks)]


def measure_turns(ranks: int, shape: Shape) -> dict[str, list[list[float]]]:
    """CPU seconds of the laps of untraced and of traced steps in turns."""
    import dsexplore
    from dsexplore.capture.record import record

    with dsexplore.simulate(mesh=f"dp={ranks // TENSOR_PARALLEL},tp={TENSOR_PARALLEL}", fake=True) as mesh:
        model = sharded(shape, mesh)
        training = Training(model, shape)
        training.step()
        laps = Laps(model.layers)
        ways: list[tuple[str, Callable[[], AbstractContextManager[Any]]]] = [
            ("untraced", nullcontext),
            ("traced", record),
        ]
        seconds: dict[str, list[list[float]]] = {name: [] for name, _ in ways}
        for number in range(TURNS):
            for name, recording in ways if number % 2 == 0 else reversed(ways):
                gc.collect()
                seconds[name].append(laps.of(training.step, recording))
        return seconds


def measure(kind: str, ranks: int, layers: int) -> Any:
    """One measurement, in this process, as JSON has it."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    shape = replace(LLAMA_405B, layers=layers)
    if kind == "turns":
        return measure_turns(ranks, shape)
    return asdict(measure_plain(ranks, shape) if kind == "plain" else measure_simulated(ranks, shape, kind == "traced"))


def measure_apart(kind: str, ranks: int, layers: int) -> Any:
    """One measurement, in a process of its own."""
    command = [sys.executable, __file__, "--measure", kind, "--ranks", str(ranks), "--layers", str(layers)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1800).stdout
    return json.loads(output.splitlines()[-1])


def compare(ranks: int, layers: int, rounds: int) -> bool:
    """Print one world's table; whether all goals are met."""
    sample: dict[str, list[Measured]] = {kind: [] for kind in KINDS}
    turns = []
    for number in range(rounds):
        turn = number % len(KINDS)
        for kind in KINDS[turn:] + KINDS[:turn]:
            sample[kind].append(Measured(**measure_apart(kind, ranks, layers)))
        turns.append(measure_apart("turns", ranks, layers))
    print(f"{ranks} ranks: dp {ranks // TENSOR_PARALLEL} × tp {TENSOR_PARALLEL}, {layers} layers, {rounds} rounds")
    print(f"    {'':<10} {'build s':>8} {'step s':>8} {'CPU s':>8} {'peak MiB':>9}")
    for kind, runs in sample.items():
        print(
            f"    {kind:<10} {_median(runs, 'build_seconds'):8.2f} {_median(runs, 'step_seconds'):8.2f} "
            f"{_median(runs, 'step_cpu_seconds'):8.2f} {_median(runs, 'peak_bytes') / 2**20:9.0f}"
        )
    found = {
        f"traced / untraced ≤ {TRACED_GOAL}": (
            [_price({name: [step for steps in turns for step in steps[name]] for name in turns[0]})],
            TRACED_GOAL,
        ),
        "untraced / plain ≤ 1": (_ratio(sample, "untraced", "plain"), 1.0),
        f"trace file of {sample['traced'][0].events} events, bytes ≤ {FILE_GOAL:,}": (
            [float(run.file_bytes) for run in sample["traced"]],
            FILE_GOAL,
        ),
    }
    for goal, (values, limit) in found.items():
        met = "met" if statistics.median(values) <= limit else "MISSED"
        print(f"    {goal}: {_spread(values)}  {met}")
    whole = [
        sum(traced) / sum(untraced)
        for steps in turns
        for traced, untraced in zip(steps["traced"], steps["untraced"], strict=True)
    ]
    single = [_price(steps) for steps in turns]
    print(f"    traced / untraced, by single rounds: {_spread(single)}")
    print(f"    traced / untraced, by whole steps: {_spread(whole)}", flush=True)
    return all(statistics.median(values) <= limit for values, limit in found.values())


def _price(steps: dict[str, list[list[float]]]) -> float:
    """A traced step's time over an untraced one's, of what `measure_turns` returns."""
    return _of_laps(steps["traced"]) / _of_laps(steps["untraced"])


def _of_laps(steps: list[list[float]]) -> float:
    """A step's time: the sum over its laps of the mean of each lap's fastest sixth, of two steps at least."""
    count = max(2, len(steps) // 6)
    return sum(statistics.mean(sorted(lap)[:count]) for lap in zip(*steps, strict=True))


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{statistics.median(values):.4g}  [{min(values):.4g}, {max(values):.4g}]"


def _median(runs: list[Measured], name: str) -> float:
    return statistics.median(getattr(run, name) for run in runs)


def _ratio(sample: dict[str, list[Measured]], kind: str, base: str) -> list[float]:
    """CPU seconds of a step over those of the same round."""
    return [a.step_cpu_seconds / b.step_cpu_seconds for a, b in zip(sample[kind], sample[base], strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 1024, 16384], help="world sizes, multiples of 8")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=LLAMA_405B.layers, help="default: %(default)s")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    parser.add_argument(
        "--measure", choices=(*KINDS, "turns"), help="run one measurement in this process, print it as JSON"
    )
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.ranks[0], options.layers)))
        return 0
    print(f"torch {torch.__version__}; medians; ratios of CPU time, median [least, most]")
    met = [compare(ranks, options.layers, options.rounds) for ranks in options.ranks]
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
