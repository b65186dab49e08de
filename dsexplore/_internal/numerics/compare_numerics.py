"""``compare_numerics``: run a model on one process and under a parallel plan, and find where their numbers differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh, MeshLike, parse_mesh
from dsexplore._internal.numerics.compared_runs import compare_runs
from dsexplore._internal.numerics.first_difference import first_difference
from dsexplore._internal.numerics.numeric_records import RunRecord, load_run
from dsexplore._internal.numerics.numerics_report import NumericsReport, report_of, tensors_of
from dsexplore._internal.numerics.numerics_runs import (
    REFERENCE_RUNS,
    RunKind,
    file_of,
    repeat_reference,
    repetition_file,
    run_rank,
    run_reference,
)
from dsexplore._internal.numerics.repeated_reference import (
    SAME,
    SUSPECT,
    changed_draw,
    changed_weights,
    repeated,
    report_of_draws,
    report_of_reference,
)
from dsexplore._internal.signatures import names_arguments
from dsexplore._internal.worlds.real.run_ranks import RanksFailedError, run_ranks

Reference = Callable[[], tuple[nn.Module, Callable[[], Any]]]
"""Function that returns a model and a function that trains it for one step."""
Parallel = Callable[[DeviceMesh], tuple[nn.Module, Callable[[], Any]]]
"""Function that returns a rank's model and a function that trains it for one step, given the mesh."""


@names_arguments
def compare_numerics(
    reference: Reference,
    parallel: Parallel,
    *,
    world_size: int | None = None,
    mesh: MeshLike = "dp=2,tp=2",
    steps: int = 2,
    tolerance: float | None = None,
    timeout: float = 120.0,
) -> NumericsReport:
    """Find where a parallel plan first computes other numbers than the model on one process.

    Both run here, the plan on local ranks (gloo, CPU). Its parameters get the reference's initial values. Outputs of
    modules, their gradients, gradients of parameters and changes of parameters are compared in float64, in which
    rounding is too small to be mistaken for an error; the report also has the differences in the program's own dtypes.
    Dropout is off in these runs. A run of its own checks that replicas draw the same masks, and that a recomputation in
    backward draws what forward drew. If the reference computes other numbers when it runs again, the report says so,
    and the plan is not judged.

    .. code-block:: python

        def reference():
            torch.manual_seed(0)
            model, data = Model(), torch.randn(8, 16)
            optimizer = torch.optim.AdamW(model.parameters())
            def step():
                model(data).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            return model, step

        report = compare_numerics(reference, parallel, mesh="dp=2,tp=2")

    Args:
        reference: function that returns the model and a function that trains it for one step. It must seed, and use the
            same data as ``parallel``.
        parallel: function that is called with the mesh on each rank, and returns the rank's model and training step.
        world_size: number of ranks; None for that of the mesh.
        mesh: axes of the ranks, outermost first.
        steps: number of steps to compare.
        tolerance: relative difference that is allowed; None allows as much as rounding makes.
        timeout: seconds for the ranks to run, in float64 and in their own dtypes.

    Returns:
        The `NumericsReport`, which a notebook displays.

    Raises:
        UsageError: the mesh does not have ``world_size`` ranks, or a function returns something else.
        RanksFailedError: the reference or a rank raised or hung.
    """
    axes = _checked(world_size, mesh, steps=steps, tolerance=tolerance)
    notes = []
    with tempfile.TemporaryDirectory(prefix="dsexplore-numerics-") as name:
        folder = Path(name)
        together = len(REFERENCE_RUNS)
        ran = run_ranks(run_reference, together, args=(reference, steps, folder), backend=None, timeout=timeout)
        problem = next((error for error in ran.values if error), "")

        ran_again = partial(_ran_again, reference, steps=steps, folder=folder, timeout=timeout)
        unlike = _reference_difference(folder, ran_again, axes, is_exact=not problem)
        if unlike is not None:
            return unlike

        def run_parallel(*kinds: RunKind) -> None:
            run_ranks(run_rank, axes.size, args=(parallel, axes, steps, folder, kinds), timeout=timeout).check()

        if not problem:
            try:
                run_parallel(RunKind.EXACT, RunKind.PLAIN)
            except RanksFailedError as error:
                problem = str(error).splitlines()[-1]
        if problem:
            notes.append(f"not compared in float64, in which the program does not run: {problem}")
            run_parallel(RunKind.PLAIN)
        comparison = compare_runs(folder, axes, tolerance, is_exact=not problem)
        difference = first_difference(comparison)
        if difference is not None and difference.match is not None and difference.match.reason == "dropout":
            first, second = ran_again(RunKind.DRAWS, 2)
            draw = changed_draw(first, second)
            if draw is not None:
                return report_of_draws(first, draw, tensors_of(comparison), axes)
        return report_of(comparison, difference, tuple(notes))


def _ran_again(
    reference: Reference, kind: RunKind, processes: int, *, steps: int, folder: Path, timeout: float
) -> list[RunRecord]:
    """Run the reference again in a number of processes, and return the records of each."""
    run_ranks(repeat_reference, processes, args=(reference, steps, folder, kind), backend=None, timeout=timeout).check()
    return [load_run(repetition_file(folder, process)) for process in range(processes)]


def _reference_difference(
    folder: Path, ran_again: Callable[[RunKind, int], list[RunRecord]], mesh: Mesh, *, is_exact: bool
) -> NumericsReport | None:
    """Return the report on a reference whose runs differ; None if it computes the same again.

    Args:
        folder: folder of all records.
        ran_again: function that runs the reference again, given the kind of run and the number of processes.
        mesh: mesh of the plan.
        is_exact: whether the reference runs in float64.
    """
    kind = RunKind.EXACT if is_exact else RunKind.PLAIN
    first = load_run(file_of(folder, kind))
    if is_exact:
        rounded = load_run(file_of(folder, RunKind.ROUNDED))
        if all(row.is_same for row in repeated(first, rounded, SUSPECT)):
            return None
    (second,) = ran_again(kind, 1)
    rows, changed_parameter = list(repeated(first, second, SAME)), changed_weights(first, second)
    if changed_parameter is None and all(row.is_same for row in rows):
        return None
    return report_of_reference(first, rows, changed_parameter, mesh)


def _checked(world_size: int | None, mesh: MeshLike, *, steps: int, tolerance: float | None) -> Mesh:
    """Return the mesh after checking the arguments of `compare_numerics`.

    Raises:
        UsageError: one of them is invalid.
    """
    axes = parse_mesh(mesh)
    if not axes.axes:
        raise UsageError("mesh is empty: name the axes of the ranks, as mesh='dp=2,tp=2'")
    if world_size not in (None, axes.size):
        raise UsageError(f"mesh {axes} has {axes.size} ranks and world_size is {world_size}: make them equal")
    if steps < 1:
        raise UsageError(f"steps {steps} is not a number of steps: give 1 or more")
    if tolerance is not None and not tolerance >= 0:
        raise UsageError(f"tolerance {tolerance} is not a relative difference: give 0 or more, or None for rounding")
    return axes
