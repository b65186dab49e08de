"""`RankWorld`: local ranks that run a notebook's cells, one cell or many, each cell traced.

Requirements on this module:

* an error of one rank ends the cell within half a second; peers that wait for that rank are ended;
* a time-out ends all ranks, and so does Ctrl-C where one waits: a wait inside gloo can be left in no other way;
* each rank that still can saves its trace before it is ended, and its stack is kept;
* ranks that have all ended a cell by themselves, and are even with each other, run the next one;
* nothing is left of a closed world: no process, descriptor or file.
"""

from __future__ import annotations

import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.interrupts import once_interrupted, uninterrupted
from dsexplore._internal.torch_internals.processes import has_cuda_context
from dsexplore._internal.trace import files
from dsexplore._internal.trace.merge import merge_tables
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_count, format_ranks
from dsexplore._internal.user_warnings import warn
from dsexplore._internal.worlds.real.messages import Cell, CellReport
from dsexplore._internal.worlds.real.rank_handle import RankHandle, wait_for_all
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome
from dsexplore._internal.worlds.real.run_ranks import RanksRun, Reason, job_of_rank, rendezvous
from dsexplore._internal.worlds.real.server_handle import server
from dsexplore._internal.worlds.world_settings import resolve

GRACE = 0.2
"""Seconds that the others get to end the cell by themselves once it has failed on one rank."""
SAVE_WAIT = 3.0
"""Seconds that ranks which are ended get to write their stacks, all together, and then as many for their traces; they
need about 0.05, and more on a machine that is busy."""
INTERRUPT_WAIT = 1.0
"""Seconds that interrupted ranks get to leave a cell."""
GROUP_TIMEOUT = 1800.0
"""Seconds after which a collective gives up by itself: torch's own default, as the cell's time-out comes before."""

KEPT_OUTPUT = 32 << 10
"""Bytes of the beginning, and of the end, of what a rank prints in a cell."""


OnOutput = Callable[[Sequence[Any]], float | None]
"""Called with the ranks when one has printed something; returns the seconds after which it is to be called again."""


@dataclass(frozen=True)
class CellRun(RanksRun[Any]):
    """The outcomes of one cell on its ranks, and what they recorded."""

    trace: Trace | None = None
    """None where no rank recorded anything."""
    why_closed: str = ""
    """Why the ranks have ended with it; empty where they live on."""


