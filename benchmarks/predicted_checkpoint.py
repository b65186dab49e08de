"""A predicted checkpoint beside the same checkpoint written here, by each method: seconds to save, with fsync.

The disk is measured with checkpoints of one size, by each method alone, a model of another size is predicted, and
saved by the library's own call, in turn. On both sides, the first checkpoint of a size does not count. The fastest
prediction has to be within 20 % of the fastest checkpoint: other programs, a shared disk, or a host that gives memory
anew only add to a time. The mean of the rounds' ratios stands beside it, and scatters by what was added. Run from the
project's root, with nothing else running::

    python -m benchmarks.predicted_checkpoint DIRECTORY [--measured 512MiB] [--model 1GiB] [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import dsexplore
from dsexplore import aio
from dsexplore._internal.aio.checkpoints.checkpoint_rates import METHODS, TENSORS, measure_rates, why_no_method
from dsexplore._internal.aio.sweeps.statistics import ratio_interval
from dsexplore._internal.units import format_seconds, parse_size

GOAL = 0.2


def written(name: str, state: dict[str, torch.Tensor], folder: Path) -> float:
    """Save by a library's own call, with fsync, and return the seconds."""
    begun = time.perf_counter()
    if name == "torch.save":
        with (folder / "model.pt").open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    elif name == "DCP":
        dcp.save(dict(state), checkpoint_id=folder / "dcp", no_dist=True)
    elif name == "DCP, asynchronous":
        dcp.async_save(dict(state), checkpoint_id=folder / "dcp", no_dist=True).result()  # type: ignore[union-attr]
    else:
        aio.save_file(state, folder / "model.safetensors")
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--measured", default="512MiB")
    parser.add_argument("--model", default="1GiB")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    wide = 2048
    layers = max(parse_size(options.model) // (4 * wide * wide), 1)
    model = nn.Sequential(*(nn.Linear(wide, wide, bias=False) for _ in range(layers)))
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    small = parse_size(options.measured) // 4 // TENSORS
    measured = {f"weight{number}": torch.randn(small) for number in range(TENSORS)}
    names = [name for name in METHODS if why_no_method(name) is None]
    predictions: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    plan = dsexplore.sharding(model)
    for _ in range(options.rounds):
        for name in names:
            rates = measure_rates(options.directory, measured, 1, time.perf_counter, [name])
            predictions[name].append(plan.checkpoint(rates, "none").methods[0].save)
            for _first_takes_memory_anew in range(2):
                with TemporaryDirectory(dir=options.directory) as made:
                    took = written(name, state, Path(made))
            seconds[name].append(took)
    missed = False
    for name in names:
        pairs = zip(predictions[name], seconds[name], strict=True)
        mean = ratio_interval([predicted / took for predicted, took in pairs])
        fastest = min(predictions[name]) / min(seconds[name])
        met = abs(fastest - 1) <= GOAL
        missed |= not met
        print(
            f"{name:<20}written in {format_seconds(min(seconds[name])):<10}predicted {fastest:.3f} of it, mean {mean}  "
            f"{'met' if met else 'MISSED'}",
            flush=True,
        )
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
