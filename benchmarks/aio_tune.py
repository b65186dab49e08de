"""How close a short sweep comes to the best of the whole grid, on the same disk.

The grid is measured in several interleaved passes, each in another order and each with the default beside every few
settings; a setting's worth is its median ratio to that default. Then several short sweeps run, and the setting that
each names meets the grid's best in a duel: rounds in changing order, as the best of many noisy medians is partly
luck. Beside them: the same for what each single pass of the grid would have named. Run from the project's root, with
nothing else running:

    python -m benchmarks.aio_tune DIRECTORY [--size 1GiB] [--seconds 30] [--runs 6] [--passes 5]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dsexplore.aio import search
from dsexplore.aio.buffers import Buffer
from dsexplore.aio.config import AioConfig
from dsexplore.aio.disk import disk_of
from dsexplore.aio.files import Target
from dsexplore.aio.handle import aio_handle
from dsexplore.aio.measure import Bench, fill_random
from dsexplore.aio.result import mix
from dsexplore.aio.scratch import Scratch
from dsexplore.aio.statistics import Interval, median, ratio_interval
from dsexplore.aio.sweeping import sweep
from dsexplore.units import parse_size

GOAL = 0.97
CONTROL = AioConfig()
PER_CONTROL = 6

Pass = dict[AioConfig, float]
"""The mixed rate of each setting as a ratio to the default's nearby."""


def measure_pass(bench: Bench, settings: list[AioConfig], slice_seconds: float, shuffle: random.Random) -> Pass:
    """One pass over the grid in a new order."""
    order = settings[:]
    shuffle.shuffle(order)
    ratios: Pass = {}
    for part in search.chunks(order, PER_CONTROL):
        rates = {config: mixed_rate(bench, config, slice_seconds) for config in [CONTROL, *part]}
        ratios |= {config: rate / rates[CONTROL] for config, rate in rates.items()}
    return ratios


def mixed_rate(bench: Bench, config: AioConfig, slice_seconds: float) -> float:
    """Reads and writes in equal parts, bytes per second."""
    reading = bench.measure(config, "read", slice_seconds).rate
    return mix({"read": reading, "write": bench.measure(config, "write", slice_seconds).rate}, 0.5)


@contextmanager
def opened_bench(args: argparse.Namespace) -> Iterator[Bench]:
    """A bench on a scratch file full of random data."""
    with ExitStack() as stack:
        scratch = stack.enter_context(Scratch(args.directory, args.size))
        with aio_handle() as handle:
            handle.sync_pwrite(fill_random(Buffer(args.size)), scratch.path)
        source, written = Target(scratch.path, write=False), Target(scratch.path, write=True)
        stack.callback(source.close)
        stack.callback(written.close)
        bench = Bench("linux-aio", source, args.size, write_target=written)
        stack.callback(bench.close)
        fill_random(bench.buffer)
        print(disk_of(scratch.path).label, flush=True)
        yield bench


def measure_grid(args: argparse.Namespace) -> list[Pass]:
    """All passes over the grid."""
    with opened_bench(args) as bench:
        settings = search.grid(axes_of(args), bench.fits)
        passes = []
        for number in range(args.passes):
            begun = time.monotonic()
            passes.append(measure_pass(bench, settings, args.slice, random.Random(number)))
            print(f"pass {number + 1}: {len(settings)} settings in {time.monotonic() - begun:.0f} s", flush=True)
        return passes


def duel(args: argparse.Namespace, best: AioConfig, others: list[AioConfig]) -> dict[AioConfig, Interval]:
    """Each setting's rate as a ratio to the grid's best, from rounds in which all of them ran."""
    ratios: dict[AioConfig, list[float]] = defaultdict(list)
    with opened_bench(args) as bench:
        for number in range(args.rounds):
            order = list({best, CONTROL, *others})
            random.Random(number).shuffle(order)
            rates = {config: mixed_rate(bench, config, args.slice) for config in order}
            for config, rate in rates.items():
                ratios[config].append(rate / rates[best])
    return {config: ratio_interval(shares) for config, shares in ratios.items()}


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
    parser.add_argument("--size", default="1GiB", type=parse_size)
    parser.add_argument("--seconds", default=30.0, type=float, help="of each sweep")
    parser.add_argument("--runs", default=6, type=int)
    parser.add_argument("--passes", default=5, type=int)
    parser.add_argument("--rounds", default=12, type=int, help="of the duel")
    parser.add_argument("--slice", default=0.12, type=float, help="seconds of one measurement of the grid")
    parser.add_argument("--modes", action="store_true", help="the grid over submit and event modes, too")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


def main() -> None:
    """Measure, sweep, and print each choice's worth."""
    args = parse()
    passes = measure_grid(args)
    by_setting: dict[AioConfig, list[float]] = defaultdict(list)
    for one in passes:
        for config, ratio in one.items():
            by_setting[config].append(ratio)
    worth = {config: median(ratios) for config, ratios in by_setting.items()}
    best = max(worth, key=lambda config: worth[config])
    print(f"best of the grid: {best}, {worth[best]:.3f} × the default")
    singles = [max(one, key=lambda config: one[config]) for one in passes]
    chosen = []
    for number in range(args.runs):
        begun = time.monotonic()
        result = sweep(args.directory, args.size, args.seconds, seed=number, **axes_of(args))  # type: ignore[arg-type]
        chosen.append(result.best().config)
        print(f"sweep {number + 1}: {chosen[-1]} in {time.monotonic() - begun:.0f} s", flush=True)
    shares = duel(args, best, [*chosen, *singles])
    print(f"the default reaches {shares[CONTROL]} of the grid's best")
    print("a single pass of the grid names: " + ", ".join(str(shares[config]) for config in singles))
    print("the sweeps name: " + ", ".join(str(shares[config]) for config in chosen))
    values = [shares[config].value for config in chosen]
    reached = sum(value >= GOAL for value in values)
    print(f"sweeps: {min(values):.3f}–{max(values):.3f}, {reached} of {len(values)} reach {GOAL}")
    if args.json:
        told = {"single_passes": [shares[c].value for c in singles], "sweeps": values}
        Path(args.json).write_text(json.dumps(told))


if __name__ == "__main__":
    main()
