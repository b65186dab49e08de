"""What recording costs at scale: a Llama-3-405B training step on up to 16,384 simulated ranks.

    python benchmarks/trace_scale.py [--ranks 64 1024 16384] [--rounds 3] [--layers 126] [--check]

126 layers of width 16,384 in bfloat16, tensor and sequence parallel 8 × FSDP2, one sequence of 8,192 tokens: forward,
backward and AdamW on fake tensors. Each measurement is a process of its own, so that peak memory is its own; three
kinds alternate:

* plain: torch alone, as a script would do it: a fake process group, the model made on meta, ``to_empty`` under a
  ``FakeTensorMode``;
* untraced: `dsexplore.simulate(…, fake=True)`, the model made as on real ranks;
* traced: the same under `record`, from opening the recording to its finished tables, then saved.

Printed are medians over the rounds; seconds of the step are wall time, and ratios are of CPU time, which neighbors on
the machine disturb less (the step runs on one thread). The price of recording, a few percent, drowns between two
processes, and mostly between two steps of one process too. So each round runs two more processes in `lockstep`, which
hand the core to each other at each block's forward and backward: while one is traced, the other is not, and with each
step they change places. Of two steps, in which both processes have run both ways, the price is the geometric mean of
the two ratios; the median over all rounds, with its 95 % interval, is compared with the goal. What a step leaves to
Python's garbage collector is collected before the next one begins.
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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from alternating import median_interval
from goals import verdict
from llama import (
    LLAMA_405B,
    Llama,
    Shape,
    apply_fully_shard,
    apply_tensor_parallel,
    sharded,
    training_loss,
)
from lockstep import Lockstep, ratios_of_turns, run_both
from torch._subclasses.fake_tensor import FakeTensorMode

TENSOR_PARALLEL = 8
KINDS = ("plain", "untraced", "traced")
TURNS = 4
"""In a turn each of the two processes runs two steps, a traced one and an untraced one."""
TIMEOUT = 1800.0
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
    from dsexplore._internal.capture.record import record

    with dsexplore.simulate(mesh=f"dp={ranks // TENSOR_PARALLEL},tp={TENSOR_PARALLEL}", fake=True) as mesh:

        def prepare() -> Training:
            return Training(sharded(shape, mesh), shape)

        return timed(prepare, record if traced else nullcontext)


def measure_turns(ranks: int, shape: Shape, lockstep: Lockstep) -> list[tuple[bool, float]]:
    """Of each step of this process, whether it was traced, and its CPU seconds, its recording opened and closed."""
    import dsexplore
    from dsexplore._internal.capture.record import record

    with dsexplore.simulate(mesh=f"dp={ranks // TENSOR_PARALLEL},tp={TENSOR_PARALLEL}", fake=True) as mesh:
        model = sharded(shape, mesh)
        training = Training(model, shape)
        training.step()

        lockstep.hand_over_at(model.layers)

        def step() -> None:
            with record() if traced else nullcontext():
                training.step()

        steps = []
        with lockstep:
            for number in range(2 * TURNS):
                traced = (number + lockstep.number) % 2 == 1
                gc.collect()
                steps.append((traced, lockstep.timed(step)))
        return steps


def measure(kind: str, ranks: int, layers: int, lockstep: str) -> Any:
    """One measurement, in this process, as JSON has it."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    shape = replace(LLAMA_405B, layers=layers)
    if lockstep:
        return measure_turns(ranks, shape, Lockstep(lockstep))
    return asdict(measure_plain(ranks, shape) if kind == "plain" else measure_simulated(ranks, shape, kind == "traced"))


def _command(kind: str, ranks: int, layers: int) -> list[str]:
    return [sys.executable, __file__, "--ranks", str(ranks), "--layers", str(layers), "--measure", kind]


def measure_apart(kind: str, ranks: int, layers: int) -> Measured:
    """One measurement, in a process of its own."""
    command = _command(kind, ranks, layers)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT).stdout
    return Measured(**json.loads(output.splitlines()[-1]))


def measure_prices(ranks: int, layers: int) -> list[float]:
    """A traced step's time over an untraced one's, of each turn of two processes in lockstep."""
    return ratios_of_turns(run_both([*_command("turns", ranks, layers), "--lockstep"], TIMEOUT))


def compare(ranks: int, layers: int, rounds: int) -> bool:
    """Print one world's table; whether all goals are met."""
    sample: dict[str, list[Measured]] = {kind: [] for kind in KINDS}
    prices: list[list[float]] = []
    for number in range(rounds):
        turn = number % len(KINDS)
        for kind in KINDS[turn:] + KINDS[:turn]:
            sample[kind].append(measure_apart(kind, ranks, layers))
        prices.append(measure_prices(ranks, layers))
    print(f"{ranks} ranks: dp {ranks // TENSOR_PARALLEL} × tp {TENSOR_PARALLEL}, {layers} layers, {rounds} rounds")
    print(f"    {'':<10} {'build s':>8} {'step s':>8} {'CPU s':>8} {'peak MiB':>9}")
    for kind, runs in sample.items():
        print(
            f"    {kind:<10} {_median(runs, 'build_seconds'):8.2f} {_median(runs, 'step_seconds'):8.2f} "
            f"{_median(runs, 'step_cpu_seconds'):8.2f} {_median(runs, 'peak_bytes') / 2**20:9.0f}"
        )
    price = median_interval([price for of_round in prices for price in of_round])
    reached = [verdict(price, most=TRACED_GOAL)]
    print(f"    traced / untraced ≤ {TRACED_GOAL}: {price}: {reached[0]}")
    found = {
        "untraced / plain ≤ 1": (_ratio(sample, "untraced", "plain"), 1.0),
        f"trace file of {sample['traced'][0].events} events, bytes ≤ {FILE_GOAL:,}": (
            [float(run.file_bytes) for run in sample["traced"]],
            FILE_GOAL,
        ),
    }
    for goal, (values, limit) in found.items():
        reached.append("met" if statistics.median(values) <= limit else "MISSED")
        print(f"    {goal}: {_spread(values)}: {reached[-1]}")
    single = ", ".join(f"{statistics.median(of_round):.4g}" for of_round in prices)
    print(f"    traced / untraced, medians of single rounds: {single}", flush=True)
    return "MISSED" not in reached


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
    parser.add_argument("--lockstep", default="", help="of the two processes of turns: what `lockstep` appends")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.ranks[0], options.layers, options.lockstep)))
        return 0
    print(f"torch {torch.__version__}; medians; ratios of CPU time, median [least, most]")
    met = [compare(ranks, options.layers, options.rounds) for ranks in options.ranks]
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
