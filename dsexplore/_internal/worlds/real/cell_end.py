"""The end of a cell on real ranks: how they are interrupted and ended, their traces, and whether they can go on."""

from __future__ import annotations

import pickle
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsexplore._internal.interrupts import once_interrupted, uninterrupted
from dsexplore._internal.trace import files
from dsexplore._internal.trace.merge import merge_tables
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_ranks
from dsexplore._internal.worlds.real.messages import CellReport
from dsexplore._internal.worlds.real.rank_handle import RankHandle
from dsexplore._internal.worlds.real.run_ranks import RanksRun

SAVE_WAIT = 3.0
"""Seconds that all ranks together have to write their stacks before they are ended, and again for their traces; they
need about 0.05, or more on a busy machine."""
INTERRUPT_WAIT = 1.0
"""Seconds that interrupted ranks have to leave a cell."""


@dataclass(frozen=True)
class CellRun(RanksRun[Any]):
    """Outcomes and trace of one cell on its ranks."""

    trace: Trace | None = None
    """Merged trace of the ranks; None if no rank recorded anything."""
    why_closed: str = ""
    """Why the world was closed after the cell; empty if it is open."""


def interruptible(wait: Callable[[], int | None], finish: Callable[[int | None, bool], CellRun]) -> CellRun:
    """Wait for a cell and finish it, also after Ctrl-C; Ctrl-C while it is finished raises afterwards.

    Args:
        wait: waits for the end of the cell, and returns the rank that failed first, or None.
        finish: ends the ranks that still run, given that rank, and whether Ctrl-C ended the wait.

    Returns:
        Result of `finish`.

    Raises:
        KeyboardInterrupt: Ctrl-C; its ``run`` is the result of `finish`.
    """
    first_failure: int | None = None
    interrupt: KeyboardInterrupt | None = None
    try:
        first_failure = wait()
    except KeyboardInterrupt as error:
        interrupt = error
    try:
        with uninterrupted() if interrupt is None else once_interrupted():
            run = finish(first_failure, interrupt is not None)
    except KeyboardInterrupt as error:  # it came while the run was finished
        interrupt = error
    if interrupt is not None:
        interrupt.run = run  # type: ignore[attr-defined]
        raise interrupt
    return run


def interrupt_cell(running: Sequence[RankHandle]) -> None:
    """Interrupt ranks that run a cell, unless one of them is stopped, or waits in torch.distributed.

    Their stacks are read before, for at most `SAVE_WAIT` seconds, so that they show the cell and not its exit. Then
    the ranks have `INTERRUPT_WAIT` seconds to leave the cell; the status of a rank that does not stays None.
    """
    if any(rank.check_whether_stopped() for rank in running):
        return
    until = time.monotonic() + SAVE_WAIT
    for rank in running:
        rank.request_stack()
    for rank in running:
        rank.read_stack(until)
    if any(rank.is_in_torch_distributed for rank in running):
        return
    for rank in running:
        rank.signal(signal.SIGINT)
    until = time.monotonic() + INTERRUPT_WAIT
    while time.monotonic() < until and any(rank.status is None and not rank.is_over for rank in running):
        time.sleep(0.002)
        for rank in running:
            rank.read()


def end_with_traces(hung: Sequence[RankHandle], folder: str) -> None:
    """Make ranks that have not finished write their stacks and traces into a folder, and end them.

    All write before the first one ends, because the end of a process makes the collectives of the others fail. A
    process that was stopped (SIGSTOP) is continued when the others have written, so that it does not let them continue.
    """
    stopped = [rank for rank in hung if rank.check_whether_stopped()]
    running = [rank for rank in hung if rank not in stopped]
    for rank in hung:
        rank.status = "stuck"  # its later reports do not count
        rank.request_stack()
    until = time.monotonic() + SAVE_WAIT
    for rank in running:
        rank.read_stack(until)
    _save_traces(running, folder)
    for rank in stopped:
        rank.signal(signal.SIGTERM)  # first, so that it runs no further line of its program
        rank.signal(signal.SIGCONT)
        rank.read_stack(until)
    _save_traces(stopped, folder)
    for rank in hung:
        rank.signal(signal.SIGKILL)


def _save_traces(ranks: Sequence[RankHandle], folder: str) -> None:
    """Make ranks save their traces, and wait until they have done so or have ended, for at most `SAVE_WAIT` seconds."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    until = time.monotonic() + SAVE_WAIT  # a rank that writes no stack may still save its trace
    while time.monotonic() < until and not all(_has_left_a_trace(rank, folder) for rank in ranks):
        time.sleep(0.002)


def _has_left_a_trace(rank: RankHandle, folder: str) -> bool:
    """Return True if a rank has saved or sent its recording, or has ended; it saves the stack file last."""
    rank.read()
    return rank.is_over or rank.report is not None or Path(folder, files.stack_file(rank.rank)).exists()


def trace_of(rank: RankHandle, folder: str) -> Tables | None:
    """Return the trace that a rank sent with its report, or saved when it was ended; None if there is none."""
    if isinstance(rank.report, CellReport) and rank.report.trace:
        sent: Trace = pickle.loads(rank.report.trace)
        return sent.tables
    saved = Path(folder, files.rank_file(rank.rank))
    return files.load(saved) if saved.exists() else None


def merge_cell(parts: Sequence[Tables], ranks: Sequence[int], *, shares_clock: bool = False) -> Tables | None:
    """Merge the tables of a cell's ranks; None if no rank recorded anything.

    Args:
        parts: tables of each rank that recorded something.
        ranks: ranks that ran the cell.
        shares_clock: True if the ranks run on one machine, so that their times need no alignment.
    """
    if not parts:
        return None
    tables = merge_tables(parts, is_whole=True, shares_clock=shares_clock, ranks=ranks)
    if len(ranks) == tables.info.world_size:
        return tables
    others = f"this cell ran on {format_ranks(ranks)} of {tables.info.world_size} ranks"
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, others)))


def why_closed(ranks: Sequence[RankHandle], tables: Tables | None) -> str:
    """Return why these ranks cannot run another cell; empty if they can."""
    waiting = [rank.rank for rank in ranks if rank.status == "stuck"]
    died = [rank.rank for rank in ranks if rank.status == "died"]
    if died:
        return f"{format_ranks(died)} died"
    if waiting:
        return f"{format_ranks(waiting)} had not finished the cell"
    if tables is None or all(rank.status == "ok" for rank in ranks):
        return ""
    uneven = uneven_groups(tables)
    return f"the error left the ranks of group {uneven[0]} at different collectives" if uneven else ""


def uneven_groups(tables: Tables) -> list[str]:
    """Return the groups whose ranks issued different numbers of collectives; sends and receives do not count."""
    events = tables.events
    counts: dict[str, dict[int, int]] = {}
    members: Mapping[str, list[int]] = dict(tables.groups.select("group", "ranks").iter_rows())
    seen = set(tables.info.ranks)
    for group, rank, op in events.select("group", "rank", "op").iter_rows():
        if op not in ("send", "recv"):
            by_rank = counts.setdefault(group, dict.fromkeys(seen & set(members.get(group, ())), 0))
            by_rank[rank] = by_rank.get(rank, 0) + 1
    return sorted(group for group, by_rank in counts.items() if len(set(by_rank.values())) > 1)
