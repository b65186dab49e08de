"""Read the output of nccl-tests and rccl-tests, of any version since 2019, into a `CommSweep`."""

from __future__ import annotations

import os
import re
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
_WRONG = rf"(?:N/A|{_NUMBER})"
_HALF = rf"\s+({_NUMBER})\s+({_NUMBER})\s+({_NUMBER})\s+({_WRONG})"
_ROW = re.compile(
    rf"(?:^|[\s:>])(\d{{1,18}})\s+(\d{{1,18}})\s+([a-z]\w+)(?:\s+[a-z]\w+)?(?:\s+-?\d+)?{_HALF}{_HALF}(?:\s+#.*|\s*)$"
)
_LIKE_A_ROW = re.compile(r"(?:^|[\s:>])\d+\s+\d+\s+(?:bfloat16|double|float|half|u?int\d*|f8\w*|fp8\w*)\s")
_RANK = re.compile(r"Rank\s+(\d+)\s.*\bon\s+(\S+)\s+device")
_STARTS = re.compile(r"(?:Collective test starting:|/|\s|^)(" + "|".join(PROGRAMS) + r")_perf")


def read_nccl_tests(path: str | os.PathLike[str], op: str | None = None) -> CommSweep:
    """Read a file with the output of nccl-tests; prefixes of ``mpirun --tag-output`` and ``srun -l`` are ignored.

    Args:
        path: the file.
        op: the collective, if the file does not say: newer versions print it, as does a shell that echoes the command.

    Raises:
        OSError: it cannot be read.
        UsageError: there are no rows in it, the ranks or the collective are unknown.
    """
    name = os.fspath(path)
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    hosts = {int(rank): host for rank, host in _RANK.findall(text)}
    if not hosts:
        raise UsageError(f"{name} lists no ranks: give the whole output of nccl-tests, with its lines '#  Rank  0 …'")
    points = list(_points(text, op, name))
    if not points:
        raise UsageError(f"{name} has no rows of nccl-tests: a row has a size, a count, a type and two times")
    counts = [list(hosts.values()).count(host) for host in dict.fromkeys(hosts.values())]
    version = re.search(r"(?:NCCL|RCCL) version\s*:?\s*(\S+)", text)
    kind = re.search(r"library=(\d+)", text)
    software = version.group(0) if version else f"NCCL {kind.group(1)}" if kind else "nccl-tests"
    types = {match.group(3) for match in map(_ROW.search, text.splitlines()) if match}
    unread = [line for line in text.splitlines() if _LIKE_A_ROW.search(line) and not _ROW.search(line)]
    remarks = [f"{format_count(len(unread), 'damaged row')} left out: {unread[0].strip()[:120]}"] if unread else []
    source = f"{software}, from {Path(path).name}"
    conditions = SweepConditions(
        backend="nccl",
        device="cuda",
        nodes=len(counts),
        ranks_per_node=max(counts),
        dtype=sorted(types)[0],
        software=source,
        started="",
        remarks=tuple(remarks),
    )
    return CommSweep(conditions, points)


def _points(text: str, op: str | None, name: str) -> Iterator[SweepPoint]:
    """Yield the out-of-place and the in-place time of each row, for the last named program."""
    current = op
    for line in text.splitlines():
        row = _ROW.search(line)
        if row is None:
            started = _STARTS.search(line)
            if started and op is None:
                current = PROGRAMS[started.group(1)]
            continue
        if current is None:
            raise UsageError(f"{name} does not say which collective it is: give op=, such as op='all_reduce'")
        size = int(row.group(1))
        if not size:
            continue  # a size that is below one element for each rank
        for in_place, (time, wrong) in ((False, row.group(4, 7)), (True, row.group(8, 11))):
            seconds = float(time) * 1e-6
            if seconds > 0:
                yield SweepPoint(
                    op=current, message_bytes=size, in_place=in_place, rounds=(seconds,), calls=1, wrong=_count(wrong)
                )


def _count(text: str) -> int | None:
    """Return the number of wrong elements; None if unchecked. Versions before 2022 print an error: 0 or 1."""
    if text == "N/A":
        return None
    return int(text) if text.isdigit() else int(float(text) > 1e-2)
