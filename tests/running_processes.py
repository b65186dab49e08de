"""Whether processes that a test started still run."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended; one whose parent has not asked how it ended has."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except (FileNotFoundError, ProcessLookupError):  # gone before the file is opened, or read
        return False
