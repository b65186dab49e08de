"""What recording costs a program, beside torch's own tracers.

    python benchmarks/trace_overhead.py [--programs a b c] [--rounds 400] [--check]

Three programs: (a) 1,000 additions of small CPU tensors, which send nothing; (b) forward and backward of a Llama of
4 layers under tensor and sequence parallel on 4 simulated ranks, real CPU tensors; (c) the same on fake tensors.
Each runs untraced, under `record` (what `commtrace` opens) and, in every twentieth round, under torch's CommDebugMode
and torch's DebugMode, alternating; printed is the median ratio of CPU time to the untraced run of the same round, with
quartiles: of runs within an open recording, and of the first run after opening it, in which the recorder also meets and
describes the modules. The last column tells how near that is to a machine without neighbors: the ratio of the runs
that a tenth of all are faster than. A second untraced run in the same round tells how much a program differs from
itself, which may be more than recording costs. So what the goals are about, runs within an open recording, is measured
once more by two processes in `lockstep`, one traced while the other is not: below stands that median, with its 95 %
interval.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from alternating import SELDOM, Way, alternate, median_interval, ratios, spread, switching
from goals import verdict
from llama import TINY, Llama, apply_tensor_parallel, training_loss
from lockstep import Lockstep, ratios_of_turns, run_both
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._debug_mode import DebugMode

import dsexplore
from dsexplore._internal.capture.record import record

LATER = 3
"""Runs per round within an open recording."""
TIMEOUT = 3600.0
GOALS = {"a": 1.02, "b": 1.06, "c": 1.05}
OURS, AGAIN = "dsexplore", "untraced again"
WAYS: dict[str, Way] = {
    "untraced": nullcontext,
    AGAIN: nullcontext,
    OURS: record,
    "CommDebugMode": CommDebugMode,
    "DebugMode": DebugMode,
}


@contextmanager
def additions(lockstep: Lockstep | None) -> Iterator[Callable[[], None]]:
    """1,000 additions, at whose end the core is handed over."""
    x = torch.ones(8)

    def program() -> None:
        for _ in range(1000):
            torch.add(x, x)

    yield program


@contextmanager
def llama(lockstep: Lockstep | None, fake: bool = False) -> Iterator[Callable[[], None]]:
    """Forward and backward of the tensor-parallel Llama, at whose blocks the core is handed over."""
    with dsexplore.simulate(mesh="tp=4", fake=fake) as mesh:
        torch.manual_seed(0)
        model = Llama(TINY)
        apply_tensor_parallel(model, mesh)
        tokens = torch.randint(TINY.vocabulary, (1, TINY.sequence))
        if lockstep is not None:
            lockstep.hand_over_at(model.layers)

        def program() -> None:
            training_loss(model, tokens).backward()
            model.zero_grad()

        yield program


PROGRAMS = {
    "a": ("1,000 CPU adds", additions),
    "b": ("TP + SP Llama, 4 layers", llama),
    "c": ("the same, fake tensors", partial(llama, fake=True)),
}


def measure_turns(key: str, rounds: int, lockstep: Lockstep) -> list[tuple[bool, float]]:
    """Of each run of this process after the first one of its round, whether it was traced, and its CPU seconds."""
    runs = []
    with PROGRAMS[key][1](lockstep) as program, lockstep:
        program()  # warms caches up
        for number in range(rounds // 2 * 2):
            traced = (number + lockstep.number) % 2 == 1
            gc.collect()
            with record() if traced else nullcontext():
                lockstep.timed(program)
                runs += [(traced, lockstep.timed(program)) for _ in range(LATER)]
    return runs


def compare(key: str, rounds: int) -> bool:
    """Print one program's table; False where ours misses its goal."""
    title, prepared = PROGRAMS[key]
    with prepared(None) as program:
        again = frozenset({"CommDebugMode"})  # fails on a second run
        slow = frozenset({"CommDebugMode", "DebugMode"})
        runs = alternate(program, WAYS, rounds, LATER, anew=again, seldom=slow)
        with record() as trace:
            program()
        events = len(trace)
    medians = {name: found.medians() for name, found in runs.items()}
    fastest = {name: found.fastest_tenth() for name, found in runs.items()}
    untraced = 1e3 * statistics.median(medians["untraced"].values())
    print(f"({key}) {title}: {events} collectives, {untraced:.2f} ms untraced")
    first = ratios({name: found.first for name, found in runs.items()}, "untraced")
    later = ratios(medians, "untraced")
    for name in WAYS:
        undisturbed = fastest[name] / fastest["untraced"]
        now, begun = spread(later[name]), spread(first[name])
        print(f"    {name:<14} × {now}    first run × {begun}    fastest tenth × {undisturbed:6.3f}")
    ours = median_interval(in_lockstep(key, rounds))
    reached = verdict(ours, most=GOALS[key])
    print(f"    goal: {OURS} ≤ {GOALS[key]}: {ours} in lockstep: {reached}", flush=True)
    return reached != "MISSED"


def in_lockstep(key: str, rounds: int) -> list[float]:
    """A traced run's time over an untraced one's, of each turn of two processes."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--measure", key, "--lockstep"]
    return ratios_of_turns(run_both(command, TIMEOUT), LATER)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400, help="alternating rounds (default: %(default)s)")
    parser.add_argument("--programs", choices=PROGRAMS, nargs="+", default=list(PROGRAMS), help="default: all three")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a goal is missed")
    parser.add_argument("--measure", choices=PROGRAMS, help="one of the two processes of a program, printed as JSON")
    parser.add_argument("--lockstep", default="", help="of such a process: what `lockstep` appends")
    options = parser.parse_args()
    if options.rounds < 2 * SELDOM:
        parser.error(f"--rounds {options.rounds} gives torch's tracers fewer than 2 rounds: give {2 * SELDOM} or more")
    torch.set_num_threads(1)
    if options.measure:
        print(json.dumps(measure_turns(options.measure, options.rounds, Lockstep(options.lockstep))))
        return 0
    warnings.filterwarnings("ignore", message="Full backward hook is firing")  # CommDebugMode's, at every backward
    print(f"torch {torch.__version__}; median ratio of CPU time [quartiles], {options.rounds} alternating rounds")
    met = [compare(key, options.rounds) for key in options.programs]
    print(f"to open and close a recording, once: {switching(record, options.rounds):.1f} ms of CPU")
    return 1 if options.check and not all(met) else 0


if __name__ == "__main__":
    sys.exit(main())
