"""`free_memory`: bytes of main memory that are still available."""

from __future__ import annotations

from pathlib import Path


def free_memory() -> int | None:
    """Return the bytes of this machine's memory that programs can take; None if the system does not report them.

    These are the kernel's ``MemAvailable``: free memory, and that of caches which the kernel gives up.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
