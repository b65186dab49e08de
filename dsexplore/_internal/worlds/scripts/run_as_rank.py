"""Run a training script as one simulated rank, and return its trace and the error that ended it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from dsexplore._internal.capture.optimizer_steps import EnoughSteps, counted_steps
from dsexplore._internal.errors import UsageError
from dsexplore._internal.progress import track
from dsexplore._internal.trace.files import save_recording
from dsexplore._internal.trace.trace import Trace, finish, step_marks
from dsexplore._internal.units import format_count
from dsexplore._internal.worlds.commtrace import recorded
from dsexplore._internal.worlds.fake.shared_entries import shared_entries
from dsexplore._internal.worlds.real.run_ranks import run_ranks
from dsexplore._internal.worlds.remarks import Remarks
from dsexplore._internal.worlds.repeats.layer_runs import CannotSkip
from dsexplore._internal.worlds.repeats.skipped_microbatches import skip_repeats
from dsexplore._internal.worlds.scripts.cluster_launch import cluster_variables, launched_on_a_cluster
from dsexplore._internal.worlds.scripts.program import Program, as_main, without_our_frames
from dsexplore._internal.worlds.scripts.rank_axes import ObservedWorld, observe_world
from dsexplore._internal.worlds.scripts.rank_conditions import WorldLayout, code_of_other_ranks
from dsexplore._internal.worlds.scripts.script_notes import note_what_followed, note_what_preceded, remedy_for
from dsexplore._internal.worlds.scripts.stage_shapes import EarlierStages, ShapesKnown
from dsexplore._internal.worlds.simulate import World
from dsexplore._internal.worlds.simulated.closed import translated
from dsexplore._internal.worlds.simulated.launcher_environment import environment
from dsexplore._internal.worlds.simulated.shared_objects import SharedObjects
from dsexplore._internal.worlds.world_settings import WorldSettings

_FOREVER = 1e6
"""Timeout in seconds for ranks that run in another process: scripts may take any time."""
_SKIPPED = (
    "microbatches and layers of pipeline stages that record the same as those before them were recorded without being "
    "run; --no-skip-repeats runs them all"
)


@dataclass(frozen=True, kw_only=True)
class Setting(WorldSettings):
    """The simulated world of a script, and how the script is run and recorded there.

    Attributes:
        steps: number of optimizer steps after which the script is ended; None to run it to its end.
        save: file or directory for the trace; None to save none.
        stack_depth: frames of the script to keep per event.
        is_one_of_several: True if other ranks of the same world run too.
        skip_repeats: True to skip microbatches and layers that repeat others, on a rank that represents others.
        costs: True to also record kernels, for `Trace.predict`.
        variables: names and values of environment variables that the program's launcher sets.
        command: the command that made the trace, for its notes; empty for none.
    """

    steps: int | None = None
    save: str | os.PathLike[str] | None = None
    stack_depth: int = 1
    is_one_of_several: bool = False
    skip_repeats: bool = False
    costs: bool = False
    variables: tuple[tuple[str, str], ...] = ()
    command: str = ""

    @property
    def has_cuda(self) -> bool:
        """True if the CPU stands in for GPUs from the start: for all hardware except ``"cpu"``."""
        return self.target == "cuda"

    def world(self) -> World:
        """Build the world, not yet opened.

        Raises:
            UsageError: the sizes of the world contradict each other.
        """
        if self.steps is not None and (not isinstance(self.steps, int) or self.steps < 1):
            raise UsageError(f"steps={self.steps!r} is not a number of optimizer steps: give 1 or more")
        return World(self)


@dataclass(frozen=True)
class RankRun:
    """The result of running a script as one rank."""

    trace: Trace
    error: BaseException | None = None
    """The error that ended the script, with the script's own traceback; None if it ran to its end."""
    observed: ObservedWorld = field(default_factory=ObservedWorld)
    """Observations about the world at the end of the script; empty if no other rank of the world runs."""


def run_as_rank(
    program: Program, setting: Setting, stages: EarlierStages | None = None, objects: SharedObjects | None = None
) -> RankRun:
    """Run a program as one rank, and return its trace, even if it ended with an error.

    Args:
        program: the program to run.
        setting: its world.
        stages: source of the shapes of earlier pipeline stages; None to run the ranks of these stages.
        objects: source of objects that other ranks send; None to run the ranks that send them.

    Raises:
        UsageError: no such script, sizes that contradict each other, or a process group that is initialized already.
    """
    world = setting.world()
    program.check()
    stages = earlier_stages(program, setting) if stages is None else stages
    world.stage_shapes = stages.shapes()
    world.shared_objects = objects or SharedObjects(run_sender=partial(run_sender, program, setting, (setting.rank,)))
    world.open()
    try:
        world.expect_set_up()
        if not program.is_module and not setting.is_one_of_several:
            layout = WorldLayout(world.size, world.ranks_per_node)
            for note in code_of_other_ranks(program.target, world.rank, layout):
                world.remarks.note(note)
        local_rank = world.rank % world.ranks_per_node
        variables = cluster_variables(world.rank, world.size, world.ranks_per_node)
        with (
            as_main(program) as execute,
            shared_entries(world.shared_objects.folder, setting.rank),
            environment(dict(setting.variables)),
            launched_on_a_cluster(variables, local_rank, world.remarks),
        ):
            run = _record(execute, setting, world)
            if setting.is_one_of_several:  # while the program's modules and its world exist
                run = replace(run, observed=observe_world(run.trace, sys.modules["__main__"]))
            return run
    finally:
        world.close()
        world.shared_objects.close()