class RankWorld:
    """Local ranks with one process group, until `close`.

    Args:
        size: number of ranks.
        backend: of the process group: gloo, or nccl with one GPU per rank.
        mesh: axes of the mesh that cells find as ``mesh``, ``"dp=2,tp=2"``; empty for none.

    Raises:
        UsageError: no such backend, a mesh of another size, or fewer GPUs than ranks.
    """

    def __init__(self, size: int, backend: str = "gloo", mesh: str = "") -> None:
        self.size, _ = resolve(size, mesh or None, 0)
        self.backend, self.mesh = backend, mesh
        _check_backend(backend, self.size)
        self._exit = ExitStack()
        self._ranks: list[RankHandle] = []

    def __str__(self) -> str:
        ranks = format_count(self.size, "real rank")
        return f"{ranks} ({self.mesh})" if self.mesh else ranks

    @property
    def options(self) -> str:
        """Options of the magic that open such a world."""
        return f"--real {self.size}{group_options(self.backend, self.mesh)}"

    @property
    def is_open(self) -> bool:
        """True if its ranks run."""
        return bool(self._ranks)

    def open(self) -> None:
        """Start the ranks; they meet while the first cell is on its way."""
        server()  # the first time it takes seconds
        try:
            variables = self._exit.enter_context(rendezvous(self.size))
            self._exit.callback(self._end_ranks)
            for rank in range(self.size):
                group = self.backend, GROUP_TIMEOUT, self.mesh
                job = job_of_rank(b"", rank, self.size, variables, *group)
                self._ranks.append(RankHandle(rank, job, keep=KEPT_OUTPUT))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all ranks; a second call does nothing."""
        self._exit.close()

    def _end_ranks(self) -> None:
        ranks, self._ranks = self._ranks, []
        for rank in ranks:
            rank.signal(signal.SIGKILL)
        for rank in ranks:
            rank.end(wait=0)

    def run(
        self,
        cell: Cell,
        *,
        ranks: Sequence[int] | None = None,
        timeout: float = 60.0,
        on_output: OnOutput = lambda ranks: None,
    ) -> CellRun:
        """Run a cell, and wait until it has ended on all of its ranks.

        Args:
            cell: its ``save`` is replaced.
            ranks: to run it on; None for all.
            timeout: seconds.
            on_output: see `OnOutput`.

        Raises:
            UsageError: a rank has ended since the last cell.
            KeyboardInterrupt: Ctrl-C; the interrupt's ``run`` is the `CellRun`. The world is closed unless all ranks
                left the cell, at the same collective.
        """
        chosen = [self._ranks[rank] for rank in (range(self.size) if ranks is None else ranks)]
        self._check_alive()
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dsexplore-cell-") as folder:

            def wait() -> int | None:
                for rank in chosen:
                    with suppress(OSError):  # it has died: `_finish` sees it
                        rank.begin(replace(cell, save=folder))
                return wait_for_all(chosen, began + timeout, GRACE, lambda: on_output(chosen))

            def finish(first_failure: int | None, is_interrupted: bool) -> CellRun:
                if is_interrupted:
                    interrupt_cell([rank for rank in chosen if rank.status is None])
                return self._finish(
                    chosen, folder, began, first_failure, is_all=ranks is None, is_interrupted=is_interrupted
                )

            return interruptible(wait, finish)

    def _check_alive(self) -> None:
        gone = [rank for rank in self._ranks if rank.is_over]
        if not gone:
            return
        for rank in gone:
            rank.forget()
            rank.has_ended(time.monotonic())
        self._ranks = [rank for rank in self._ranks if rank not in gone]
        ends = [rank.end(wait=0) for rank in gone]
        self.close()
        how = ", ".join(f"rank {end.rank} {end.error or 'has ended'}" for end in ends)
        raise UsageError(f"the world of {self} has lost a rank since its last cell ({how}): open it again")

    def _finish(
        self,
        chosen: Sequence[RankHandle],
        folder: str,
        began: float,
        first_failure: int | None,
        *,
        is_all: bool,
        is_interrupted: bool,
    ) -> CellRun:
        """Return the outcome of a run, and close the world if its ranks cannot continue."""
        for rank in chosen:
            rank.read()
        hung = [rank for rank in chosen if rank.status is None]
        end_with_traces(hung, folder)
        lost = [rank for rank in chosen if rank.status in ("stuck", "died")]
        parts = [tables for rank in chosen if (tables := trace_of(rank, folder)) is not None]
        tables = merge_cell(parts, None if is_all else [rank.rank for rank in chosen], shares_clock=True)
        why = "interrupted" if is_interrupted and hung else _why_closed(chosen, tables)
        outcomes = self._close_with(chosen) if lost or why else tuple(rank.outcome() for rank in chosen)
        reason: Reason = "failed" if first_failure is not None else "timeout" if hung else "done"
        return CellRun(
            outcomes,
            time.monotonic() - began,
            reason,
            first_failure,
            Trace(tables) if tables is not None else None,
            why,
        )

    def _close_with(self, chosen: Sequence[RankHandle]) -> tuple[RankOutcome[Any], ...]:
        """Close the world, and return the outcomes of these ranks of it."""
        others = [rank for rank in self._ranks if rank not in chosen]
        for rank in self._ranks:
            rank.signal(signal.SIGKILL)
        self._ranks = others
        outcomes = tuple(rank.end(wait=0) for rank in chosen)
        self.close()
        return outcomes


def interruptible(wait: Callable[[], int | None], finish: Callable[[int | None, bool], CellRun]) -> CellRun:
    """Wait for a cell and finish it, also after Ctrl-C, which comes to nothing while it is finished.

    Args:
        wait: returns the rank that failed first, once the cell has ended or is to be ended; None if none failed.
        finish: called with that rank, and whether Ctrl-C came; ends the ranks that still run.

    Raises:
        KeyboardInterrupt: Ctrl-C; its ``run`` is what `finish` returned.
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


def group_options(backend: str, mesh: str) -> str:
    """Format the magic's options of its process group, each after a space; empty if both have their defaults."""
    return (f" --backend {backend}" if backend != "gloo" else "") + (f" --mesh {mesh}" if mesh else "")


