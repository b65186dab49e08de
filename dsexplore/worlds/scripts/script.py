"""`run`: trace an unmodified training script on simulated ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dsexplore.errors import UsageError
from dsexplore.trace.trace import Trace
from dsexplore.worlds.remarks import Remarks
from dsexplore.worlds.scripts.optimizer_steps import EnoughSteps, counted_steps
from dsexplore.worlds.scripts.program import Program, as_main, without_our_frames
from dsexplore.worlds.simulate import World
from dsexplore.worlds.simulated.closed import translated
from dsexplore.worlds.simulated.other_ranks_code import code_of_other_ranks
from dsexplore.worlds.tracing import recorded


@dataclass(frozen=True)
class Setting:
    """The simulated world of a script, and how far it runs; the fields are the arguments of `run`."""

    world_size: int | None = None
    mesh: str | Mapping[str, int] | None = None
    rank: int = 0
    ranks_per_node: int | None = None
    fake: bool = False
    device: str = "cuda"
    gpu: str = "h100"
    steps: int | None = None
    save: str | os.PathLike[str] | None = None
    stack_depth: int = 1
    values: Mapping[str, float] | None = None
    is_one_of_several: bool = False
    """Whether other ranks of the same world are played too."""
    costs: bool = False
    """Whether to record what `Trace.predict` needs."""
    command: str = ""
    """The command that made the trace, for its notes."""

    def world(self) -> World:
        """The world, still closed.

        Raises:
            UsageError: the numbers do not fit together.
        """
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise UsageError(f"steps={self.steps!r} is not a number of optimizer steps: give 1 or more")
        return World(
            *(self.world_size, self.mesh, self.rank, self.fake),
            ranks_per_node=self.ranks_per_node,
            device=self.device,
            gpu=self.gpu,
            values=self.values,
            target="cuda" if self.device == "cuda" else "cpu",
        )


@dataclass(frozen=True)
class Played:
    """A script that one rank has run."""

    trace: Trace
    error: BaseException | None = None
    """What ended it, with the script's own traceback; None for a script that came to its end."""


def run(
    script: str | os.PathLike[str],
    *arguments: str,
    world_size: int | None = None,
    mesh: str | Mapping[str, int] | None = None,
    rank: int = 0,
    ranks_per_node: int | None = None,
    fake: bool = False,
    device: str = "cuda",
    gpu: str = "h100",
    steps: int | None = None,
    module: bool = False,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
    values: Mapping[str, float] | None = None,
    costs: bool = False,
) -> Trace:
    """Run a training script, unmodified, as one rank of a simulated world, and return what it communicates.

    The script runs in this process as ``__main__``, with its own ``sys.argv`` and ``sys.path[0]``, in the working
    directory, and finds torchrun's environment variables. Whatever it sets up itself (``init_process_group``,
    meshes) it gets from the simulated world.

    Args:
        script: its path; or, with ``module``, the dotted name of a module.
        arguments: the script's own.
        world_size: number of ranks; may be left out where ``mesh`` has it.
        mesh: names for the axes, outermost first: ``"dp=8,tp=8"``.
        rank: the rank to play.
        ranks_per_node: 8 unless given.
        fake: run on fake tensors.
        device: ``"cuda"`` lets the CPU stand in for GPUs, ``"cpu"`` leaves ``torch.cuda`` as it is,
            and shows the traffic of CPUs with gloo.
        gpu: which GPU ``torch.cuda`` describes.
        steps: end the script after so many optimizer steps; None lets it come to its end.
        module: whether ``script`` is run as ``python -m`` does.
        save: a directory or file where the trace is written when the script ends, however it ends.
        stack_depth: frames of the script to keep per event.
        values: what reads of fake tensors return on certain lines, ``{"train.py:31": 0.5}``; see `simulate`.
        costs: also record what is computed between the collectives, for `Trace.predict`.

    Returns:
        The `Trace`; its step numbers count the script's optimizer steps.

    Raises:
        UsageError: no such script, or numbers that do not fit together.
        BaseException: whatever ends the script; its attribute ``trace`` is what was recorded until then.
    """
    program = Program(os.fspath(script), tuple(map(str, arguments)), module)
    setting = Setting(
        world_size, mesh, rank, ranks_per_node, fake, device, gpu, steps, save, stack_depth, values, costs=costs
    )
    played = play(program, setting)
    if played.error is not None:
        raise played.error
    return played.trace


def play(program: Program, setting: Setting) -> Played:
    """Run a program as one rank, and return its trace also where it ended with an error.

    Raises:
        UsageError: no such script, numbers that do not fit together, or a process group that is there already.
    """
    world = setting.world()
    program.check()
    world.open()
    try:
        world.expect_set_up()
        if not program.is_module and not setting.is_one_of_several:
            for note in code_of_other_ranks(Path(program.target), world.rank, world.size):
                world.remarks.note(note)
        with as_main(program) as execute:
            return _record(execute, setting, world)
    finally:
        world.close()


def _record(execute: Callable[[], None], setting: Setting, world: World) -> Played:
    trace = Trace()
    try:
        with (
            recorded(
                world, is_own=True, save=setting.save, stack_depth=setting.stack_depth, costs=setting.costs
            ) as trace,
            translated(),
        ):
            try:
                _execute(execute, setting.steps, trace, world.remarks)
            finally:
                if setting.command:
                    world.remarks.note(f"made by: {setting.command}")
    except BaseException as error:
        without_our_frames(error)
        with suppress(AttributeError):  # an exception with slots
            error.trace = trace  # type: ignore[attr-defined] # documented by `run`
        return Played(trace, error)
    return Played(trace)


def _execute(execute: Callable[[], None], limit: int | None, trace: Trace, remarks: Remarks) -> None:
    """Run the program to its end, or to that many optimizer steps."""
    with counted_steps(limit, trace.step) as counter:
        try:
            execute()
        except EnoughSteps:
            remarks.note(f"the script was ended after {_steps(counter.taken)}, as asked")
            return
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        if limit is not None:
            remarks.note(f"the script came to its end after {_steps(counter.taken)}")


def _steps(count: int) -> str:
    return f"{count} optimizer step{'' if count == 1 else 's'}"