def earlier_stages(program: Program, setting: Setting, folder: str = "") -> EarlierStages:
    """Build the source of shapes of a rank's earlier pipeline stages, which runs the ranks of these stages.

    Args:
        program: the program to run.
        setting: the world of the rank.
        folder: folder in which ranks of the same world share shapes; empty to share none.
    """
    return EarlierStages(partial(_run_until_stage, program, setting), folder, rank=setting.rank)


def _run_until_stage(program: Program, setting: Setting, rank: int, stage: int, sent_values: Mapping[int, Any]) -> Any:
    """Run a rank in a process of its own until a stage knows its output shapes, and return the stage's message.

    Raises:
        UsageError: the program ended before.
    """
    other = replace(setting, rank=rank, is_one_of_several=True, save=None, command="")
    arguments = (program, other, stage, dict(sent_values))
    result = run_ranks(_output_message_of, 1, args=arguments, backend=None, timeout=_FOREVER, grace=_FOREVER)
    (outcome,) = result.outcomes
    if outcome.status == "ok" and outcome.value is not None:
        return outcome.value
    reason = outcome.error or "the script came to its end"
    raise UsageError(
        f"rank {rank} was run for the output shapes of pipeline stage {stage}, but the script ended before they "
        f"were known ({reason}): give stages their shapes, PipelineStage(..., input_args=…, output_args=…)"
    )


def run_sender(program: Program, setting: Setting, waiting: tuple[int, ...], rank: int, folder: str) -> None:
    """Run a rank in a process of its own for the objects that it sends, unless it waits for objects itself.

    Args:
        program: the program to run.
        setting: the world of a rank that receives.
        waiting: ranks that wait for objects, each for those of the next one.
        rank: the rank to run.
        folder: folder in which it leaves its objects.
    """
    if rank not in waiting:
        other = replace(setting, rank=rank, is_one_of_several=True, save=None, command="")
        with track(f"running rank {rank} for the objects that it sends", 1, "ranks") as work:
            arguments = (program, other, (*waiting, rank), folder)
            run_ranks(_leave_objects, 1, args=arguments, backend=None, timeout=_FOREVER, grace=_FOREVER)
            work.advance()


def _leave_objects(program: Program, setting: Setting, waiting: tuple[int, ...], folder: str) -> None:
    """Run the program, and ignore its error, which is reported where this rank runs for its trace."""
    objects = SharedObjects(folder, run_sender=partial(run_sender, program, setting, waiting))
    run_as_rank(program, setting, objects=objects)


def _output_message_of(program: Program, setting: Setting, stage: int, sent_values: dict[int, Any]) -> Any:
    """Return the message that a stage of the rank sends to the next one, or None if the program ends first."""
    stages = replace(earlier_stages(program, setting), messages=sent_values, wanted=stage)
    error = run_as_rank(program, setting, stages=stages).error
    if isinstance(error, ShapesKnown):
        return error.message
    if error is not None:
        raise error
    return None


def _record(execute: Callable[[], None], setting: Setting, world: World) -> RankRun:
    """Run a program in the open world and record it; its error is returned, with the trace as an attribute.

    If repeats are skipped, their rows are added when the recording has ended, and then the trace is saved.
    """
    trace, skipped, ended = Trace(), None, None
    save = None if setting.skip_repeats else setting.save
    try:
        with (
            recorded(
                world,
                made_world=True,
                save=save,
                stack_depth=setting.stack_depth,
                costs=setting.costs,
                counts_steps=False,  # `_execute` counts them
            ) as trace,
            translated(),
        ):
            skipping = skip_repeats(is_script=True) if setting.skip_repeats and setting.fake else nullcontext()
            try:
                with _remedies_noted(setting, world.remarks), skipping as skipped:
                    _execute(execute, limit=setting.steps, trace=trace, remarks=world.remarks)
            finally:
                if skipped is not None and skipped.has_skipped:
                    world.remarks.note(_SKIPPED)
                if setting.command:
                    world.remarks.note(f"made by: {setting.command}")
    except BaseException as error:
        ended = error
    try:
        if skipped is not None and not isinstance(ended, CannotSkip):
            tables = skipped.whole(trace.tables)
            finish(trace, lambda: tables)
    except CannotSkip as error:
        ended = error
    if setting.skip_repeats and setting.save is not None:
        save_recording(trace.tables, setting.save)
    if ended is not None:
        without_our_frames(ended)
        with suppress(AttributeError):  # an exception with slots
            ended.trace = trace  # type: ignore[attr-defined] # documented by `run`
    return RankRun(trace=trace, error=ended)


@contextmanager
def _remedies_noted(setting: Setting, remarks: Remarks) -> Iterator[None]:
    """Note a remedy for an error that leaves the block, if one is known."""
    try:
        yield
    except BaseException as error:
        is_alone = not setting.is_one_of_several
        remedy = remedy_for(error, has_cuda=setting.has_cuda, rank=setting.rank, is_alone=is_alone)
        if remedy:
            remarks.note(remedy)
        raise


def _execute(execute: Callable[[], None], *, limit: int | None, trace: Trace, remarks: Remarks) -> None:
    """Run the program to its end or, if limited, until it has taken so many optimizer steps."""
    with counted_steps(limit, step_marks(trace).of_optimizers) as counter:
        try:
            execute()
        except EnoughSteps:
            note_what_preceded(trace, remarks)
            remarks.note(f"the script was ended after {format_count(counter.count, 'optimizer step')}, as asked")
            return
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        note_what_preceded(trace, remarks)
        note_what_followed(trace, counter.count, remarks)
        if limit is not None:
            remarks.note(f"the script came to its end after {format_count(counter.count, 'optimizer step')}")
