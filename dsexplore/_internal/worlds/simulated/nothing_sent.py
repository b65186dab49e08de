"""`reason`: the sentence that says why a program sent nothing in a world of several ranks."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Use:
    """How a program used its world.

    Attributes:
        initialized: whether the process group was initialized, by the program or by torch for it.
        meshes: number of device meshes that the program created.
        modules: number of modules that it distributed with FSDP or DistributedDataParallel.
        started_processes: whether it started processes other than those of a ``DataLoader``.
    """

    initialized: bool
    meshes: int
    modules: int
    started_processes: bool = False


def reason(size: int, rank: int, use: Use) -> str:
    """Return one sentence for the notes of a trace without events.

    Args:
        size: number of ranks of the world.
        rank: the simulated rank.
        use: how the program used the world.
    """
    if use.modules:
        why = "a module was distributed, but no forward or backward of it ran while it was recorded"
    elif use.meshes:
        why = "a device mesh was made, but nothing that was distributed over it ran while it was recorded"
    elif use.initialized:
        why = (
            "the process group was initialized, but no module was distributed over it (DistributedDataParallel, "
            f"fully_shard, parallelize_module), and rank {rank} called no collective"
        )
    elif use.started_processes:
        why = (
            "the program started processes of its own (multiprocessing.Process), which are not traced, and this "
            "process initialized no process group: start them with torch.multiprocessing.spawn, which runs the "
            "simulated rank in this process, or call their function directly, as a rank of torchrun does"
        )
    else:
        why = (
            "the program never initialized a process group (init_process_group, init_device_mesh, or a framework that "
            "reads RANK and WORLD_SIZE), so it ran as a single process"
        )
        why += _stale_accelerate()
    return f"nothing was sent, although the world has {size} ranks: {why}"


def _stale_accelerate() -> str:
    """Return a clause on accelerate, which reads its ranks only once per process; empty without it."""
    state = sys.modules.get("accelerate.state")
    shared = getattr(getattr(state, "PartialState", None), "_shared_state", {})
    if not shared or shared.get("num_processes", 0) > 1:
        return ""
    return (
        "; accelerate was set up for 1 process before and keeps that state: call "
        "accelerate.state.AcceleratorState._reset_state(True), or restart the kernel"
    )
