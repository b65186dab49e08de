"""Our engines beside fio's libaio engine and DeepSpeed's handle: same file, block, depth, threads and kind of memory.

Runs of the two sides take turns, and each pair of neighbours gives a ratio, so that a drifting machine meets both.
Rates are ours over theirs: above 1 is faster. CPU is ours over theirs: below 1 is cheaper. Run from the project's
root, with nothing else running; root may let it reserve huge pages for fio:

    python -m benchmarks.aio_vs_fio DIRECTORY [--size 1GiB] [--seconds 1] [--pairs 7] [--reserve-huge-pages]

Without huge pages for fio, both sides use ordinary ones, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from dsexplore.aio.backends.choose import ENGINES, why_not
from dsexplore.aio.buffers import Buffer
from dsexplore.aio.config import AioConfig
from dsexplore.aio.disk import disk_of
from dsexplore.aio.files import Target
from dsexplore.aio.handle import aio_handle
from dsexplore.aio.measure import Bench, Mode, Operation, fill_random
from dsexplore.aio.references import DeepSpeedHandle, run_fio, why_no_reference
from dsexplore.aio.scratch import Scratch
from dsexplore.aio.statistics import Interval, median, ratio_interval
from dsexplore.units import parse_size

BLOCKS = (1 << 20, 128 << 10)
DEPTHS = (1, 8, 32)
THREADS = (1, 2)
GOALS = {("ring", 1 << 20): 1.0, ("ring", 128 << 10): 0.95, ("tensor", 1 << 20): 0.95, ("deepspeed", 1 << 20): 1.0}
CPU_GOAL = 1.2
_RESERVED = Path("/proc/sys/vm/nr_hugepages")

Run = Callable[[], tuple[float, float]]
"""One run: (bytes per second, processor milliseconds per GiB)."""


@dataclass
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

    @property
    def goal(self) -> float | None:
        """What the ratio of the rates should reach, if there is a goal for it."""
        if self.backend != "linux-aio" or self.config.single_submit:
            return None
        kind = "deepspeed" if self.theirs == "deepspeed" else self.mode
        return GOALS.get((kind, self.config.block_size))

    def __str__(self) -> str:
        goal = (
            "" if self.goal is None else f"goal {self.goal:.2f} {'met' if self.rate.value >= self.goal else 'MISSED'}"
        )
        return (
            f"{self.theirs:<9} {self.backend:<9} {self.mode:<6} {self.operation:<5} {self.config!s:<62} "
            f"{self.gb_s:6.2f} / {self.their_gb_s:6.2f} GB/s  rate {self.rate!s:<30} "
            f"CPU {self.cpu!s:<30} {self.cpu_ms_per_gib:6.1f} ms/GiB  {goal}"
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
    )


@contextmanager
def huge_pages_for_fio(reserve: bool) -> Iterator[bool]:
    """Whether fio gets huge pages; reserves them meanwhile if asked and allowed."""
    wanted = max(BLOCKS) * max(DEPTHS) * max(THREADS) // (2 << 20) + 8
    before = int(_RESERVED.read_text()) if _RESERVED.exists() else 0
    if reserve:
        _RESERVED.write_text(str(before + wanted))
    try:
        free = int(Path("/proc/meminfo").read_text().split("HugePages_Free:")[1].split()[0])
        yield free >= wanted - 8
    finally:
        if reserve:
            _RESERVED.write_text(str(before))


def beside_fio(path: str, size: int, args: argparse.Namespace, huge: bool) -> Iterator[Row]:
    """Each engine in ring mode, and linux-aio in tensor mode, beside fio."""
    backends = [name for name in ENGINES if why_not(name) is None]
    if not args.all_backends:
        backends = ["linux-aio"]
    cases: list[tuple[str, Mode]] = [*((name, "ring") for name in backends), ("linux-aio", "tensor")]
    for (backend, mode), operation in product(cases, args.operations):
        for block, depth, threads in product(BLOCKS, args.depths, THREADS):
            config = AioConfig(block, depth, threads)
            with ExitStack() as stack:
                source, written = Target(path, write=False), Target(path, write=True)
                stack.callback(source.close)
                stack.callback(written.close)
                bench = Bench(backend, source, size, mode=mode, write_target=written)
                stack.callback(bench.close)
                if mode == "tensor":
                    fill_random(bench.buffer)
                elif not huge:
                    bench._arena = fill_random(Buffer(config.bytes_in_flight, huge=False))
                iomem = "mmaphuge" if huge else "mmap"
                ours = own_run(bench, config, operation, args.seconds)
                theirs = fio_run(path, size, config, operation, args.seconds, iomem)
                yield compare(("fio", backend, mode, operation), config, ours, theirs, args.pairs)


def own_run(bench: Bench, config: AioConfig, operation: Operation, seconds: float) -> Run:
    """A slice of ours."""

    def run() -> tuple[float, float]:
        sample = bench.measure(config, operation, seconds)
        return sample.rate, sample.cpu_ms_per_gib

    return run


def fio_run(path: str, size: int, config: AioConfig, operation: str, seconds: float, iomem: str) -> Run:
    """A run of fio."""
    return lambda: run_fio(path, size, config, operation, seconds, iomem=iomem)


def beside_deepspeed(path: str, size: int, args: argparse.Namespace) -> Iterator[Row]:
    """Both handles on one tensor that DeepSpeed locked, put on huge pages."""
    import time

    for operation, block, depth, threads in product(args.operations, BLOCKS, args.depths, THREADS):
        config = AioConfig(block, depth, threads)
        theirs = DeepSpeedHandle(config)
        tensor = theirs.new_tensor(size)
        with aio_handle.from_config(config) as handle:
            move = handle.sync_pread if operation == "read" else handle.sync_pwrite

            def ours(move: Callable[..., int] = move, tensor: object = tensor) -> tuple[float, float]:
                begun, busy = time.perf_counter(), time.process_time()
                move(tensor, path)
                seconds, cpu = time.perf_counter() - begun, time.process_time() - busy
                return size / seconds, cpu * 1e3 * 2**30 / size

            def other(theirs: DeepSpeedHandle = theirs, tensor: object = tensor, op: str = operation):  # type: ignore[no-untyped-def]
                return theirs.run(path, tensor, op)

            yield compare(("deepspeed", "linux-aio", "tensor", operation), config, ours, other, args.pairs)
        theirs.free_tensor(tensor)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--size", default="1GiB", type=parse_size)
    parser.add_argument("--seconds", default=1.0, type=float)
    parser.add_argument("--pairs", default=7, type=int)
    parser.add_argument("--depths", default=DEPTHS, type=int, nargs="+")
    parser.add_argument("--operations", default=("read", "write"), nargs="+", choices=("read", "write"))
    parser.add_argument("--all-backends", action="store_true", help="also io_uring and threads")
    parser.add_argument("--reserve-huge-pages", action="store_true", help="for fio, while it runs (root)")
    parser.add_argument("--no-fio", action="store_true")
    parser.add_argument("--json", metavar="FILE", help="write the table as JSON, too")
    return parser.parse_args()


def main() -> None:
    """Run and print the table."""
    args = parse()
    rows: list[Row] = []
    with ExitStack() as stack:
        scratch = stack.enter_context(Scratch(args.directory, args.size))
        with aio_handle() as handle:
            handle.sync_pwrite(fill_random(Buffer(args.size)), scratch.path)
        huge = stack.enter_context(huge_pages_for_fio(args.reserve_huge_pages))
        print(
            f"{disk_of(scratch.path).label}; {platform.release()}; fio's memory: {'huge' if huge else 'ordinary'} pages"
        )
        reason = why_no_reference("fio") if not args.no_fio else "left out"
        sources = [beside_fio(scratch.path, args.size, args, huge)] if reason is None else []
        print("fio:", reason or "present")
        reason = why_no_reference("deepspeed")
        print("deepspeed:", reason or "present")
        sources += [beside_deepspeed(scratch.path, args.size, args)] if reason is None else []
        for source in sources:
            for row in source:
                print(row, flush=True)
                rows.append(row)
    for name in ("fio", "deepspeed"):
        chosen = [row for row in rows if row.theirs == name and row.backend == "linux-aio"]
        if chosen:
            cpu = ratio_interval([row.cpu.value for row in chosen])
            print(f"{name}: rate {ratio_interval([r.rate.value for r in chosen])}, CPU {cpu} (goal at most {CPU_GOAL})")
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
