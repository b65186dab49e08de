"""What a fresh process needs for a trace file: seconds, those of the processor, and its peak memory after each step.

A program of its own for `trace_files.py`, which imports no more than one does who looks at a trace:

    python -m benchmarks.trace_apart step.parquet
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsexplore._internal.trace.trace import load


def apart(file: Path) -> None:
    """Print what a fresh process needs for a file: seconds, those of the processor, and its peak memory so far."""
    steps: dict[str, Callable[[Any], Any]] = {
        "load": lambda _: load(file),
        "findings": lambda trace: (trace, len(trace.findings()))[0],
        "headline": lambda trace: (trace, len(trace.headline().sentences))[0],
        "view": lambda trace: (trace, trace._repr_mimebundle_())[0],
        "timeline": lambda trace: trace.timeline()._repr_mimebundle_(),
    }
    value: Any = None
    for name, step in steps.items():
        wall, processor = time.perf_counter(), time.process_time()
        value = step(value)
        took = time.perf_counter() - wall, time.process_time() - processor
        peak = peak_memory() / 1e9
        print(json.dumps({"step": name, "seconds": took[0], "processor": took[1], "peak": peak}), flush=True)


def peak_memory() -> int:
    """Return the most bytes of memory that this program has had; `resource` counts those of its parent before, too."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


if __name__ == "__main__":
    apart(Path(sys.argv[1]))
