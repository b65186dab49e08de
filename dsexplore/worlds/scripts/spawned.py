"""Processes that a program starts in a simulated world.

For ``torch.multiprocessing.spawn`` the process that plays a rank calls what that rank would. Other processes are
started, and nothing of them is traced: `patch_processes` notes that there were some.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any

from dsexplore.errors import UsageError
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.remarks import Remarks

_spawning = import_module("torch.multiprocessing.spawn")  # torch.multiprocessing has a function of that name


class EndedProcesses:
    """The result of ``spawn(..., join=False)``, after all has run."""

    processes: tuple[()] = ()

    def pids(self) -> list[int]:
        """An empty list: no process was started."""
        return []

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Whether all have ended: they have."""
        return True


def patch_spawn(patches: Patches, rank: int, size: int, ranks_per_node: int, remarks: Remarks) -> None:
    """Make a script that starts its own ranks run as the one that this process plays.

    Args:
        patches: where the change is kept.
        rank: the rank played.
        size: ranks of the world.
        ranks_per_node: ranks on a node.
        remarks: where the change is reported.
    """
    local_rank = rank % ranks_per_node
    on_this_node = min(ranks_per_node, size - rank + local_rank)

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

    patches.function(_spawning.start_processes, lambda _original: start_processes)


def patch_processes(patches: Patches, started: Callable[[], object]) -> None:
    """Call ``started`` whenever the program starts a process, other than a ``DataLoader`` that starts its workers."""
    original = BaseProcess.start

    @wraps(original)
    def start(process: BaseProcess) -> None:
        if not str(sys._getframe(1).f_globals.get("__name__")).startswith("torch.utils.data."):
            started()
        original(process)

    patches.attribute(BaseProcess, "start", start)
