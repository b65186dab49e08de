"""How long worlds take to open and close, and what the first imports cost. Run: python benchmarks/simulate.py"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch

import dsexplore
from dsexplore._internal.units import format_seconds
from dsexplore._internal.worlds import demo

MESHES = ("dp=2,tp=4", "dp=4096,tp=4", "pp=16,dp=1024,tp=8")


def best_of(runs: int, action: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return min(times)


def open_and_close(mesh: str, fake: bool) -> None:
    with dsexplore.simulate(mesh=mesh, fake=fake):
        pass


def step(mesh: str) -> None:
    """One traced step of the demo model on fake tensors."""
    with dsexplore.simulate(mesh=mesh, fake=True) as world:
        model = demo.Llama()
        demo.shard_tensors(model, world["tp"])
        demo.shard_parameters(model, world["dp"])
        with dsexplore.commtrace():
            demo.train_step(model, torch.randint(256, (2, 33)))


def import_time() -> float:
    """Seconds that ``import dsexplore`` adds to ``import torch`` in a fresh interpreter."""
    program = "import torch, time; t = time.perf_counter(); import dsexplore; print(time.perf_counter() - t)"
    return float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print one line per measurement."""
    print(f"import dsexplore after torch: {format_seconds(min(import_time() for _ in range(3)))}")
    for mesh in MESHES:
        for fake in (False, True):
            seconds = best_of(3, lambda mesh=mesh, fake=fake: open_and_close(mesh, fake))  # type: ignore[misc]
            print(f"open and close {mesh}{' --fake' if fake else ''}: {format_seconds(seconds)}")
    for mesh in MESHES[:2]:
        print(f"a traced step of the demo on {mesh}: {format_seconds(best_of(2, lambda mesh=mesh: step(mesh)))}")  # type: ignore[misc]


if __name__ == "__main__":
    main()