def _check_backend(backend: str, size: int) -> None:
    if backend not in ("gloo", "nccl"):
        raise UsageError(f"backend {backend!r}: local ranks have gloo, or nccl with one GPU per rank")
    if backend != "nccl":
        return
    count = torch.cuda.device_count()
    if count < size:
        raise UsageError(
            f"nccl needs one GPU per rank, and this machine shows {count} for {size} ranks: give --backend gloo, or "
            f"--real {count or 1}"
        )
    held = [device for device in range(size) if torch.cuda.is_initialized() and has_cuda_context(device)]
    if held:
        devices = ", ".join(map(str, held))
        warn(
            f"this kernel itself holds a CUDA context on GPU {devices}, where a rank will run: its memory there is not "
            "the rank's to use; restart the kernel, and use CUDA in the ranks' cells alone"
        )


def interrupt_cell(running: Sequence[RankHandle]) -> None:
    """Interrupt ranks that run a cell, if all of them can be: none is stopped, or waits in torch.distributed.

    Each has its stack read before, for at most `SAVE_WAIT` seconds, as one read later would be that of a rank that
    leaves; and gets `INTERRUPT_WAIT` seconds to leave the cell. Its status stays None if it does not.
    """
    if any(rank.look_whether_stopped() for rank in running):
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
    """Make ranks that have not finished write where they are and what they recorded into the folder, and end them.

    All have written before one ends, as a process that ends makes the collectives of the others fail. A process that
    was stopped (SIGSTOP) is continued once the others have written, so that it cannot help them on.
    """
    stopped = [rank for rank in hung if rank.look_whether_stopped()]
    for rank in hung:
        rank.status = "stuck"  # whatever it still reports while it is ended
        rank.request_stack()
    stacks_until = time.monotonic() + SAVE_WAIT
    for part in ([rank for rank in hung if rank not in stopped], stopped):
        for rank in part:
            if rank.was_stopped:
                rank.signal(signal.SIGTERM)  # before it goes on: it comes to no line of its program again
                rank.signal(signal.SIGCONT)
            rank.read_stack(stacks_until)
        for rank in part:
            rank.signal(signal.SIGTERM)
        until = time.monotonic() + SAVE_WAIT  # its own, as a rank that writes no stack may still save its trace
        while time.monotonic() < until and not all(_has_left_a_trace(rank, folder) for rank in part):
            time.sleep(0.002)
    for rank in hung:
        rank.signal(signal.SIGKILL)


def _has_left_a_trace(rank: RankHandle, folder: str) -> bool:
    """Return True if a rank that was ended has saved or sent its recording, or is gone."""
    rank.read()
    return rank.is_over or rank.report is not None or Path(folder, files.stack_file(rank.rank)).exists()


def trace_of(rank: RankHandle, folder: str) -> Tables | None:
    """Return the trace that a rank sent with its report or saved when it was ended; None for neither."""
    if isinstance(rank.report, CellReport) and rank.report.trace:
        sent: Trace = pickle.loads(rank.report.trace)
        return sent.tables
    saved = Path(folder, files.rank_file(rank.rank))
    return files.load(saved) if saved.exists() else None


def merge_cell(parts: Sequence[Tables], ranks: Sequence[int] | None, *, shares_clock: bool = False) -> Tables | None:
    """Merge what the ranks of a cell recorded to one trace; None if none recorded anything.

    Args:
        parts: tables of each rank that left a trace.
        ranks: the ranks that ran the cell; None for all of the world.
        shares_clock: see `merge_tables`.
    """
    if not parts:
        return None
    tables = merge_tables(parts, is_whole=True, shares_clock=shares_clock, ranks=ranks)
    if ranks is None:
        return tables
    others = f"this cell ran on {format_ranks(ranks)} of {tables.info.world_size} ranks"
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, others)))


def _why_closed(ranks: Sequence[RankHandle], tables: Tables | None) -> str:
    """Say why these ranks cannot run another cell; empty if they can."""
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
    """Return the groups in which ranks issued different numbers of collectives; sends and receives are not counted."""
    events = tables.events
    counts: dict[str, dict[int, int]] = {}
    members: Mapping[str, list[int]] = dict(tables.groups.select("group", "ranks").iter_rows())
    seen = set(tables.info.ranks)
    for group, rank, op in events.select("group", "rank", "op").iter_rows():
        if op not in ("send", "recv"):
            by_rank = counts.setdefault(group, dict.fromkeys(seen & set(members.get(group, ())), 0))
            by_rank[rank] = by_rank.get(rank, 0) + 1
    return sorted(group for group, by_rank in counts.items() if len(set(by_rank.values())) > 1)
