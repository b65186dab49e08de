"""`run`: trace an unmodified training script on simulated ranks; `run_command` is its form for a terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from dsexplore._internal.mesh import MeshLike
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.real.run_ranks import RanksFailedError
from dsexplore._internal.worlds.scripts.program import Program
from dsexplore._internal.worlds.scripts.run_as_rank import Setting
from dsexplore._internal.worlds.scripts.trace_script import trace_script


@names_arguments
def run(
    script: str | os.PathLike[str],
    *arguments: str,
    world_size: int | None = None,
    mesh: MeshLike | None = None,
    rank: int = 0,
    ranks: str | Sequence[int] | None = None,
    ranks_per_node: int | None = None,
    fake: bool = False,
    hardware: str | None = None,
    steps: int | None = None,
    module: bool = False,
    save: str | os.PathLike[str] | None = None,
    stack_depth: int = 1,
    values: Mapping[str, float] | None = None,
    costs: bool = False,
    skip_repeats: bool = True,
) -> Trace:
    """Run a training script, unmodified, as one rank of a simulated world, and return what it communicates.

    The script runs in this process as ``__main__``, with its own ``sys.argv`` and ``sys.path[0]``, in the working
    directory, and finds torchrun's environment variables. ``init_process_group`` and meshes that it makes are those of
    the simulated world.

    Args:
        script: path of the script; with ``module``, the dotted name of a module.
        arguments: command-line arguments of the script.
        world_size: number of ranks; may be omitted if ``mesh`` is given.
        mesh: names for the axes, outermost first: ``"dp=8,tp=8"``.
        rank: the rank to run as.
        ranks: several ranks to run as instead, each in a process of its own, merged into one trace: ``[0, 8]``,
            ``"0,8"``, ``"all"``; or ``"distinct"``, one of each kind, which represents all others of that kind; see
            `worlds.scripts.distinct_ranks`.
        ranks_per_node: ranks on each node, 8 unless given.
        fake: run on fake tensors.
        hardware: the machine that the script finds: a GPU (``"h100"``) or a cluster (``"dgx-h100"``), for which the CPU
            stands in, or ``"cpu"``, CPUs with gloo; None for an H100.
        steps: end the script after so many optimizer steps; None lets it come to its end.
        module: True to run ``script`` as ``python -m`` does.
        save: file or directory to which the trace is written when the script ends, also with an error.
        stack_depth: frames of the script to keep per event.
        values: results of reading fake tensors on certain lines, ``{"train.py:31": 0.5}``; see `simulate`.
        costs: also record the kernels between collectives, for `Trace.predict`.
        skip_repeats: with ``ranks="distinct"`` and ``fake``, do not run microbatches and layers of pipeline stages that
            would record the same as others, and repeat their rows; a note of the trace says so. False runs all.

    Returns:
        The `Trace`; its step numbers count the script's optimizer steps.

    Raises:
        UsageError: no such script, or sizes of the world that contradict each other.
        BaseException: the error that ends the script; its attribute ``trace`` is the trace until then. With several
            ranks a `RanksFailedError`, with the traceback of the first rank on which it failed.

    Examples:
        >>> program = "import torch.distributed as dist; dist.init_process_group(); dist.barrier()"
        >>> _ = Path("train.py").write_text(program)
        >>> dsexplore.run("train.py", world_size=16)
        <Trace: 1 collective of rank 0, world of 16>
    """
    program = Program(os.fspath(script), tuple(map(str, arguments)), is_module=module)
    setting = Setting(
        world_size=world_size,
        mesh=mesh,
        rank=rank,
        ranks_per_node=ranks_per_node,
        fake=fake,
        hardware=hardware,
        values=values,
        steps=steps,
        save=save,
        stack_depth=stack_depth,
        costs=costs,
        skip_repeats=skip_repeats,
    )
    trace, ends = trace_script(program, setting, ranks)
    for end in ends:
        if end.error is not None:
            raise end.error
        if ranks is not None and end.status != 0:
            text = f"rank {end.rank} of {setting.world().size}: {end.traceback or end.status}"
            error = RanksFailedError(run=None, text=text)
            error.trace = trace  # type: ignore[attr-defined] # documented by `run`
            raise error
    return trace
