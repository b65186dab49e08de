"""Run the reference, and each rank of the parallel program, in several precisions, and save their records."""

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
"""Function that returns a model and a function that trains it for one step."""
SEED = 0

EXACT, ROUNDED, PLAIN, DRAWS = "exact", "rounded", "plain", "draws"
"""Runs: in float64; in float64 with random rounding; in the program's own dtypes; in these with dropout."""
AGAIN = "again"
"""Name of the files of a repeated run of the reference."""


def file_of(folder: Path, run: str, rank: int | None = None) -> Path:
    """Return the file with the records of a rank in a run, or of the reference if `rank` is None."""
    return folder / f"{run}-{'reference' if rank is None else rank}.pt"


REFERENCE_RUNS = ((EXACT,), (ROUNDED, PLAIN))
"""Runs of the reference in each of two processes, which run at the same time."""


def play_reference(program: Program, steps: int, folder: Path) -> str:
    """Run the reference in the runs of this process, `REFERENCE_RUNS`.

    Returns:
        The error that keeps it from running in float64; empty if it runs.
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
    """Repeat a run of the reference in this process, and save it as `AGAIN` under the process's rank."""
    _play(
        program, arguments=(), steps=steps, run=run, weights=None, file=file_of(folder, AGAIN, int(os.environ["RANK"]))
    )


def play_rank(program: Program, mesh: Mesh, steps: int, folder: Path, runs: Sequence[str]) -> None:
    """Run a rank of the parallel program several times, and once more with dropout if a rank draws random numbers.

    Args:
        program: function that is called with the mesh.
        mesh: axes of the world.
        steps: number of steps to train.
        folder: folder of all records.
        runs: `EXACT`, `PLAIN` or both; a rank gets the initial weights of the reference in the same run.
    """
    draws = False
    for run in runs:
        draws |= _play_on_mesh(program, mesh, steps, folder, run=run, weights=run)
    any_rank_draws = torch.tensor(int(draws))
    dist.all_reduce(any_rank_draws, dist.ReduceOp.MAX)
    if any_rank_draws:
        _play_on_mesh(program, mesh, steps, folder, run=DRAWS, weights=PLAIN)


def _play_on_mesh(program: Program, mesh: Mesh, steps: int, folder: Path, *, run: str, weights: str) -> bool:
    """Run the parallel program with the initial weights of the reference's run `weights`; return as `_play`."""
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
    """Run a program, save its records, and return True if its model draws random numbers in training.

    Args:
        program: the program.
        arguments: the mesh for a rank of the plan; empty for the reference.
        steps: number of steps to train.
        run: kind of the run, such as `EXACT`.
        weights: initial weights by name of the parameter; None to use the program's own.
        file: file to save to.
    """
    record = RunRecord(rank=dist.get_rank() if arguments else 0)
    with ExitStack() as stack:
        mode = ComparedMode(exact=run in (EXACT, ROUNDED))
        draws = DrawMode(lambda function, values: observed.record_draw(function, values))
        patches = Patches()
        stack.callback(patches.undo)
        table = draw_mode.PATCHES if run == DRAWS else compared_mode.PATCHES
        install_all(table, {"always"}, patches, Parts(mode, draws))
        if run != DRAWS:
            stack.enter_context(mode)
        torch.manual_seed(SEED)
        model, step = _model_and_step(program, arguments)
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


def _model_and_step(program: Program, arguments: tuple[DeviceMesh, ...]) -> tuple[nn.Module, Callable[[], Any]]:
    """Call the program and check what it returns.

    Raises:
        UsageError: it does not return a model and a function.
    """
    result = program(*arguments)
    name = getattr(program, "__name__", "the program")
    if not isinstance(result, tuple) or len(result) != 2:
        raise UsageError(f"{name}() returned {type(result).__name__}: return (model, step)")
    model, step = result
    if not isinstance(model, nn.Module) or not callable(step):
        raise UsageError(
            f"{name}() returned ({type(model).__name__}, {type(step).__name__}): return a torch.nn.Module and a "
            "function without arguments that trains it for one step"
        )
    return model, step


def _start(model: nn.Module, names: dict[str, str], rounding: Rounding | None) -> dict[str, Tensor]:
    """Return {name: initial value} of the parameters, after rounding them in place if asked."""
    weights = {}
    for name, parameter in parameters_of(plain_model(model), names):
        if rounding is not None:
            with torch.no_grad():
                parameter.copy_(rounding(parameter))
        weights[name] = local_part(parameter)[0]
    return weights


def _tied(model: nn.Module, names: dict[str, str]) -> tuple[tuple[str, ...], ...]:
    """Return all names of each parameter that has several."""
    by_parameter: dict[int, list[str]] = {}
    for name, parameter in parameters_of(plain_model(model), names):
        by_parameter.setdefault(id(parameter), []).append(name)
    return tuple(tuple(tied) for tied in by_parameter.values() if len(tied) > 1)
