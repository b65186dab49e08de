"""Whether the setting that a sweep advises is faster on DeepSpeed's own handle, too: several sweeps, each then checked.

After each sweep DeepSpeed's handle moves one of its locked tensors with the advised setting and with the default in
turn; each pair of neighbors gives a ratio of seconds for one read and one write. A sweep has met the goal if the
advised setting is not slower: the mean of the ratios is at least 0.99, or the advice is the default. Needs DeepSpeed;
run from the project's root, with nothing else running::

    python -m benchmarks.advice_on_deepspeed DIRECTORY [--sweeps 6] [--seconds 30] [--size 512MiB] [--pairs 9]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.aio_bench_file import random_file
from dsexplore._internal.aio.aio_config import AioConfig
from dsexplore._internal.aio.sweeps.fio_and_deepspeed import DeepSpeedHandle, why_no_reference
from dsexplore._internal.aio.sweeps.statistics import Interval, ratio_interval
from dsexplore._internal.aio.sweeps.sweeping import sweep
from dsexplore._internal.units import parse_size

GOAL = 0.99


def seconds_of(handle: DeepSpeedHandle, path: str, tensor: object, nbytes: int) -> float:
    """Return the seconds of a read and a write of the whole tensor."""
    return sum(nbytes / handle.run(path, tensor, operation)[0] for operation in ("read", "write"))


def gain(path: str, size: int, advised: AioConfig, pairs: int) -> Interval:
    """Return the rate of DeepSpeed's handle with the advised setting, relative to the default's."""
    handles = {config: DeepSpeedHandle(config) for config in (AioConfig(), advised)}
    tensors = {config: handle.new_tensor(size) for config, handle in handles.items()}
    for config, handle in handles.items():  # the first run of each touches its pages
        seconds_of(handle, path, tensors[config], size)
    ratios = []
    for number in range(pairs):
        order = list(handles) if number % 2 else list(handles)[::-1]
        took = {config: seconds_of(handles[config], path, tensors[config], size) for config in order}
        ratios.append(took[AioConfig()] / took[advised])
    for config, handle in handles.items():
        handle.free_tensor(tensors[config])
    return ratio_interval(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sweeps", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--size", type=parse_size, default=parse_size("512MiB"))
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    reason = why_no_reference("deepspeed")
    if reason is not None:
        raise SystemExit(reason)
    met = 0
    for number in range(options.sweeps):
        result = sweep(options.directory, options.size, options.seconds, references="deepspeed", progress=False)
        advised = result.best().config
        if advised == AioConfig():
            met += 1
            print(f"{number + 1}: keep the default  met", flush=True)
            continue
        with random_file(options.directory, options.size) as path:
            found = gain(str(path), options.size, advised, options.pairs)
        met += found.value >= GOAL
        said = "met" if found.value >= GOAL else "MISSED"
        print(f"{number + 1}: {advised}: on DeepSpeed's handle {found} × the default  {said}", flush=True)
    print(f"not slower than the default in {met} of {options.sweeps}")
    raise SystemExit(met < options.sweeps)


if __name__ == "__main__":
    main()
