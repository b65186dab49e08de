"""Release pages of mapped files that a process no longer needs, such as library code that runs only on import.

A released page stays in the system's cache, and is mapped again when it is touched.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path

_MADV_DONTNEED = 4
_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(/.*)?")


def unwritten(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield (address, bytes) of each private file mapping that this process may not write to and has not written to.

    A page that was written to, such as by relocation, is in no file, so it could not be read again.

    Args:
        smaps: text of /proc/PID/smaps.
    """
    mapping: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if match := _MAPPING.match(line):
            start, end = (int(match[number], 16) for number in (1, 2))
            is_ours = match[4] is not None and "w" not in match[3] and match[3].endswith("p")
            mapping = (start, end - start) if is_ours else None
        elif mapping is not None and line.split() == ["Anonymous:", "0", "kB"]:
            yield mapping


def let_go() -> None:
    """Release the resident pages of `unwritten` mappings, on Linux; they are read again on use."""
    if not _SMAPS.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for address, size in unwritten(_SMAPS.read_text(encoding="utf-8")):
        madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADV_DONTNEED)
