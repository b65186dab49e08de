"""What it costs to compare numbers: one comparison of a small Llama, and summaries in a step that trains.

Bounds, on two cores: `compare_numerics` of a Llama of four layers on 4 ranks takes at most 10 s, once the process from
which ranks are forked has imported torch; and a step on the CPU under ``commtrace(numerics=True)`` at most 1.05 times
the CPU time of the step alone (median of pairs, with quartiles), on one thread: threads that wait for one another spin,
which counts as CPU time where other programs run.

A summary's time grows with a tensor's elements, a layer's also with its width and with the tokens of a step, so the
price is printed for several: width x tokens x layers. People train models of a width of 1,024 or more on some thousand
tokens in a step of each rank; smaller ones are printed to show what is dear.

Usage: python benchmarks/numerics_price.py [--rounds 5] [--shapes 512x1024x4 1024x4096x1]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from llama import TINY, Llama, Shape, apply_tensor_parallel, training_loss
from torch.distributed.device_mesh import DeviceMesh

import dsexplore

BATCH = 4
SHAPES = ("512x1024x4", "1024x1024x2", "512x4096x2", "1024x4096x1", "2048x1024x1")
Trained = tuple[torch.nn.Module, Callable[[], Any]]


def trained_shape(text: str) -> Shape:
    """The Llama that trains, of that width, tokens in a step, and layers."""
    width, tokens, layers = map(int, text.split("x"))
    return Shape(layers, width, heads=8, key_value_heads=8, hidden=3 * width, vocabulary=2048, sequence=tokens // BATCH)


def training(model: Llama, shape: Shape) -> Trained:
    """A model, and a function that trains it for one step."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(0, shape.vocabulary, (BATCH, shape.sequence), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        training_loss(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def reference() -> Trained:
    """The small Llama on one process."""
    torch.manual_seed(0)
    return training(Llama(TINY), TINY)


def parallel(mesh: DeviceMesh) -> Trained:
    """The same under tensor and sequence parallelism."""
    torch.manual_seed(0)
    model = Llama(TINY)
    apply_tensor_parallel(model, mesh["tp"])
    return training(model, TINY)


def cpu_seconds(step: Callable[[], Any]) -> float:
    """CPU time of one step."""
    began = time.process_time()
    step()
    return time.process_time() - began


def price_of_summaries(text: str, rounds: int) -> str:
    """What summaries add to a step, in a sentence."""
    torch.manual_seed(0)
    shape = trained_shape(text)
    _, step = training(Llama(shape), shape)
    step()
    ratios: list[float] = []
    least = [float("inf"), float("inf")]
    for _ in range(rounds):
        alone = cpu_seconds(step)
        with dsexplore.commtrace(numerics=True) as trace:
            summarized = cpu_seconds(step)
        ratios.append(summarized / alone)
        least = [min(least[0], alone), min(least[1], summarized)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (
        f"width {shape.width:,}, {BATCH * shape.sequence:,} tokens, {shape.layers} layers: a step of {least[0]:.1f} s "
        f"with {trace.numerics.height} summaries takes {least[1] / least[0]:.3f} of the step alone by the least times, "
        f"{middle:.3f} by pairs "
        f"({low:.3f} to {high:.3f}, {rounds} pairs; at most 1.05)"
    )


def main() -> None:
    """Print both prices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of steps")
    parser.add_argument("--shapes", nargs="*", default=SHAPES, help="of Llamas that train: width x tokens x layers")
    options = parser.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for shape in options.shapes:
        print(price_of_summaries(shape, options.rounds), flush=True)
    torch.set_num_threads(threads)
    began = time.perf_counter()
    dsexplore.run_ranks(int, 1)
    print(f"the process that ranks are forked from, once: {time.perf_counter() - began:.1f} s", flush=True)
    began, cpu = time.perf_counter(), time.process_time()
    report = dsexplore.compare_numerics(reference, parallel, mesh="tp=4", world_size=4, steps=1)
    seconds, own = time.perf_counter() - began, time.process_time() - cpu
    print(f"one comparison on 4 ranks: {seconds:.1f} s, {own:.1f} s of it CPU of this process (at most 10 s)")
    print(report.verdict())


if __name__ == "__main__":
    main()
