"""`RankWorld`: local ranks that run the cells of a notebook and trace each of them.

Requirements on this module:

* an error of one rank ends the cell within half a second; peers that wait for that rank are ended;
* a time-out ends all ranks, and so does Ctrl-C if one of them waits inside gloo, which cannot be interrupted;
* before a rank is ended, it saves its trace if it can, and its stack is kept;
* if all ranks have left a cell by themselves, at the same collective, they run the next one;
* a closed world leaves no process, descriptor or file.
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
"""Seconds that the others have to end the cell by themselves after it has failed on one rank."""
SAVE_WAIT = 3.0
"""Seconds that all ranks together have to write their stacks before they are ended, and again for their traces; they
need about 0.05, or more on a busy machine."""
INTERRUPT_WAIT = 1.0
"""Seconds that interrupted ranks have to leave a cell."""
GROUP_TIMEOUT = 1800.0
"""Seconds after which a collective fails: torch's default, as the time-out of the cell is shorter."""

KEPT_OUTPUT = 32 << 10
"""Bytes of a rank's output in a cell that are kept at the beginning, and at the end."""

OnOutput = Callable[[Sequence[Any]], float | None]
"""Called with the ranks when one has printed something; returns the seconds until its next call, or None."""


@dataclass(frozen=True)
class CellRun(RanksRun[Any]):
    """Outcomes and trace of one cell on its ranks."""

    trace: Trace | None = None
    """Merged trace of the ranks; None if no rank recorded anything."""
    why_closed: str = ""
    """Why the world was closed after the cell; empty if it is open."""


class RankWorld:
    """Local ranks with one process group, until `close`.

    Args:
        size: number of ranks.
        backend: backend of the process group: gloo, or nccl with one GPU per rank.
        mesh: axes of the mesh that cells find as ``mesh``, ``"dp=2,tp=2"``; empty for none.

    Raises:
        UsageError: there is no such backend, the mesh has another size, or there are fewer GPUs than ranks.
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
        """Start the ranks, without waiting until their process group is open."""
        server()  # its first start takes seconds
        try:
            variables = self._exit.enter_context(rendezvous(self.size))
            self._exit.callback(self._end_ranks)
            for rank in range(self.size):
                job = job_of_rank(
                    b"", rank, self.size, variables, backend=self.backend, group_timeout=GROUP_TIMEOUT, mesh=self.mesh
                )
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
            cell: the cell; its ``save`` is replaced.
            ranks: ranks that run it; None for all.
            timeout: seconds for the cell.
            on_output: called with the ranks when one has printed something; returns the seconds until its next call,
                or None.

        Raises:
            UsageError: a rank has ended since the last cell.
            KeyboardInterrupt: Ctrl-C; the interrupt's ``run`` is the `CellRun`. The world is closed unless all ranks
                left the cell at the same collective.
        """
        chosen = [self._ranks[rank] for rank in (range(self.size) if ranks is None else ranks)]
        self._check_alive()
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="dsexplore-cell-") as folder:

            def wait() -> int | None:
                for rank in chosen:
                    with suppress(OSError):  # the rank has died, which `_finish` handles
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
        """Raise if a rank has ended since the last cell, and close the world."""
        ended = [rank for rank in self._ranks if rank.is_over]
        if not ended:
            return
        for rank in ended:
            rank.forget()
            rank.has_ended(time.monotonic())
        self._ranks = [rank for rank in self._ranks if rank not in ended]
        outcomes = [rank.end(wait=0) for rank in ended]
        self.close()
        how = ", ".join(f"rank {outcome.rank} {outcome.error or 'has ended'}" for outcome in outcomes)
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
        """End the ranks that still run a cell, and close the world if it cannot run another one.

        Args:
            chosen: ranks that ran the cell.
            folder: folder in which they saved their traces.
            began: time at which the cell was sent, by the monotonic clock.
            first_failure: rank that failed first; None if none failed.
            is_all: whether these are all ranks of the world.
            is_interrupted: whether Ctrl-C ended the cell.
        """
        for rank in chosen:
            rank.read()
        hung = [rank for rank in chosen if rank.status is None]
        end_with_traces(hung, folder)
        lost = [rank for rank in chosen if rank.status in ("stuck", "died")]
        parts = [tables for rank in chosen if (tables := trace_of(rank, folder)) is not None]
        tables = merge_cell(parts, None if is_all else [rank.rank for rank in chosen], shares_clock=True)
        why = "interrupted" if is_interrupted and hung else _why_closed(chosen, tables)
        outcomes = self._close_with(chosen) if lost or why else tuple(rank.outcome() for rank in chosen)
        reason: Reason = "timeout" if hung else "done"
        if first_failure is not None:
            reason = "failed"
        return CellRun(
            outcomes=outcomes,
            seconds=time.monotonic() - began,
            reason=reason,
            first_failure=first_failure,
            trace=None if tables is None else Trace(tables),
            why_closed=why,
        )

    def _close_with(self, chosen: Sequence[RankHandle]) -> tuple[RankOutcome[Any], ...]:
        """Close the world, and return the outcomes of some of its ranks."""
        others = [rank for rank in self._ranks if rank not in chosen]
        for rank in self._ranks:
            rank.signal(signal.SIGKILL)
        self._ranks = others
        outcomes = tuple(rank.end(wait=0) for rank in chosen)
        self.close()
        return outcomes


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


