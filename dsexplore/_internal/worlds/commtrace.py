"""`commtrace`: record in the world that is open, or open a simulated one and record in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from dsexplore._internal.capture.record import record
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import MeshLike
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.fake.unsupported import explained
from dsexplore._internal.worlds.simulate import World, current_world, opened
from dsexplore._internal.worlds.simulated.closed import translated
from dsexplore._internal.worlds.simulated.nothing_sent import reason
from dsexplore._internal.worlds.world_settings import WorldSettings


@names_arguments
@contextmanager
def commtrace(
    *,
    world_size: int | None = None,
    mesh: MeshLike | None = None,
    rank: int = 0,
    fake: bool = False,
    hardware: str | None = None,
    values: Mapping[str, float] | None = None,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
    ranks_per_node: int | None = None,
    timeout: float | None = None,
    costs: bool = False,
    numerics: bool = False,
) -> Iterator[Trace]:
    """Record every collective inside the block: which module, which mesh axis, how many bytes.

    Without ``world_size`` and ``mesh`` it records the process group that is initialized, simulated or real. With them
    it opens a simulated world for the block, as `simulate` does. There,
    ``torch.distributed.device_mesh.init_device_mesh`` of that shape returns the world's mesh.

    Args:
        world_size: number of ranks to simulate.
        mesh: the axes of the simulated world, ``"dp=2,tp=4"``, or a ``DeviceMesh``.
        rank: the simulated rank to run as.
        fake: run on fake tensors.
        hardware: the machine that the simulated world shows, a GPU, a cluster or ``"cpu"``; see `simulate`.
        values: what reads of fake tensors return on certain lines; see `simulate`.
        save: file or directory to which this rank's trace is written at the end of the block, for `dsexplore.load`. A
            real rank also writes it, with the stack of each thread, when SIGTERM ends the process, as launchers do
            after another rank has failed. Beside it a journal of the latest calls is always current; `explain_hang`
            reads it if the process is killed.
        stack_depth: frames of the user's code to keep per event.
        ranks_per_node: ranks on each node of the simulated world, 8 unless given.
        timeout: seconds without a begin or end of a collective after which a real rank writes its trace so far, and
            its stacks, to ``save``; the block goes on.
        costs: also record the kernels between collectives, for `Trace.predict`; compiled code runs eagerly.
        numerics: also record exact summaries of each module's output and gradients and of the parameters' gradients,
            so that `Trace.diff` says where two runs part; see `Trace.numerics`. For real ranks only.

    Yields:
        A `Trace`, readable at any time, and final when the block ends.

    Raises:
        UsageError: arguments that contradict each other, or a simulated world while a process group is initialized.
        ClosedWorldError: the block used a model of a closed world.

    Examples:
        >>> with dsexplore.commtrace(mesh="dp=4") as trace:
        ...     dist.all_reduce(torch.ones(256))
        >>> trace.events.select("op", "axis", "message_bytes").rows()
        [('all_reduce', 'dp', 1024)]
    """
    settings = WorldSettings(
        world_size=world_size,
        mesh=mesh,
        rank=rank,
        fake=fake,
        ranks_per_node=ranks_per_node,
        hardware=hardware,
        values=values,
    )
    simulates = settings != WorldSettings()
    with (
        opened(settings) if simulates else nullcontext(),
        translated(),
        recorded(
            current_world(),
            made_world=simulates,
            save=save,
            stack_depth=stack_depth,
            timeout=timeout,
            costs=costs,
            numerics=numerics,
        ) as trace,
    ):
        yield trace


@contextmanager
def recorded(
    world: World | None,
    *,
    made_world: bool,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
    timeout: float | None = None,
    costs: bool = False,
    numerics: bool = False,
    saves_end: bool = True,
    counts_steps: bool = True,
) -> Iterator[Trace]:
    """Record what the block communicates, with the remarks of its world as notes of the trace.

    The arguments that are not listed are those of `commtrace`.

    Args:
        world: the simulated world that is open; None without one.
        made_world: True if the world was opened for this block; a note then says why nothing was sent.
        saves_end: False writes to ``save`` only on SIGTERM and after the timeout.
        counts_steps: False if the caller marks the trace's steps itself, in place of the optimizers.

    Yields:
        The `Trace`, final when the block ends.

    Raises:
        UsageError: numerics were asked for in a simulated world.
    """
    if numerics and world is not None:
        raise UsageError(
            f"numerics=True on {world.size} simulated ranks: each of them computes with its own part alone, so its "
            "values are not the program's; record real ranks, or drop numerics"
        )
    has_ended = False

    def notes(events: int) -> list[str]:
        if world is None:
            return []
        notes = world.remarks.notes()
        if has_ended and made_world and not events and world.size > 1:
            notes.append(reason(world.size, world.rank, world.used))
        return notes

    with (
        explained(),
        record(
            save=save,
            stack_depth=stack_depth,
            simulated=world is not None,
            mesh_spec="" if world is None else str(world.spec),
            further_notes=notes,
            target="" if world is None else world.target,
            timeout=timeout,
            costs=costs,
            numerics=numerics,
            saves_end=saves_end,
            counts_steps=counts_steps,
        ) as trace,
    ):
        yield trace
        has_ended = True
