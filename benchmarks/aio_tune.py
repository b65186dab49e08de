"""How close a short sweep comes to the best of the whole grid, on the same disk.

The grid is measured in several interleaved passes, each in another order and each with the default beside every few
settings; a setting's worth is its median ratio to that default. Then several short sweeps run, and the setting that
each names meets the grid's best in a duel: rounds in changing order, as the best of many noisy medians is partly
luck. Beside them: the same for what each single pass of the grid would have named. Run from the project's root, with
nothing else running:

    python -m benchmarks.aio_tune DIRECTORY STATE [--size 1GiB] [--passes 5] [--seconds 30] [--runs 6] [--rounds 24]

What was measured is kept in the file STATE, so that the parts may run one by one (``--passes 5 --runs 0 --rounds 0``,
then ``--runs 6 --rounds 0``, then the rest): each call measures what is still missing, and the last one prints.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.aio_bench_file import random_file, unwind_on_signals
from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.buffers import fill_random
from dsexplore._internal.aio.disk import disk_of
from dsexplore._internal.aio.sweeps import search
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import mix
from dsexplore._internal.aio.sweeps.statistics import median, ratio_interval
from dsexplore._internal.aio.sweeps.sweeping import sweep
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore._internal.units import parse_size

GOAL = 0.97
CONTROL = AioConfig()
PER_CONTROL = 6

Ratios = dict[AioConfig, float]
"""The mixed rate of each setting as a ratio to another's nearby."""


@dataclass
class State:
    """What was measured so far."""

    passes: list[Ratios] = field(default_factory=list)
    """Each pass over the grid: ratios to the default."""
    chosen: list[tuple[AioConfig, float]] = field(default_factory=list)
    """What each sweep named, and the seconds it took."""
    rounds: list[Ratios] = field(default_factory=list)
    """Each round of the duel: ratios to the grid's best."""

    @classmethod
    def load(cls, path: Path) -> Self:
        """What a file holds; nothing if there is none."""
        if not path.exists():
            return cls()
        kept = json.loads(path.read_text())
        chosen = [(AioConfig(**config), seconds) for config, seconds in kept["chosen"]]
        return cls(_ratios(kept["passes"]), chosen, _ratios(kept["rounds"]))

    def save(self, path: Path) -> None:
        """Write it all, after each step."""
        kept = {
            "passes": [[[asdict(config), ratio] for config, ratio in one.items()] for one in self.passes],
            "chosen": [[asdict(config), seconds] for config, seconds in self.chosen],
            "rounds": [[[asdict(config), ratio] for config, ratio in one.items()] for one in self.rounds],
        }
        path.write_text(json.dumps(kept))

    def best(self) -> tuple[AioConfig, float]:
        """The grid's best and its ratio to the default, medians over the passes."""
        ratios: dict[AioConfig, list[float]] = defaultdict(list)
        for one in self.passes:
            for config, ratio in one.items():
                ratios[config].append(ratio)
        worth = {config: median(values) for config, values in ratios.items()}
        best = max(worth, key=lambda config: worth[config])
        return best, worth[best]

    def singles(self) -> list[AioConfig]:
        """What each pass alone would have named."""
        return [max(one, key=lambda config: one[config]) for one in self.passes]


def _ratios(kept: list[Any]) -> list[Ratios]:
    return [{AioConfig(**config): ratio for config, ratio in one} for one in kept]


def measure_pass(bench: Bench, settings: list[AioConfig], seconds: float, shuffle: random.Random) -> Ratios:
    """One pass over the grid in a new order."""
    order = settings[:]
    shuffle.shuffle(order)
    ratios: Ratios = {}
    for part in search.chunks(order, PER_CONTROL):
        rates = {config: mixed_rate(bench, config, seconds) for config in [CONTROL, *part]}
        ratios |= {config: rate / rates[CONTROL] for config, rate in rates.items()}
    return ratios


def mixed_rate(bench: Bench, config: AioConfig, seconds: float) -> float:
    """Reads and writes in equal parts, bytes per second."""
    reading = bench.measure(config, "read", seconds).rate
    return mix({"read": reading, "write": bench.measure(config, "write", seconds).rate}, 0.5)


