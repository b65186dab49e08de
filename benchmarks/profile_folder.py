"""How long a folder of profiles takes to load as one trace, and how much memory: a file of ``torch.profiler`` per rank.

Run ``python benchmarks/profile_folder.py``; ``--ranks`` and ``--events`` for other sizes. A process of its own loads it
and asks for the headline and `Trace.skew`. Bounds, of 64 files of 30,000 events each: 60 s of the processor for
loading, and 1.5 GB. Seconds are those of the processor, as a busy machine takes longer.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dsexplore

SECONDS, GIGABYTES = 60.0, 1.5
PER_LAYER = 10
"""Events of a layer: an op, its launch and its kernel of seven matrix products, gathers and reductions."""


def layer(rank: int, ranks: int, number: int) -> list[dict[str, Any]]:
    """Return the events of one layer, 1 ms after the one before; rank 1 launches its collectives 0.2 ms late."""
    at = 1_700_000_000_000_000 + 1000.0 * number
    events = []
    for i in range(3):
        ident, ts = number * 4 + i, at + 60.0 * i
        events += [
            event("cpu_op", "aten::mm", rank, 1, ts, {"External id": ident}),
            event("cuda_runtime", "cudaLaunchKernel", rank, 1, ts + 1, {"External id": ident, "correlation": ident}),
            event("kernel", "gemm", rank, 7, ts, {"External id": ident, "correlation": ident}),
        ]
    described = {
        "Collective name": "_allgather_base",
        "In msg nelems": 1 << 16,
        "Out msg nelems": ranks << 16,
        "Group size": ranks,
        "dtype": "BFloat16",
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(ranks))),
        "Seq": number,
    }
    name = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return [*events, event("kernel", name, rank, 20, at + 300 + 200 * (rank == 1), described)]


def event(category: str, name: str, pid: int, tid: int, ts: float, args: dict[str, Any]) -> dict[str, Any]:
    """Return an event as torch writes it."""
    begin = {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid}
    return {**begin, "ts": ts, "dur": 50.0, "args": args}


def write(folder: Path, ranks: int, events: int) -> None:
    """Write the profile of each rank."""
    for rank in range(ranks):
        layers = [event for number in range(events // PER_LAYER) for event in layer(rank, ranks, number)]
        info = {"backend": "nccl", "rank": rank, "world_size": ranks}
        (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps({"distributedInfo": info, "traceEvents": layers}))


def load(folder: str) -> None:
    """Load a folder, and print what it took."""
    began = time.process_time()
    trace = dsexplore.load(folder)
    loaded = time.process_time() - began
    headline, skew = str(trace.headline()), trace.skew().verdict()
    asked = time.process_time() - began - loaded
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    files = list(Path(folder).iterdir())
    size = sum(file.stat().st_size for file in files) / 1e6
    print(
        f"{len(files)} profiles, {size:.0f} MB, {len(trace):,} collectives: loaded in {loaded:.1f} s of the processor"
    )
    print(f"headline and skew: {asked:.1f} s; memory at most {gigabytes:.2f} GB")
    print(f"{headline[:200]}\n{skew[:200]}")
    if loaded > SECONDS or gigabytes > GIGABYTES:
        raise SystemExit(f"more than {SECONDS:g} s or {GIGABYTES:g} GB")


def main() -> None:
    """Write the profiles, and load them in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--events", type=int, default=30_000, help="of each rank")
    parser.add_argument("--load", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        load(options.load)
        return
    with tempfile.TemporaryDirectory(prefix="dsexplore-profiles-") as folder:
        write(Path(folder), options.ranks, options.events)
        sys.exit(subprocess.run([sys.executable, __file__, "--load", folder], check=False).returncode)


if __name__ == "__main__":
    main()
