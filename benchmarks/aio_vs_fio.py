"""Our engines beside fio's libaio engine and DeepSpeed's handle: same file, block, depth, threads and kind of memory.

Runs of the two sides take turns, and each pair of neighbors gives a ratio, so that a drifting machine meets both.
Rates are ours over theirs: above 1 is faster. CPU is ours over theirs: below 1 is cheaper. Run from the project's
root, with nothing else running; root may let the kernel give fio huge pages:

    python -m benchmarks.aio_vs_fio DIRECTORY [--against fio deepspeed own-ring] [--modes ring tensor]
        [--operations read write] [--seconds 0.3] [--pairs 9] [--huge-pages] [--processors 1] [--add FILE]

A part at a time: ``--add`` keeps each row in a file as it is measured, and ``--report FILE`` prints them all with the
goals. Without huge pages for fio both sides use ordinary ones, and the table says so.

One request of 4 KiB at a time takes some 40 µs, of which the way from the disk's interrupt to the thread that waits is
a large part. Where a disk interrupts one processor only, as a virtual one does, that is 5 to 10 µs longer for a thread
on another processor, and where a thread lies is chance on either side. ``--processors`` keeps both sides on those given
(``/proc/interrupts`` names the disk's), so that they are compared and not their places.

How much of ordinary memory is contiguous is chance, too: a request is cut where the drive takes no more segments. On a
virtual disk that takes 254 of them, scattered pages of 4 KiB end at 1,016 KiB: 128 KiB × depth 32 was merged to 870 KiB
in one run, and to 1,660 KiB in the next, which was half as fast again. So each run in ring mode takes a new ring, as
each run of fio does. On huge pages there is no such chance.

``own-ring`` is our own engine in tensor mode beside itself in ring mode: what moving into one large buffer, with
every block cold in the processor's cache, costs whoever does it. At depth 1 fio cannot be made to pay it: its free
requests lie on a stack, so that the one in flight is always the same one, with the same memory. Held at depth 1 by
``--latency_target``, or by a ``--thinktime`` of 1 µs after each block, ``--iodepth=64`` moves 256 MiB through one of
its 64 blocks. So tensor mode beside fio is fair where depth × block × threads outgrows the cache; below that,
DeepSpeed's handle on the same tensor is the measure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Self

from benchmarks.aio_bench_file import random_file, unwind_on_signals
from benchmarks.goals import verdict
from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.backends.choose import ENGINES, loop_of
from dsexplore._internal.aio.buffers import fill_random
from dsexplore._internal.aio.disk import disk_of
from dsexplore._internal.aio.handle import aio_handle
from dsexplore._internal.aio.sweeps.fio_and_deepspeed import DeepSpeedHandle, run_fio, why_no_reference
from dsexplore._internal.aio.sweeps.measure import Bench
from dsexplore._internal.aio.sweeps.measurements import Mode, Operation
from dsexplore._internal.aio.sweeps.statistics import Interval, median, ratio_interval
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore._internal.units import parse_size

BLOCKS = (1 << 20, 128 << 10)
DEPTHS = (1, 8, 32)
THREADS = (1, 2)
GOALS = {
    ("fio", "ring", 1 << 20): 1.0,
    ("fio", "ring", 128 << 10): 1.0,
    ("fio", "ring", 4 << 10): 1.0,
    ("fio", "tensor", 1 << 20): 1.0,
    ("deepspeed", "tensor", 1 << 20): 1.0,
    ("deepspeed", "tensor", 128 << 10): 1.0,
    ("deepspeed", "tensor", 4 << 10): 1.0,
}
CPU_GOAL = 1.2
_OVERCOMMIT = Path("/proc/sys/vm/nr_overcommit_hugepages")

Run = Callable[[], tuple[float, float]]
"""One run: (bytes per second, processor milliseconds per GiB)."""


@dataclass(frozen=True)
class Row:
    """One comparison."""

    theirs: str
    backend: str
    mode: str
    operation: str
    config: AioConfig
    gb_s: float
    their_gb_s: float
    rate: Interval
    cpu: Interval
    cpu_ms_per_gib: float
    loop: str = "Python"
    """What kept our queue full."""

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Self:
        """The row that ``asdict`` gave."""
        intervals = {key: Interval(*kept[key]) for key in ("rate", "cpu")}
        return cls(**{**kept, "config": AioConfig(**kept["config"]), **intervals})

    @property
    def goal(self) -> float | None:
        """What the ratio of the rates should reach, if there is a goal for it."""
        return GOALS.get((self.theirs, self.mode, self.config.block_size)) if self.backend == "linux-aio" else None

    @property
    def verdict(self) -> str:
        """The goal, and whether it is reached; empty where there is none."""
        return "" if self.goal is None else f"goal {self.goal:.2f} {verdict(self.rate, least=self.goal)}"

    def __str__(self) -> str:
        return (
            f"{self.theirs:<9} {self.backend:<9} {self.mode:<6} {self.operation:<5} {self.config!s:<62} "
            f"{self.gb_s:6.2f} / {self.their_gb_s:6.2f} GB/s  rate {self.rate!s:<30} "
            f"CPU {self.cpu!s:<30} {self.cpu_ms_per_gib:6.1f} ms/GiB  loop in {self.loop}  {self.verdict}"
        )


def paired(ours: Run, theirs: Run, pairs: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Run both sides ``pairs`` times, the first side changing every time; one pair before warms both up."""
    mine, other = [], []
    for number in range(pairs + 1):
        first, second = (ours, theirs) if number % 2 else (theirs, ours)
        results = first(), second()
        if number:
            mine.append(results[0] if number % 2 else results[1])
            other.append(results[1] if number % 2 else results[0])
    return mine, other