@contextmanager
def opened_bench(args: argparse.Namespace) -> Iterator[Bench]:
    """A bench on a scratch file full of random data."""
    with ExitStack() as stack:
        path = stack.enter_context(random_file(args.directory, args.size))
        source, written = TransferFile(path, write=False), TransferFile(path, write=True)
        stack.callback(source.close)
        stack.callback(written.close)
        bench = Bench("linux-aio", source, args.size, write_target=written)
        stack.callback(bench.close)
        fill_random(bench.buffer)
        print(disk_of(path).label, flush=True)
        yield bench


def measure_grid(args: argparse.Namespace, state: State) -> None:
    """The passes over the grid that are still missing."""
    if len(state.passes) >= args.passes:
        return
    with opened_bench(args) as bench:
        settings = search.grid(axes_of(args), bench.fits)
        while len(state.passes) < args.passes:
            begun, number = time.monotonic(), len(state.passes)
            state.passes.append(measure_pass(bench, settings, args.slice, random.Random(number)))
            state.save(args.state)
            print(f"pass {number + 1}: {len(settings)} settings in {time.monotonic() - begun:.0f} s", flush=True)


def run_sweeps(args: argparse.Namespace, state: State) -> None:
    """The sweeps that are still missing."""
    while len(state.chosen) < args.runs:
        begun, number = time.monotonic(), len(state.chosen)
        result = sweep(args.directory, args.size, args.seconds, seed=number, **axes_of(args))  # type: ignore[arg-type]
        state.chosen.append((result.best().config, time.monotonic() - begun))
        state.save(args.state)
        if args.keep:
            result.save(args.keep / f"sweep{number}.json")
        print(f"sweep {number + 1}: {state.chosen[-1][0]} in {state.chosen[-1][1]:.0f} s", flush=True)


def run_duel(args: argparse.Namespace, state: State) -> None:
    """The rounds of the duel that are still missing: all that were named, in changing order."""
    if len(state.rounds) >= args.rounds:
        return
    best = state.best()[0]
    every = list({best, CONTROL, *state.singles(), *(config for config, _ in state.chosen)})
    with opened_bench(args) as bench:
        while len(state.rounds) < args.rounds:
            random.Random(len(state.rounds)).shuffle(every)
            rates = {config: mixed_rate(bench, config, args.slice) for config in every}
            state.rounds.append({config: rate / rates[best] for config, rate in rates.items()})
            state.save(args.state)


def report(state: State) -> None:
    """Each choice's worth beside the grid's best."""
    best, worth = state.best()
    print(f"best of the grid in {len(state.passes)} passes: {best}, {worth:.3f} × the default")
    shares = {config: ratio_interval([one[config] for one in state.rounds]) for config in state.rounds[0]}
    print(f"the default reaches {shares[CONTROL]} of the grid's best")
    for number, config in enumerate(state.singles(), 1):
        print(f"pass {number} alone names {config}: {shares[config]}")
    for number, (config, seconds) in enumerate(state.chosen, 1):
        print(f"sweep {number} names {config} in {seconds:.0f} s: {shares[config]}")
    values = [shares[config].value for config, _ in state.chosen]
    reached = sum(value >= GOAL for value in values)
    print(f"sweeps: {min(values):.3f}–{max(values):.3f}, {reached} of {len(values)} reach {GOAL}")


def axes_of(args: argparse.Namespace) -> dict[str, tuple[object, ...]]:
    """The grid: block sizes, depths and threads; with --modes also both ways of submitting and reaping."""
    axes = dict(search.AXES)
    if not args.modes:
        axes |= {"single_submit": (False,), "overlap_events": (True,)}
    return axes


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("state", type=Path, help="the file that keeps what was measured")
    parser.add_argument("--size", default="1GiB", type=parse_size)
    parser.add_argument("--seconds", default=30.0, type=float, help="of each sweep")
    parser.add_argument("--runs", default=6, type=int)
    parser.add_argument("--passes", default=5, type=int)
    parser.add_argument("--rounds", default=24, type=int, help="of the duel")
    parser.add_argument("--slice", default=0.06, type=float, help="seconds of one measurement of the grid")
    parser.add_argument("--modes", action="store_true", help="the grid over submit and event modes, too")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="save each sweep's result there")
    return parser.parse_args()


def main() -> None:
    """Measure what is missing; print each choice's worth when all is there."""
    unwind_on_signals()
    args = parse()
    state = State.load(args.state)
    measure_grid(args, state)
    run_sweeps(args, state)
    run_duel(args, state)
    if state.rounds:
        report(state)


if __name__ == "__main__":
    main()
