"""What recording adds to a step of a Llama-3-405B, counted in instructions instead of time.

    python benchmarks/trace_instructions.py [--layers 8 14] [--ranks 64]

The step is that of `trace_scale`: tensor and sequence parallel 8 × FSDP2 on fake tensors. Its price in seconds, a few
percent, is less than what other work on the machine makes of it; the number of its instructions differs by less than
0.3 % from run to run. So this is the script by which to judge a change of the recorder.

Valgrind's callgrind counts instructions, and simulates a second-level cache of 2 MiB, in two processes that run side by
side: models of few and of more layers. The difference between the two is what layers take, the rest belongs to each
recording. Cache misses depend on where Python's garbage collector runs, and differ by 4 %.

Needs ``valgrind`` and a C compiler, and takes five minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from llama import LLAMA_405B, sharded
from trace_scale import TENSOR_PARALLEL, Training

REQUESTS = """
#include <valgrind/callgrind.h>
void start(void) { CALLGRIND_START_INSTRUMENTATION; }
void zero(void) { CALLGRIND_ZERO_STATS; }
void dump(const char* name) { CALLGRIND_DUMP_STATS_AT(name); }
"""
"""Requests to valgrind, which a program makes of itself."""
VALGRIND = ("valgrind", "--tool=callgrind", "--cache-sim=yes", "--LL=2097152,16,64", "--instr-atstart=no")
TURNS = 2
"""The first one fills caches of Python's, and is not counted."""


@dataclass(frozen=True)
class Count:
    """What one step takes."""

    instructions: int
    misses: int
    """Lines that were not in the second-level cache."""

    def __sub__(self, other: Count) -> Count:
        return Count(self.instructions - other.instructions, self.misses - other.misses)


@dataclass(frozen=True)
class Counts:
    """What steps of a model of some layers take."""

    untraced: Count
    traced: Count

    @property
    def added(self) -> Count:
        """What recording adds, from opening the recording to closing it."""
        return self.traced - self.untraced


def run_steps(library: str, ranks: int, layers: int) -> None:
    """Run untraced and traced steps in turns, under valgrind, which writes a file of what each one took."""
    import dsexplore
    from dsexplore._internal.capture.record import record

    requests = ctypes.CDLL(library)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.bfloat16)
    shape = replace(LLAMA_405B, layers=layers)
    with dsexplore.simulate(mesh=f"dp={ranks // TENSOR_PARALLEL},tp={TENSOR_PARALLEL}", fake=True) as mesh:
        training = Training(sharded(shape, mesh), shape)
        training.step()
        with record():
            training.step()
        requests.start()
        for turn in range(TURNS):
            for name, recording in (("untraced", nullcontext), ("traced", record)):
                gc.collect()
                requests.zero()
                with recording():  # type: ignore[operator] # one of two functions without arguments
                    training.step()
                requests.dump(f"{name} {turn}".encode())


def count(library: Path, ranks: int, layers: int) -> Counts:
    """Run `run_steps` under valgrind in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        process = [sys.executable, __file__, "--library", str(library), "--ranks", str(ranks), "--layers", str(layers)]
        command = [*VALGRIND, f"--callgrind-out-file={folder}/counts", *process]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=3600)
        found = dict(map(read_file, Path(folder).iterdir()))
    return Counts(*(found[f"{name} {TURNS - 1}"] for name in ("untraced", "traced")))


def read_file(file: Path) -> tuple[str, Count]:
    """The name that a file of callgrind's was asked for under, and the sums in it."""
    lines = (line for line in file.read_text().splitlines() if line.startswith(("desc: Trigger", "events", "summary")))
    found = {key: value for key, _, value in (line.partition(": ") for line in lines)}
    sums = dict(zip(found["events"].split(), map(int, found["summary"].split()), strict=False))
    misses = sum(sums.get(event, 0) for event in ("ILmr", "DLmr", "DLmw"))
    return found["desc"].rpartition(": ")[2], Count(sums["Ir"], misses)


def compile_requests(folder: Path) -> Path:
    """A library with the functions of `REQUESTS`."""
    library = folder / "requests.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=REQUESTS, text=True, check=True)
    return library


def report(ranks: int, few: int, more: int, found: Sequence[Counts]) -> None:
    """Print what was counted, and what follows for the whole model."""
    print(f"torch {torch.__version__}; {ranks} ranks; counted, not measured: millions of instructions")
    print(f"    {'layers':>6} {'untraced':>9} {'traced':>9} {'added':>7} {'cache misses added':>19}")
    for layers, counts in zip((few, more), found, strict=True):
        misses = counts.added.misses / counts.untraced.misses
        print(
            f"    {layers:6} {counts.untraced.instructions / 1e6:9.1f} {counts.traced.instructions / 1e6:9.1f} "
            f"{counts.added.instructions / 1e6:7.2f} {misses:19.1%}"
        )
    first, last = found
    untraced, added = (
        (after.instructions - before.instructions) / (more - few)
        for before, after in ((first.untraced, last.untraced), (first.added, last.added))
    )
    once = first.added.instructions - few * added
    print(f"    a layer: {untraced / 1e6:.1f}, and {added / 1e6:.2f} more when traced; a recording: {once / 1e6:.1f}")
    whole = LLAMA_405B.layers
    step = first.untraced.instructions + (whole - few) * untraced
    ratio = 1 + (once + whole * added) / step
    print(f"    traced / untraced instructions of all {whole} layers, by these: {ratio:.4f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64, help="a multiple of 8 (default: %(default)s)")
    parser.add_argument("--layers", type=int, nargs="+", default=[8, 14], help="two numbers (default: 8 14)")
    parser.add_argument("--library", help="run the steps in this process, which is under valgrind")
    options = parser.parse_args()
    if options.library:
        run_steps(options.library, options.ranks, options.layers[0])
        return 0
    if len(options.layers) != 2 or options.layers[0] >= options.layers[1]:
        parser.error(f"--layers {options.layers}: give two numbers, the smaller one first")
    missing = [program for program in ("valgrind", "cc") if shutil.which(program) is None]
    if missing:
        parser.error(f"{' and '.join(missing)} not found: install valgrind and a C compiler")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        library = compile_requests(Path(folder))
        found = list(pool.map(lambda layers: count(library, options.ranks, layers), options.layers))
    report(options.ranks, *options.layers, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
