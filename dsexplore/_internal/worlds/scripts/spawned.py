"""Processes that a program starts in a simulated world.

``torch.multiprocessing.spawn`` starts none: it calls the function for this rank, in this process. Other processes
are started but not traced; `StartedProcesses` records whether there were any.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from multiprocessing.process import BaseProcess
from typing import Any

from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.torch_internals.processes import START_PROCESS, START_PROCESSES
from dsexplore._internal.worlds.remarks import Remarks
from dsexplore._internal.worlds.world_settings import WorldSettings


class EndedProcesses:
    """The result of ``spawn(..., join=False)``; the function has already run."""

    processes: tuple[()] = ()

    def pids(self) -> list[int]:
        """Return an empty list, as no process was started."""
        return []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Return True, as all processes have ended."""
        return True


class StartedProcesses:
    """Whether the program has started processes other than the workers of a ``DataLoader``.

    Attributes:
        some: True once it has.
    """

    def __init__(self) -> None:
        self.some = False


def _run_in_this_process(_original: Any, parts: Parts) -> Callable[..., EndedProcesses | None]:
    """Replace ``spawn`` to call the function only for this rank, in this process."""
    settings, remarks = parts[WorldSettings], parts[Remarks]
    size, rank = settings.size, settings.rank
    local_rank = rank % settings.node_size
    on_this_node = min(settings.node_size, size - rank + local_rank)

    def start_processes(
        fn: Callable[..., Any], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *_: Any, **__: Any
    ) -> EndedProcesses | None:
        if nprocs not in (on_this_node, size):
            raise UsageError(
                f"torch.multiprocessing.spawn starts {nprocs} processes, but the simulated world has {size} ranks, "
                f"{on_this_node} of them on this node: open a world of {nprocs} ranks, or let the script start as "
                "many as the world has"
            )
        index = rank if nprocs == size else local_rank
        remarks.say(f"torch.multiprocessing.spawn started no process: this one runs as number {index} of {nprocs}")
        fn(index, *args)
        return None if join else EndedProcesses()

    return start_processes


def _note_process(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap the start of a process to record that there was one."""
    started = parts[StartedProcesses]

    @wraps(original)
    def start(process: BaseProcess) -> None:
        if not str(sys._getframe(1).f_globals.get("__name__")).startswith("torch.utils.data."):
            started.some = True
        original(process)

    return start


PATCHES: tuple[Entry, ...] = (
    Patch(START_PROCESSES, "this process is one of the ranks that it starts", _run_in_this_process, by_code=True),
    Patch(START_PROCESS, "no other process is traced, and a trace without events says so", _note_process),
)
