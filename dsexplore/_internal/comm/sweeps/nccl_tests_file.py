"""Read the output of nccl-tests and rccl-tests, of any version since 2019, into a `CommSweep`.

A row has size, count, type, reduction and root, then time, algbw, busbw and errors, out of place and in place::

    1048576        262144     float     sum      -1    35.12   29.86   52.25      0    34.90   30.05   52.58      0
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepConditions, SweepPoint
from dsexplore._internal.errors import UsageError
from dsexplore._internal.units import format_count

PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "sendrecv": "send",
}
"""{name of a program of nccl-tests, without ``_perf``: its op}."""
_NUMBER = r"\d{1,18}(?:\.\d*)?(?:e[-+]?\d{1,2})?"
_WRONG = rf"(?:N/A|{_NUMBER})"  # number of wrong elements, or the error in older versions
_HALF = rf"\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+({_WRONG})"
_ROW = re.compile(
    rf"(?:^|[\s:>])(\d{{1,18}})\s+(\d{{1,18}})\s+([a-z]\w+)(?:\s+[a-z]\w+)?(?:\s+-?\d+)?{_HALF}{_HALF}(?:\s+#.*|\s*)$"
)
_LIKE_A_ROW = re.compile(r"(?:^|[\s:>])\d+\s+\d+\s+(?:bfloat16|double|float|half|u?int\d*|f8\w*|fp8\w*)\s")
_RANK = re.compile(r"Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device")
_PROGRAM = re.compile(r"(?:Collective test starting:|/|\s|^)(" + "|".join(PROGRAMS) + r")_perf")


def read_nccl_tests(path: str | os.PathLike[str], op: str | None = None) -> CommSweep:
    """Read a file with the output of nccl-tests; prefixes of ``mpirun --tag-output`` and ``srun -l`` are ignored.

    Args:
        path: the file.
        op: the collective; None to read it from the file, in which newer versions, or a shell that echoes commands,
            print the program's name.

    Raises:
        OSError: the file cannot be read.
        UsageError: the file has no rows, or does not name the ranks or the collective.
    """
    name = os.fspath(path)
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    hosts = {int(rank): host for rank, host in _RANK.findall(text)}
    if not hosts:
        raise UsageError(f"{name} lists no ranks: give the whole output of nccl-tests, with its lines '#  Rank  0 …'")
    points = list(_points(text, op, name))
    if not points:
        raise UsageError(f"{name} has no rows of nccl-tests: a row has a size, a count, a type and two times")
    ranks_by_host = Counter(hosts.values())
    types = {match.group(3) for match in map(_ROW.search, text.splitlines()) if match}
    damaged = [line for line in text.splitlines() if _LIKE_A_ROW.search(line) and not _ROW.search(line)]
    remarks = []
    if damaged:
        remarks.append(f"{format_count(len(damaged), 'damaged row')} left out: {damaged[0].strip()[:120]}")
    conditions = SweepConditions(
        backend="nccl",
        device="cuda",
        nodes=len(ranks_by_host),
        ranks_per_node=max(ranks_by_host.values()),
        dtype=min(types),
        software=f"{_library(text)}, from {Path(path).name}",
        started="",
        remarks=tuple(remarks),
    )
    return CommSweep(conditions, points)


def _library(text: str) -> str:
    """Return the name and version of the library that was measured; ``nccl-tests`` if the output does not say."""
    version = re.search(r"(?:NCCL|RCCL) version\s*:?\s*(\S+)", text)
    if version is not None:
        return version.group(0)
    number = re.search(r"library=(\d+)", text)
    return f"NCCL {number.group(1)}" if number is not None else "nccl-tests"


def _points(text: str, op: str | None, name: str) -> Iterator[SweepPoint]:
    """Yield the out-of-place and the in-place time of each row; its op is that of the last program named before it."""
    current = op
    for line in text.splitlines():
        row = _ROW.search(line)
        if row is None:
            program = _PROGRAM.search(line)
            if program is not None and op is None:
                current = PROGRAMS[program.group(1)]
            continue
        if current is None:
            raise UsageError(f"{name} does not say which collective it is: give op=, such as op='all_reduce'")
        size = int(row.group(1))
        if not size:
            continue  # the size was less than one element per rank
        for in_place, (time, wrong) in ((False, row.group(4, 7)), (True, row.group(8, 11))):
            seconds = float(time) * 1e-6
            if seconds > 0:
                yield SweepPoint(
                    op=current,
                    message_bytes=size,
                    in_place=in_place,
                    rounds=(seconds,),
                    calls=1,
                    wrong=_wrong_elements(wrong),
                )


def _wrong_elements(text: str) -> int | None:
    """Return the number of wrong elements; None if unchecked. Versions before 2022 print an error: 0 or 1."""
    if text == "N/A":
        return None
    return int(text) if text.isdigit() else int(float(text) > 1e-2)
