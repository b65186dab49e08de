"""`commtrace`: record what is there, or open a simulated world and record in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from dsexplore.capture.recorder import record
from dsexplore.trace.trace import Trace
from dsexplore.worlds.closed import translated
from dsexplore.worlds.simulate import current_world, simulate


@contextmanager
def commtrace(
    *,
    world_size: int | None = None,
    mesh: str | Mapping[str, int] | None = None,
    rank: int = 0,
    fake: bool = False,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
) -> Iterator[Trace]:
    """Record every collective inside the block: which module, which mesh axis, how many bytes.

    Without ``world_size`` and ``mesh`` it records whatever process group is there, simulated or real. With them
    it opens a simulated world for the block, as `simulate` does, and records in that; the world's mesh is what
    ``torch.distributed.device_mesh.init_device_mesh`` of that shape returns inside the block.

    Args:
        world_size: number of ranks to simulate.
        mesh: the axes of the simulated world, ``"dp=2,tp=4"``.
        rank: the simulated rank to play.
        fake: run on fake tensors.
        save: a directory; at the end of the block this rank's events are written there, for `dsexplore.load`.
        stack_depth: frames of the user's code to keep per event.

    Yields:
        A `Trace`, readable at any time, and final when the block ends.

    Raises:
        UsageError: arguments that do not fit together, or a world where a process group is there already.
        ClosedWorldError: a model of a closed world was used in the block.
    """
    with ExitStack() as opened:
        if world_size is not None or mesh is not None or fake or rank:
            opened.enter_context(simulate(world_size, mesh, rank, fake))
        world = current_world()
        opened.enter_context(translated())
        spec = "" if world is None else str(world.spec)
        yield opened.enter_context(
            record(save=save, stack_depth=stack_depth, simulated=world is not None, mesh_spec=spec)
        )