def compare(names: tuple[str, str, str, str], config: AioConfig, ours: Run, theirs: Run, pairs: int) -> Row:
    """Measure one comparison; ``names`` are theirs, our backend, the mode and the operation."""
    mine, other = paired(ours, theirs, pairs)
    rates = [a[0] / b[0] for a, b in zip(mine, other, strict=True)]
    costs = [max(a[1], 1e-3) / max(b[1], 1e-3) for a, b in zip(mine, other, strict=True)]
    return Row(
        *names,
        config,
        median([rate for rate, _ in mine]) / 1e9,
        median([rate for rate, _ in other]) / 1e9,
        ratio_interval(rates),
        ratio_interval(costs),
        median([cost for _, cost in mine]),
        loop_of(names[1]),
    )


@contextmanager
def huge_pages_for_fio(wanted: bool) -> Iterator[str]:
    """What fio's memory is to be; lets the kernel give it huge pages meanwhile.

    Nothing is reserved: pages beyond the pool go back to the kernel as fio ends, however this program ends.
    """
    if not wanted:
        yield "mmap"
        return
    before = _OVERCOMMIT.read_text()
    _OVERCOMMIT.write_text(str(int(before) + 4096))
    try:
        yield "mmaphuge"
    finally:
        _OVERCOMMIT.write_text(before)


def configs(args: argparse.Namespace) -> Iterator[tuple[Operation, AioConfig]]:
    """What is compared, in turn."""
    for operation, block, depth, threads in product(args.operations, args.blocks, args.depths, args.threads):
        yield operation, AioConfig(block, depth, threads)


@contextmanager
def opened_bench(path: str, backend: str, mode: Mode, huge: bool, args: argparse.Namespace) -> Iterator[Bench]:
    """Our side, on the same kind of memory as theirs."""
    with ExitStack() as stack:
        source, written = TransferFile(path, write=False), TransferFile(path, write=True)
        stack.callback(source.close)
        stack.callback(written.close)
        bench = Bench(backend, source, args.size, mode=mode, write_target=written, huge=huge)
        stack.callback(bench.close)
        if mode == "tensor":
            fill_random(bench.buffer)
        yield bench


def beside_fio(path: str, iomem: str, args: argparse.Namespace) -> Iterator[Row]:
    """Each engine and mode beside fio, whose memory is always a ring, and new in each run."""
    huge = iomem == "mmaphuge"
    for backend, mode in product(args.backends, args.modes):
        with opened_bench(path, backend, mode, huge, args) as bench:
            for operation, config in configs(args):
                ours = own_run(bench, config, operation, args.seconds)
                if mode == "ring":
                    ours = run_in_new_memory(path, backend, config, operation, huge, args)
                theirs = fio_run(path, config, operation, iomem, args)
                yield compare(("fio", backend, mode, operation), config, ours, theirs, args.pairs)


def beside_own_ring(path: str, args: argparse.Namespace) -> Iterator[Row]:
    """Our engine in tensor mode beside itself in ring mode."""
    for backend in args.backends:
        with (
            opened_bench(path, backend, "tensor", True, args) as tensor,
            opened_bench(path, backend, "ring", True, args) as ring,
        ):
            for operation, config in configs(args):
                sides = (own_run(bench, config, operation, args.seconds) for bench in (tensor, ring))
                yield compare(("own-ring", backend, "tensor", operation), config, *sides, args.pairs)


def own_run(bench: Bench, config: AioConfig, operation: Operation, seconds: float) -> Run:
    """A slice of ours."""

    def run() -> tuple[float, float]:
        sample = bench.measure(config, operation, seconds)
        return sample.rate, sample.cpu_ms_per_gib

    return run


def run_in_new_memory(
    path: str, backend: str, config: AioConfig, operation: Operation, huge: bool, args: argparse.Namespace
) -> Run:
    """A slice of ours in a ring that is allocated for it."""

    def run() -> tuple[float, float]:
        with opened_bench(path, backend, "ring", huge, args) as bench:
            return own_run(bench, config, operation, args.seconds)()

    return run


def fio_run(path: str, config: AioConfig, operation: str, iomem: str, args: argparse.Namespace) -> Run:
    """A run of fio."""
    return lambda: run_fio(path, args.size, config, operation, args.seconds, iomem=iomem)


