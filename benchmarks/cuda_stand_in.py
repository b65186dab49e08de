"""What `cuda_stand_in` costs: a script for ``cuda``, beside the same script with ``cpu`` written in it.

    python benchmarks/cuda_stand_in.py [--rounds 60] [--check]

Small ops of several kinds give the price of one call in microseconds; a training step (forward, backward, AdamW) of an
MLP and of a Llama of 4 layers gives the ratio. Each program runs with ``cpu`` and, inside the stand-in, with ``cuda``,
alternating in one process on one thread; printed are medians of CPU time by round, with quartiles.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from alternating import Runs, Way, alternate, ratios, spread, switching
from llama import TINY, Llama, training_loss
from torch import nn

from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in

CALLS = 2_000
GOAL = 1.05
"""Of a training step of the Llama."""
Make = Callable[[str], Callable[[], None]]


def repeated(call: Callable[[], object]) -> Callable[[], None]:
    """That call, `CALLS` times."""

    def program() -> None:
        for _ in range(CALLS):
            call()

    return program


def op(name: str, device: str) -> Callable[[], None]:
    """A program of one small op."""
    x = torch.ones(8, device=device)
    where = torch.device(device)
    return repeated(
        {
            "x + x": lambda: torch.add(x, x),
            "x.relu_()": lambda: x.relu_(),
            "torch.cat([x, x])": lambda: torch.cat([x, x]),
            "x.chunk(2)": lambda: x.chunk(2),
            "x.shape": lambda: x.shape,
            "x.device": lambda: x.device,
            "torch.empty(8, device=...)": lambda: torch.empty(8, device=where),
            "x.to(device)": lambda: x.to(where),
        }[name]
    )


OPS = ("x + x", "x.relu_()", "torch.cat([x, x])", "x.chunk(2)", "x.shape", "x.device")
OPS += ("torch.empty(8, device=...)", "x.to(device)")


def mlp_step(device: str) -> Callable[[], None]:
    """A training step of an MLP: 3 layers of 512, batch 32."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(3))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def program() -> None:
        loss = model(torch.randn(32, 512).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return program


def llama_step(device: str) -> Callable[[], None]:
    """A training step of a Llama of 4 layers, 128 tokens."""
    torch.manual_seed(0)
    model = Llama(TINY).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(TINY.vocabulary, (1, TINY.sequence)).to(device)

    def program() -> None:
        optimizer.zero_grad()
        training_loss(model, tokens).backward()
        optimizer.step()

    return program


class Script:
    """A program that is made anew wherever it is to run; calling it runs the one made last."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._program: Callable[[], None] | None = None

    def __call__(self) -> None:
        assert self._program is not None
        self._program()

    @contextmanager
    def on_cpu(self) -> Iterator[None]:
        """With ``cpu`` written in it."""
        self._program = self._make("cpu")
        yield

    @contextmanager
    def on_cuda(self) -> Iterator[None]:
        """With ``cuda``, and a CPU that stands in for it."""
        with cuda_stand_in():
            self._program = self._make("cuda")
            yield
            self._program = None


def compared(make: Make, rounds: int) -> Mapping[str, Runs]:
    """CPU time of both ways."""
    script = Script(make)
    ways: Mapping[str, Way] = {"cpu": script.on_cpu, "cuda": script.on_cuda}
    return alternate(script, ways, rounds, later=3)


def price(name: str, rounds: int) -> None:
    """Print what one call of an op costs more."""
    runs = compared(partial(op, name), rounds)
    each = {way: found.medians() for way, found in runs.items()}
    cpu = {number: 1e6 * seconds / CALLS for number, seconds in each["cpu"].items()}
    more = {number: 1e6 * seconds / CALLS - cpu[number] for number, seconds in each["cuda"].items()}
    print(f"    {name:<28} {statistics.median(cpu.values()):6.2f} µs   + {spread([*more.values()])} µs")


def step(title: str, make: Make, rounds: int) -> float:
    """Print a training step's ratio, and return its median."""
    runs = compared(make, rounds)
    medians = {way: found.medians() for way, found in runs.items()}
    ratio = spread(ratios(medians, "cpu")["cuda"])
    undisturbed = runs["cuda"].fastest_tenth() / runs["cpu"].fastest_tenth()
    cpu = 1e3 * statistics.median(medians["cpu"].values())
    print(f"    {title:<28} {cpu:6.2f} ms   × {ratio}   fastest tenth × {undisturbed:6.3f}")
    return ratio.median


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="alternating rounds (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="exit with 1 where the goal is missed")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds {options.rounds} gives no quartiles: give 2 or more")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}; cpu, and what cuda costs more: medians [quartiles] of {options.rounds} rounds")
    for name in OPS:
        price(name, options.rounds)
    step("training step, MLP", mlp_step, options.rounds)
    met = step("training step, Llama", llama_step, options.rounds) <= GOAL
    print(f"    goal: training step of the Llama ≤ {GOAL}: {'met' if met else 'MISSED'}")
    print(f"to open and close a block: {switching(cuda_stand_in, 10):.0f} ms of CPU")
    return 1 if options.check and not met else 0


if __name__ == "__main__":
    sys.exit(main())
