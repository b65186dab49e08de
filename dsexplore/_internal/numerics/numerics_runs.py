"""Run the reference, and each rank of the parallel program, in several precisions, and save their records."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh
from dsexplore._internal.model_names import class_name
from dsexplore._internal.numerics import compared_mode
from dsexplore._internal.numerics import draw_mode as draw_mode_module
from dsexplore._internal.numerics.compared_mode import ComparedMode
from dsexplore._internal.numerics.draw_mode import DrawMode
from dsexplore._internal.numerics.initial_weights import put_in
from dsexplore._internal.numerics.numeric_records import RunRecord, load_run
from dsexplore._internal.numerics.observed_run import ObservedRun, Rounding, local_part, parameters_of, plain_model
from dsexplore._internal.torch_internals.patches import Parts, Patches, install_all

Program: TypeAlias = Callable[..., tuple[nn.Module, Callable[[], Any]]]
"""Function that returns a model and a function that trains it for one step."""
SEED = 0


class RunKind(Enum):
    """A kind of run, which all processes do alike."""

    EXACT = "exact"
    """In float64."""
    ROUNDED = "rounded"
    """In float64, with random rounding."""
    PLAIN = "plain"
    """In the program's own dtypes."""
    DRAWS = "draws"
    """In the program's own dtypes, with dropout; only draws of random numbers are recorded."""

    @property
    def is_exact(self) -> bool:
        """True if it computes in float64."""
        return self in (RunKind.EXACT, RunKind.ROUNDED)


REFERENCE_RUNS = ((RunKind.EXACT,), (RunKind.ROUNDED, RunKind.PLAIN))
"""Runs of the reference in each of two processes, which run at the same time."""


def file_of(folder: Path, kind: RunKind, rank: int | None = None) -> Path:
    """Return the file with the records of a rank in a run, or of the reference if `rank` is None."""
    return folder / f"{kind.value}-{'reference' if rank is None else rank}.pt"


def repetition_file(folder: Path, process: int) -> Path:
    """Return the file with the records of a run of the reference that was repeated in a process."""
    return folder / f"again-{process}.pt"


def run_reference(program: Program, steps: int, folder: Path) -> str:
    """Run the reference in the runs of this process, `REFERENCE_RUNS`.

    Returns:
        The error that keeps it from running in float64; empty if it runs.
    """
    problem = ""
    for kind in REFERENCE_RUNS[int(os.environ["RANK"])]:
        try:
            _run(program, kind, steps=steps, file=file_of(folder, kind))
        except Exception as error:
            if kind is RunKind.PLAIN:
                raise
            problem = "".join(traceback.format_exception_only(error)).strip()
    return problem


def repeat_reference(program: Program, steps: int, folder: Path, kind: RunKind) -> None:
    """Repeat a run of the reference in this process, and save it as its `repetition_file`."""
    _run(program, kind, steps=steps, file=repetition_file(folder, int(os.environ["RANK"])))


def run_rank(program: Program, mesh: Mesh, steps: int, folder: Path, kinds: Sequence[RunKind]) -> None:
    """Run a rank of the parallel program several times, and once more with dropout if a rank draws random numbers.

    Args:
        program: function that is called with the mesh.
        mesh: axes of the world.
        steps: number of steps to train.
        folder: folder of all records.
        kinds: `RunKind.EXACT`, `RunKind.PLAIN` or both.
    """

    def run(kind: RunKind, *, weights: RunKind) -> bool:
        """Run with the reference's initial weights of a run, and return as `_run`."""
        return _run(
            program,
            kind,
            steps=steps,
            file=file_of(folder, kind, dist.get_rank()),
            device_mesh=init_device_mesh("cpu", mesh.shape, mesh_dim_names=mesh.axes),
            weights=load_run(file_of(folder, weights)).start,
        )

    draws = [run(kind, weights=kind) for kind in kinds]
    any_rank_draws = torch.tensor(int(any(draws)))
    dist.all_reduce(any_rank_draws, dist.ReduceOp.MAX)
    if any_rank_draws:
        run(RunKind.DRAWS, weights=RunKind.PLAIN)


def _run(
    program: Program,
    kind: RunKind,
    *,
    steps: int,
    file: Path,
    device_mesh: DeviceMesh | None = None,
    weights: dict[str, Tensor] | None = None,
) -> bool:
    """Run a program, save its records, and return True if its model draws random numbers in training.

    Args:
        program: the program.
        kind: the run.
        steps: number of steps to train.
        file: file to save to.
        device_mesh: mesh to call the program with; None for the reference, which is called without arguments.
        weights: initial weights by name of the parameter; None to use the program's own.
    """
    record = RunRecord(rank=dist.get_rank() if device_mesh is not None else 0)
    with ExitStack() as stack:
        mode, draw_mode = _enter_modes(kind, stack)
        torch.manual_seed(SEED)
        model, step = _model_and_step(program, () if device_mesh is None else (device_mesh,))
        names = put_in(model, weights, record) if weights is not None else {}
        rounding = Rounding() if kind is RunKind.ROUNDED else None
        record.start = _initial_weights(model, names, rounding)
        record.tied = _tied(model, names)
        observed = ObservedRun(
            model,
            record,
            names,
            keeps_sources=weights is None,
            rounding=rounding,
            is_foreign=lambda: mode.infers_shapes,
        )
        stack.enter_context(observed.hooks())
        mode.running_module = observed.running_module
        if kind is RunKind.DRAWS:
            draw_mode.report = observed.record_draw
            stack.enter_context(draw_mode)  # after the model was made, whose initial values are no draws of a step
        for _ in range(steps):
            step()
            observed.end_step()
    record.model = class_name(plain_model(model))
    record.dropped = mode.dropped
    if kind is RunKind.DRAWS:
        record.records.clear()
    record.save(file)
    return mode.draws


def _enter_modes(kind: RunKind, stack: ExitStack) -> tuple[ComparedMode, DrawMode]:
    """Patch torch for a run until `stack` is closed, and enter the `ComparedMode`, which a run with dropout lacks.

    Returns:
        The two modes that the patches refer to; the caller enters the `DrawMode`.
    """
    mode, draw_mode = ComparedMode(exact=kind.is_exact), DrawMode()
    patches = Patches()
    stack.callback(patches.undo)
    table = draw_mode_module.PATCHES if kind is RunKind.DRAWS else compared_mode.PATCHES
    install_all(table, {"always"}, patches, Parts(mode, draw_mode))
    if kind is not RunKind.DRAWS:
        stack.enter_context(mode)
    return mode, draw_mode


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


def _initial_weights(model: nn.Module, names: dict[str, str], rounding: Rounding | None) -> dict[str, Tensor]:
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
