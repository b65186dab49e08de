"""One simulated rank plays a training script: its world, its steps, its trace, and how it ended."""

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


def play(program: Program, setting: Setting, look: Callable[[Trace], None] | None = None) -> Played:
    """Run a program as one rank, and return its trace also where it ended with an error.

    Args:
        program: what to run.
        setting: its world.
        look: called with the trace when the program has ended, while its ``__main__`` and its world are still there.

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
            played = _record(execute, setting, world)
            if look is not None:
                look(played.trace)
            return played
    finally:
        world.close()


def _record(execute: Callable[[], None], setting: Setting, world: World) -> Played:
    trace = Trace()
    try:
        with recorded(world, is_own=True, save=setting.save, stack_depth=setting.stack_depth) as trace, translated():
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