def group_options(backend: str, mesh: str) -> str:
    """Return the magic's options for a process group, each after a space; empty if both have their defaults."""
    options = "" if backend == "gloo" else f" --backend {backend}"
    return f"{options} --mesh {mesh}" if mesh else options


def _check_backend(backend: str, size: int) -> None:
    """Raise if the machine cannot run a backend with one GPU per rank; warn if this kernel uses one of the GPUs."""
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
            f"this kernel itself has a CUDA context on GPU {devices}, where a rank will run, and uses memory there: "
            "restart the kernel, and use CUDA only in cells that run on the ranks"
        )


def interrupt_cell(running: Sequence[RankHandle]) -> None:
    """Interrupt ranks that run a cell, unless one of them is stopped, or waits in torch.distributed.

    Their stacks are read before, for at most `SAVE_WAIT` seconds, so that they show the cell and not its exit. Then
    the ranks have `INTERRUPT_WAIT` seconds to leave the cell; the status of a rank that does not stays None.
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
    """Make ranks that have not finished write their stacks and traces into a folder, and end them.

    All write before the first one ends, because the end of a process makes the collectives of the others fail. A
    process that was stopped (SIGSTOP) is continued when the others have written, so that it does not let them continue.
    """
    stopped = [rank for rank in hung if rank.look_whether_stopped()]
    for rank in hung:
        rank.status = "stuck"  # its later reports do not count
        rank.request_stack()
    stacks_until = time.monotonic() + SAVE_WAIT
    for part in ([rank for rank in hung if rank not in stopped], stopped):
        for rank in part:
            if rank.was_stopped:
                rank.signal(signal.SIGTERM)  # first, so that it runs no further line of its program
                rank.signal(signal.SIGCONT)
            rank.read_stack(stacks_until)
        for rank in part:
            rank.signal(signal.SIGTERM)
        until = time.monotonic() + SAVE_WAIT  # a rank that writes no stack may still save its trace
        while time.monotonic() < until and not all(_has_left_a_trace(rank, folder) for rank in part):
            time.sleep(0.002)
    for rank in hung:
        rank.signal(signal.SIGKILL)


def _has_left_a_trace(rank: RankHandle, folder: str) -> bool:
    """Return True if a rank has saved or sent its recording, or has ended."""
    rank.read()
    return rank.is_over or rank.report is not None or Path(folder, files.stack_file(rank.rank)).exists()


def trace_of(rank: RankHandle, folder: str) -> Tables | None:
    """Return the trace that a rank sent with its report, or saved when it was ended; None if there is none."""
    if isinstance(rank.report, CellReport) and rank.report.trace:
        sent: Trace = pickle.loads(rank.report.trace)
        return sent.tables
    saved = Path(folder, files.rank_file(rank.rank))
    return files.load(saved) if saved.exists() else None


def merge_cell(parts: Sequence[Tables], ranks: Sequence[int] | None, *, shares_clock: bool = False) -> Tables | None:
    """Merge the tables of a cell's ranks; None if no rank recorded anything.

    Args:
        parts: tables of each rank that recorded something.
        ranks: ranks that ran the cell; None for all ranks of the world.
        shares_clock: whether the ranks run on one machine, so that their times need no alignment.
    """
    if not parts:
        return None
    tables = merge_tables(parts, is_whole=True, shares_clock=shares_clock, ranks=ranks)
    if ranks is None:
        return tables
    others = f"this cell ran on {format_ranks(ranks)} of {tables.info.world_size} ranks"
    return replace(tables, info=replace(tables.info, notes=(*tables.info.notes, others)))


def _why_closed(ranks: Sequence[RankHandle], tables: Tables | None) -> str:
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
