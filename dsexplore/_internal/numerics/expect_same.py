"""``expect_same_numbers``: a test that fails if a parallel plan computes other numbers than the model."""

from __future__ import annotations

from dsexplore._internal.errors import ExpectationError
from dsexplore._internal.mesh import MeshLike
from dsexplore._internal.numerics.compare_numerics import Parallel, Reference, compare_numerics
from dsexplore._internal.numerics.numerics_report import NumericsReport
from dsexplore._internal.signatures import names_arguments


@names_arguments
def expect_same_numbers(
    reference: Reference,
    parallel: Parallel,
    *,
    world_size: int | None = None,
    mesh: MeshLike = "dp=2,tp=2",
    steps: int = 2,
    tolerance: float | None = None,
    timeout: float = 120.0,
) -> NumericsReport:
    """Fail unless a parallel plan computes what the model computes on one process, up to rounding.

    Args:
        reference: function that returns the model and its training step, see `compare_numerics`.
        parallel: function that returns a rank's model and its training step, see `compare_numerics`.
        world_size: number of ranks; None for that of the mesh.
        mesh: axes of the ranks, outermost first.
        steps: number of steps to compare.
        tolerance: relative difference that is allowed; None allows as much as rounding makes.
        timeout: seconds for the ranks to run.

    Returns:
        The report, if the numbers are the same.

    Raises:
        ExpectationError: the numbers differ; the message says where they first do, and the likely reason.
        UsageError: the mesh does not have ``world_size`` ranks, or a function returns something else.
        RanksFailedError: the reference or a rank raised or hung.
    """
    report = compare_numerics(
        reference,
        parallel,
        world_size=world_size,
        mesh=mesh,
        steps=steps,
        tolerance=tolerance,
        timeout=timeout,
    )
    if not report.same:
        raise ExpectationError(report.verdict())
    return report
