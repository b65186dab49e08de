"""Whether several sweeps of one disk name one setting, and what each named setting gives where users meet it.

Each sweep starts anew, with another seed. Then every setting that was named moves tensors of two sizes by `aio_handle`,
read and written in turn with the default, each tensor to its end: rounds in changing order, as a disk drifts. Run from
the project's root, with nothing else running:

    python -m benchmarks.aio_reproducible DIRECTORY [--sweeps 6] [--seconds 60] [--size 1GiB]
        [--tensors 32MiB 512MiB] [--rounds 12] [--max-written 64GiB]
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from itertools import product

from benchmarks.aio_bench_file import random_file, unwind_on_signals
from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.buffers import Buffer, fill_random
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.sweeps.choice import Best
from dsexplore._internal.aio.sweeps.result import SweepResult
from dsexplore._internal.aio.sweeps.statistics import MATTERS, median, ratio_interval
from dsexplore._internal.aio.sweeps.sweeping import sweep
from dsexplore._internal.units import format_bytes, format_rate, parse_size

CONTROL = AioConfig()
_LEAST_SECONDS = 0.1
"""Small tensors are moved again and again for so long."""


def run_sweeps(args: argparse.Namespace) -> list[SweepResult]:
    """The sweeps one after another; each says what it names and with what it is tied."""
    results = []
    for seed in range(args.sweeps):
        result = sweep(
            args.directory,
            args.size,
            args.seconds,
            tensor=args.tensors,
            max_written=args.max_written,
            progress=False,
            seed=seed,
        )
        best = result.best()
        if not results:
            print(result.disk.label)
        results.append(result)
        print(f"sweep {seed + 1}, {result.elapsed:.0f} s, {format_bytes(result.bytes_written)} written: {best.config}")
        print(f"  {best.verdict()}\n  tied: {'; '.join(map(str, best.tied))}", flush=True)
    return results


def is_unsure(best: Best) -> bool:
    """Whether a sweep keeps the default for a doubt, or because rates scatter."""
    return best.config == CONTROL and best.fastest_ratio.value >= 1 + MATTERS


def rate_of(config: AioConfig, path: str, tensor: Buffer, operation: str) -> float:
    """Bytes per second of one handle that moves a tensor again and again."""
    with aio_handle.from_config(config) as handle:
        move = handle.sync_pread if operation == "read" else handle.sync_pwrite
        move(tensor, path)  # opens the queues
        moved, begun = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begun) < _LEAST_SECONDS or not moved:
            move(tensor, path)
            moved += tensor.nbytes
    return moved / seconds


def run_loops(args: argparse.Namespace, configs: list[AioConfig]) -> None:
    """What each setting gives in the user's loop, and that relative to the default in the same round."""
    ratios: dict[tuple[AioConfig, int, str], list[float]] = defaultdict(list)
    given: dict[tuple[AioConfig, int, str], list[float]] = defaultdict(list)
    with random_file(args.directory, max(args.tensors)) as path:
        tensors = {nbytes: fill_random(Buffer(nbytes)) for nbytes in args.tensors}
        for number in range(args.rounds):
            order = [CONTROL, *configs]
            random.Random(number).shuffle(order)
            for nbytes, operation in product(args.tensors, ("read", "write")):
                rates = {config: rate_of(config, path, tensors[nbytes], operation) for config in order}
                for config in order:
                    ratios[config, nbytes, operation].append(rates[config] / rates[CONTROL])
                    given[config, nbytes, operation].append(rates[config])
    for config, (nbytes, operation) in product([CONTROL, *configs], product(args.tensors, ("read", "write"))):
        key = config, nbytes, operation
        beside = "the default" if config == CONTROL else f"{ratio_interval(ratios[key])} × the default"
        rate = format_rate(median(given[key]))
        print(f"{config}: {operation} of {format_bytes(nbytes)} tensors {rate}, {beside}")


def main() -> None:
    """Sweep, and let what was named meet the default."""
    unwind_on_signals()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--sweeps", default=6, type=int)
    parser.add_argument("--seconds", default=60.0, type=float)
    parser.add_argument("--size", default="1GiB", type=parse_size)
    parser.add_argument("--tensors", default=[32 << 20, 512 << 20], type=parse_size, nargs="+")
    parser.add_argument("--rounds", default=12, type=int)
    parser.add_argument("--max-written", default="64GiB", type=parse_size)
    args = parser.parse_args()
    results = run_sweeps(args)
    answers = {result.best().config for result in results}
    ties = [set(result.best().tied) for result in results]
    common = set.intersection(*ties)
    unsure = sum(is_unsure(result.best()) for result in results)
    print(
        f"answers: {len(answers)}; the default is kept though another setting looked faster: {unsure} of {len(results)}"
    )
    print(f"settings that are tied with the fastest in each sweep: {len(common)}")
    if unsure == len(results):
        print("goal not shown: every sweep was too unsure to leave the default; try a quieter machine, or more seconds")
    elif len(answers) == 1 or answers <= common:
        print("goal met: one answer, or the same tie")
    else:
        print("goal MISSED: the sweeps name settings that are not tied in each of them")
    run_loops(args, sorted(answers - {CONTROL}))


if __name__ == "__main__":
    main()