def beside_deepspeed(path: str, args: argparse.Namespace) -> Iterator[Row]:
    """Both handles on one tensor that DeepSpeed locked, put on huge pages."""
    for operation, config in configs(args):
        theirs = DeepSpeedHandle(config)
        tensor = theirs.new_tensor(args.size)
        with aio_handle.from_config(config) as handle:
            move = handle.sync_pread if operation == "read" else handle.sync_pwrite

            def ours(move: Callable[..., int] = move, tensor: Any = tensor) -> tuple[float, float]:
                begun, busy = time.perf_counter(), time.process_time()
                move(tensor, path)
                seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
                return tensor.nbytes / seconds, cpu * 1e3 * 2**30 / tensor.nbytes

            def other(
                theirs: DeepSpeedHandle = theirs, tensor: Any = tensor, op: str = operation
            ) -> tuple[float, float]:
                return theirs.run(path, tensor, op)

            yield compare(("deepspeed", "linux-aio", "tensor", operation), config, ours, other, args.pairs)
        theirs.free_tensor(tensor)


def measure(args: argparse.Namespace) -> list[Row]:
    """Measure and print each comparison that was asked for and can be made."""
    rows: list[Row] = []
    if args.processors:
        os.sched_setaffinity(0, args.processors)  # threads and programs that are started later inherit it
    with ExitStack() as stack:
        path = stack.enter_context(random_file(args.directory, args.size))
        iomem = stack.enter_context(huge_pages_for_fio(args.huge_pages))
        print(
            f"{disk_of(path).label}; Linux {platform.release()}; fio's memory: {iomem}; "
            f"on processors {sorted(os.sched_getaffinity(0))}"
        )
        makers: dict[str, Callable[[], Iterator[Row]]] = {
            "fio": lambda: beside_fio(path, iomem, args),
            "deepspeed": lambda: beside_deepspeed(path, args),
            "own-ring": lambda: beside_own_ring(path, args),
        }
        for name in args.against:
            reason = None if name == "own-ring" else why_no_reference(name)
            if reason is not None:
                print(f"{name} is left out: {reason}")
                continue
            for row in makers[name]():
                print(row, flush=True)
                rows.append(row)
                if args.add:
                    with args.add.open("a") as file:
                        file.write(f"{json.dumps(asdict(row))}\n")
    return rows


def report(rows: list[Row]) -> None:
    """Each goal with how far it is reached."""
    kinds: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        kinds[row.theirs, row.mode, row.config.block_size].append(row)
    for (theirs, mode, block), ours in kinds.items():
        rates, verdicts = [row.rate.value for row in ours], [row.verdict.split()[-1:] for row in ours]
        counts = ", ".join(f"{verdicts.count([word])} {word}" for word in ("met", "tied", "MISSED"))
        print(
            f"{theirs} {mode} {block >> 10} KiB: rate {min(rates):.3f}–{max(rates):.3f}, mean "
            f"{ratio_interval(rates)}; CPU {ratio_interval([row.cpu.value for row in ours])}, "
            f"{median([row.cpu_ms_per_gib for row in ours]):.1f} ms/GiB" + (f"; {counts}" if ours[0].goal else "")
        )
    beside = [row.cpu.value for row in rows if row.theirs == "deepspeed"]
    if beside:
        cpu = ratio_interval(beside)
        print(f"CPU beside DeepSpeed: {cpu}, goal at most {CPU_GOAL} {verdict(cpu, most=CPU_GOAL)}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?")
    parser.add_argument("--size", default="1GiB", type=parse_size)
    parser.add_argument("--seconds", default=0.3, type=float, help="of each run; DeepSpeed's move the whole size once")
    parser.add_argument("--pairs", default=9, type=int)
    parser.add_argument("--against", default=["fio", "deepspeed"], nargs="+", choices=("fio", "deepspeed", "own-ring"))
    parser.add_argument("--backends", default=["linux-aio"], nargs="+", choices=ENGINES)
    parser.add_argument("--modes", default=["ring", "tensor"], nargs="+", choices=("ring", "tensor"), help="beside fio")
    parser.add_argument("--operations", default=["read", "write"], nargs="+", choices=("read", "write"))
    parser.add_argument("--blocks", default=BLOCKS, type=parse_size, nargs="+")
    parser.add_argument("--depths", default=DEPTHS, type=int, nargs="+")
    parser.add_argument("--threads", default=THREADS, type=int, nargs="+")
    parser.add_argument("--huge-pages", action="store_true", help="for fio, while this runs (root)")
    parser.add_argument("--processors", type=int, nargs="+", help="that both sides run on; all of them if not given")
    parser.add_argument("--add", metavar="FILE", type=Path, help="keep the rows in FILE, one JSON object a line")
    parser.add_argument("--report", metavar="FILE", type=Path, help="measure nothing: print what FILE holds")
    args = parser.parse_args()
    if (args.directory is None) == (args.report is None):
        parser.error("give a directory to measure in, or --report FILE")
    return args


def main() -> None:
    """Measure a part, or print what all parts have given."""
    unwind_on_signals()
    args = parse()
    if args.report:
        rows = [Row.from_json(json.loads(line)) for line in args.report.read_text().splitlines()]
        print(*rows, sep="\n")
    else:
        rows = measure(args)
    report(rows)


if __name__ == "__main__":
    main()
