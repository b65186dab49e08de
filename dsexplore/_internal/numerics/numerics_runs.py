"""What a process runs: the reference, and each rank of the parallel program, in several precisions one by one."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh
from dsexplore._internal.model_names import class_name
from dsexplore._internal.numerics import compared_mode, draw_mode
from dsexplore._internal.numerics.compared_mode import ComparedMode
from dsexplore._internal.numerics.draw_mode import DrawMode
from dsexplore._internal.numerics.initial_weights import put_in
from dsexplore._internal.numerics.numeric_records import RunRecord, load_run
from dsexplore._internal.numerics.observed_run import ObservedRun, Rounding, local_part, parameters_of, plain_model
from dsexplore._internal.torch_internals.patches import Parts, Patches, install_all

Program: TypeAlias = Callable[..., tuple[nn.Module, Callable[[], Any]]]
"""Returns a model and a function that trains it for one step."""
SEED = 0

EXACT, ROUNDED, PLAIN, DRAWS = "exact", "rounded", "plain", "draws"
"""In float64; the same with other roundings; in the program's own dtypes; these with dropout, whose draws are kept."""
AGAIN = "again"
"""A run of the reference like another one."""


def file_of(folder: Path, run: str, rank: int | None = None) -> Path:
    """Return the file of one process's record: of a rank, or of the reference."""
    return folder / f"{run}-{'reference' if rank is None else rank}.pt"


REFERENCE_RUNS = ((EXACT,), (ROUNDED, PLAIN))
"""The runs of the reference, by process: together they take as long as the longer ones."""


def play_reference(program: Program, steps: int, folder: Path) -> str:
    """Run the reference in float64; in another process in float64 with other roundings, and in its own dtypes.

    Returns:
        why it does not run in float64; empty if it does.
    """
    problem = ""
    for run in REFERENCE_RUNS[int(os.environ["RANK"])]:
        try:
            _play(program, arguments=(), steps=steps, run=run, weights=None, file=file_of(folder, run))
        except Exception as error:
            if run == PLAIN:
                raise
            problem = "".join(traceback.format_exception_only(error)).strip()
    return problem


def play_again(program: Program, steps: int, folder: Path, run: str) -> None:
    """Run the reference as in one of its runs, and record it as that of this process."""
    _play(
        program, arguments=(), steps=steps, run=run, weights=None, file=file_of(folder, AGAIN, int(os.environ["RANK"]))
    )


def play_rank(program: Program, mesh: Mesh, steps: int, folder: Path, runs: Sequence[str]) -> None:
    """Run a rank of the parallel program several times, and once more with dropout if a rank draws random numbers.

    Args:
        program: called with the mesh.
        mesh: axes of the world.
        steps: to train.
        folder: of all records.
        runs: `EXACT`, `PLAIN` or both; the ranks get the initial weights of the reference's run of that name.
    """
    draws = False
    for run in runs:
        draws |= _play_on_mesh(program, mesh, steps, folder, run, weights=run)
    draw = torch.tensor(int(draws))
    dist.all_reduce(draw, dist.ReduceOp.MAX)
    if draw:
        _play_on_mesh(program, mesh, steps, folder, run=DRAWS, weights=PLAIN)


def _play_on_mesh(program: Program, mesh: Mesh, steps: int, folder: Path, run: str, weights: str) -> bool:
    device_mesh = init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.axes)
    initial = load_run(file_of(folder, weights)).start
    return _play(
        program,
        arguments=(device_mesh,),
        steps=steps,
        run=run,
        weights=initial,
        file=file_of(folder, run, dist.get_rank()),
    )


def _play(
    program: Program,
    arguments: tuple[DeviceMesh, ...],
    steps: int,
    run: str,
    weights: dict[str, Tensor] | None,
    file: Path,
) -> bool:
    """Run a program, write its record, and return True if its model draws random numbers in training."""
    record = RunRecord(rank=dist.get_rank() if arguments else 0)
    with ExitStack() as stack:
        mode = ComparedMode(exact=run in (EXACT, ROUNDED))
        draws = DrawMode(lambda function, values: observed.record_draw(function, values))
        patches = Patches()
        stack.callback(patches.undo)
        of_mode = draw_mode.PATCHES if run == DRAWS else compared_mode.PATCHES
        install_all(of_mode, {"always"}, patches, Parts(mode, draws))
        if run != DRAWS:
            stack.enter_context(mode)
        torch.manual_seed(SEED)
        model, step = _made(program, arguments)
        names = put_in(model, weights, record) if weights is not None else {}
        rounding = Rounding() if run == ROUNDED else None
        observed = ObservedRun(
            model,
            record,
            names,
            keeps_sources=weights is None,
            rounding=rounding,
            is_foreign=lambda: mode.infers_shapes,
        )
        record.start = _start(model, names, rounding)
        record.tied = _tied(model, names)
        stack.enter_context(observed.hooks())
        mode.running_module = observed.running_module
        if run == DRAWS:
            stack.enter_context(draws)
        for _ in range(steps):
            step()
            observed.end_step()
    record.model = class_name(plain_model(model))
    record.dropped = mode.dropped
    if run == DRAWS:
        record.records.clear()
    record.save(file)
    return mode.draws


def _made(program: Program, arguments: tuple[DeviceMesh, ...]) -> tuple[nn.Module, Callable[[], Any]]:
    made = program(*arguments)
    name = getattr(program, "__name__", "the program")
    if not isinstance(made, tuple) or len(made) != 2:
        raise UsageError(f"{name}() returned {type(made).__name__}: return (model, step)")
    model, step = made
    if not isinstance(model, nn.Module) or not callable(step):
        raise UsageError(
            f"{name}() returned ({type(model).__name__}, {type(step).__name__}): return a torch.nn.Module and a "
            "function without arguments that trains it for one step"
        )
    return model, step


def _start(model: nn.Module, names: dict[str, str], rounding: Rounding | None) -> dict[str, Tensor]:
    weights = {}
    for name, parameter in parameters_of(plain_model(model), names):
        if rounding is not None:
            with torch.no_grad():
                parameter.copy_(rounding(parameter))
        weights[name] = local_part(parameter)[0]
    return weights


def _tied(model: nn.Module, names: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    by_parameter: dict[int, list[str]] = {}
    for name, parameter in parameters_of(plain_model(model), names):
        by_parameter.setdefault(id(parameter), []).append(name)
    return tuple(tuple(every) for every in by_parameter.values() if len(every) > 1)
