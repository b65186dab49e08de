"""`dsexplore.aio.loading` beside the libraries' own calls timed by hand: cold and warm, in four formats.

Loads of both take turns. The fastest of ours has to be within 5 % of the fastest by hand: both do the same work (a test
counts the pages that they touch), and other programs, a shared disk, or a host that gives memory anew only add to a
time. The mean of the neighbors' ratios stands beside it, and scatters by what was added. By hand a file is loaded as a
program would, its parameters filled, and nothing of this package runs but what makes it a first load: dropped pages,
and memory that malloc gives back. Run from the project's root, with nothing else running::

    python -m benchmarks.loading_by_hand DIRECTORY [--size 1GiB] [--pairs 9] [--formats DCP …]

Whether malloc keeps a freed tensor below 32 MiB for the next one of the same load depends on what lies beside it: loads
of 256 MiB by DCP touched between 11,000 and 60,000 new pages, and took from 150 to 240 ms warm. So malloc is told here
to map each tensor anew, and parameters are made anew before each pair of loads, on both sides: filling those that lie
where they lay takes 5 % less.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from dsexplore import aio
from dsexplore._internal.aio.buffers import give_back_free_memory
from dsexplore._internal.aio.checkpoints import loading as loading_module
from dsexplore._internal.aio.checkpoints.loaders import loaders_of
from dsexplore._internal.aio.sweeps.statistics import ratio_interval
from dsexplore._internal.units import format_seconds, parse_size

State = dict[str, torch.Tensor]
GOAL = 0.05
FORMATS = ("safetensors", "torch.save", "DCP", "shards with an index")
M_MMAP_THRESHOLD = -3
"""Of malloc.h: the bytes from which each allocation is a mapping of its own, which ends as it is freed."""


def map_each_tensor() -> None:
    """Let malloc map each tensor anew, for as long as this process lives."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def cold_or_warm(files: list[Path], *, cold: bool) -> None:
    """Drop the files from the page cache, or read them into it, and let the load take new memory."""
    gc.collect()
    give_back_free_memory()
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        os.fsync(fd)
        if cold:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while os.read(fd, 8 << 20):
                pass
        os.close(fd)


def fill(parameters: State, loaded: State) -> None:
    """Copy what was loaded, as ``load_state_dict`` does."""
    for name, tensor in loaded.items():
        parameters[name].copy_(tensor)


def of_safetensors(files: list[Path], parameters: State) -> None:
    fill(parameters, load_file(files[0]))


def of_shards(files: list[Path], parameters: State) -> None:
    for file in files:
        fill(parameters, load_file(file))


def of_torch(files: list[Path], parameters: State) -> None:
    fill(parameters, torch.load(files[0], map_location="cpu", weights_only=True))


def of_dcp(files: list[Path], parameters: State) -> None:
    dcp.load(dict(parameters), checkpoint_id=files[0].parent, no_dist=True)


def save_all(state: State, folder: Path) -> dict[str, tuple[Path, list[Path], Callable[[list[Path], State], None]]]:
    """Save the state in four formats; return path, files and loader by format."""
    save_file(state, folder / "model.safetensors")
    torch.save(state, folder / "model.pt")
    dcp.save(dict(state), checkpoint_id=folder / "dcp", no_dist=True)
    shards = folder / "shards"
    shards.mkdir()
    homes = {name: f"model-{number % 3}.safetensors" for number, name in enumerate(state)}
    for home in sorted(set(homes.values())):
        save_file({name: tensor for name, tensor in state.items() if homes[name] == home}, shards / home)
    index = shards / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": homes}), encoding="utf-8")
    one, pickled = folder / "model.safetensors", folder / "model.pt"
    return {
        "safetensors": (one, [one], of_safetensors),
        "torch.save": (pickled, [pickled], of_torch),
        "DCP": (folder / "dcp", sorted((folder / "dcp").glob("*.distcp")), of_dcp),
        "shards with an index": (index, sorted(shards.glob("*.safetensors")), of_shards),
    }


def by_hand(load: Callable[[list[Path], State], None], files: list[Path], parameters: State, *, cold: bool) -> float:
    cold_or_warm(files, cold=cold)
    begun = time.perf_counter()
    load(files, parameters)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--size", default="1GiB")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS, metavar="FORMAT")
    options = parser.parse_args()
    map_each_tensor()
    loading_module.loaders_of = lambda checkpoint: loaders_of(checkpoint)[:1]  # type: ignore[attr-defined]  # no others
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    numel = parse_size(options.size) // 4 // 12
    state = {f"layers.{number}.weight": torch.randn(numel) for number in range(12)}
    missed = False
    with TemporaryDirectory(dir=options.directory) as made:
        saved = save_all(state, Path(made))
        for name in options.formats:
            path, files, load = saved[name]
            hand: dict[str, list[float]] = {"cold": [], "warm": []}
            ours: dict[str, list[float]] = {"cold": [], "warm": []}
            for number in range(options.pairs):
                for by in ("hand", "us") if number % 2 else ("us", "hand"):
                    if by == "us":
                        times = aio.loading(path, rounds=1).measured[0].loaders[0]
                        ours["cold"].append(times.cold_seconds)
                        ours["warm"].append(times.warm_seconds)
                        continue
                    parameters = {key: torch.empty_like(tensor).zero_() for key, tensor in state.items()}
                    for kind, seconds in hand.items():
                        seconds.append(by_hand(load, files, parameters, cold=kind == "cold"))
            for kind, seconds in hand.items():
                mean = ratio_interval([our / by for our, by in zip(ours[kind], seconds, strict=True)])
                fastest = min(ours[kind]) / min(seconds)
                met = abs(fastest - 1) <= GOAL
                missed |= not met
                print(
                    f"{name:<22}{kind:<6}by hand {format_seconds(min(seconds)):<10}ours {fastest:.3f} of it, mean "
                    f"{mean}  {'met' if met else 'MISSED'}",
                    flush=True,
                )
    raise SystemExit(missed)


if __name__ == "__main__":
    main()
