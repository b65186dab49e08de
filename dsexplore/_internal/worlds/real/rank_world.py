"""`RankWorld`: local ranks that run the cells of a notebook and trace each of them.

What it guarantees:

* an error of one rank ends the cell within half a second; peers that wait for that rank are ended;
* a time-out ends all ranks, and so does Ctrl-C if one of them waits inside gloo, which cannot be interrupted;
* before a rank is ended, it saves its trace if it can, and its stack is kept;
* if all ranks have left a cell by themselves, at the same collective, they run the next one;
* a closed world leaves no process, descriptor or file.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.processes import has_cuda_context
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_count
from dsexplore._internal.user_warnings import warn
from dsexplore._internal.worlds.real.cell_end import (
    CellRun,
    end_with_traces,
    interrupt_cell,
    interruptible,
    merge_cell,
    trace_of,
    why_closed,
)
from dsexplore._internal.worlds.real.messages import Cell
from dsexplore._internal.worlds.real.rank_handle import RankHandle, wait_for_all
from dsexplore._internal.worlds.real.rank_outcome import RankOutcome
from dsexplore._internal.worlds.real.run_ranks import job_of_rank, reason_of, rendezvous
from dsexplore._internal.worlds.real.server_handle import server
from dsexplore._internal.worlds.world_settings import resolve

GRACE = 0.2
"""Seconds that the others have to end the cell by themselves after it has failed on one rank."""
GROUP_TIMEOUT = 1800.0
"""Seconds after which a collective fails: torch's default, as the time-out of the cell is shorter."""

KEPT_OUTPUT = 32 << 10
"""Bytes of a rank's output in a cell that are kept at the beginning, and at the end."""

OnOutput = Callable[[Sequence[Any]], float | None]
"""Called with the ranks when one has printed something; returns the seconds until its next call, or None."""


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
        self.size, _ = resolve(world_size=size, mesh=mesh or None, rank=0)
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
                    rank=rank,
                    world_size=self.size,
                    variables=variables,
                    backend=self.backend,
                    group_timeout=GROUP_TIMEOUT,
                    mesh=self.mesh,
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
                return wait_for_all(chosen, deadline=began + timeout, grace=GRACE, on_output=lambda: on_output(chosen))

            def finish(first_failure: int | None, is_interrupted: bool) -> CellRun:
                if is_interrupted:
                    interrupt_cell([rank for rank in chosen if rank.status is None])
                return self._finish(
                    chosen, folder, began=began, first_failure=first_failure, is_interrupted=is_interrupted
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
        *,
        began: float,
        first_failure: int | None,
        is_interrupted: bool,
    ) -> CellRun:
        """End the ranks that still run a cell, and close the world if it cannot run another one.

        Args:
            chosen: ranks that ran the cell.
            folder: folder in which they saved their traces.
            began: time at which the cell was sent, by the monotonic clock.
            first_failure: rank that failed first; None if none failed.
            is_interrupted: True if Ctrl-C ended the cell.
        """
        for rank in chosen:
            rank.read()
        hung = [rank for rank in chosen if rank.status is None]
        end_with_traces(hung, folder)
        lost = [rank for rank in chosen if rank.status in ("stuck", "died")]
        recorded = [tables for rank in chosen if (tables := trace_of(rank, folder)) is not None]
        tables = merge_cell(recorded, [rank.rank for rank in chosen], shares_clock=True)
        why = "interrupted" if is_interrupted and hung else why_closed(chosen, tables)
        outcomes = self._close_with(chosen) if lost or why else tuple(rank.outcome() for rank in chosen)
        return CellRun(
            outcomes=outcomes,
            seconds=time.monotonic() - began,
            reason=reason_of(first_failure, is_interrupted=is_interrupted, are_unfinished=bool(hung)),
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
