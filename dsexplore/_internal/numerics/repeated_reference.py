"""Check that the reference computes the same when it runs again; otherwise no plan can be compared with it.

The reference runs once as it is, and once with random rounding. If both differ by far more than rounding, either the
program amplifies rounding, as a router does with two nearly tied experts, or it draws other numbers in each run, as
with ``torch.seed()`` or a generator seeded by the clock. A further run without random rounding tells which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from dsexplore._internal.mesh import Mesh
from dsexplore._internal.numerics.numeric_records import PHASES, Draw, NumericRecord, Phase, RunRecord
from dsexplore._internal.numerics.numerics_report import TENSORS, NumericsReport, place_of, size_of
from dsexplore._internal.numerics.part_layouts import rms

SUSPECT = 1e-6
"""Relative difference in float64 that random rounding seldom exceeds."""
SAME = 1e-9
"""Relative difference up to which two runs of a program count as equal."""
_OF_LARGEST = 1e-3
"""Share of the largest values of a phase that is added to the scale of a tensor, which may be zero up to rounding."""
_SEED = "Seed all that reference() draws, its data and initial weights too, with a constant"


@dataclass(frozen=True)
class Repeated:
    """One tensor of the reference in two runs."""

    record: NumericRecord
    """Record of the first run."""
    error: float
    """Difference relative to the tensor's root mean square; infinite if shapes or non-finite values differ."""
    is_same: bool


def repeated(first: RunRecord, second: RunRecord, allowed: float) -> Iterator[Repeated]:
    """Yield the tensors of two runs of the reference, in program order.

    Args:
        first: records of one run.
        second: records of another run, compared in turn with those of the first.
        allowed: relative difference up to which a tensor counts as the same.
    """
    largest: dict[str, float] = {}
    for record in first.records:
        largest[record.phase] = max(largest.get(record.phase, 0.0), rms(_finite(record.value)))
    for at, record in enumerate(first.records):
        other = second.records[at] if at < len(second.records) else None
        difference = math.inf if other is None else _difference(record.value, other.value)
        scale = rms(_finite(record.value))
        is_same = difference <= allowed * (scale + _OF_LARGEST * largest[record.phase])
        error = 0.0
        if difference:
            error = difference / scale if scale else math.inf
        yield Repeated(record, error, is_same)


def changed_weights(first: RunRecord, second: RunRecord) -> str | None:
    """Return the first parameter that has other initial values in the second run; None if all are equal."""
    return next((name for name in first.start if not _are_equal(first.start[name], second.start.get(name))), None)


def changed_draw(first: RunRecord, second: RunRecord) -> Draw | None:
    """Return the first draw that another run drew differently; None if all are equal."""
    for draw, other in zip(first.draws, second.draws, strict=False):
        if not _are_equal(draw.values, other.values):
            return draw
    return None


def report_of_reference(
    first: RunRecord, rows: list[Repeated], changed_parameter: str | None, mesh: Mesh
) -> NumericsReport:
    """Return the report on a reference whose runs differ from each other, so that the plan cannot be judged.

    Args:
        first: records of the first run.
        rows: tensors of both runs.
        changed_parameter: name of the first parameter with other initial values; None if all are equal.
        mesh: mesh of the plan.
    """
    if changed_parameter is not None:
        what = f"its initial {changed_parameter} differs"
        module, phase, step = changed_parameter.rpartition(".")[0], PHASES[0], 0
    else:
        wrong = next(row for row in rows if not row.is_same)
        module, phase, step = wrong.record.module, wrong.record.phase, wrong.record.step
        place = place_of(phase, module, wrong.record.name, first.model)
        what = f"in {phase} of step {step} {place}{size_of(wrong.error)}"
    return _report(what, module=module, phase=phase, step=step, tensors=_frame(rows), model=first.model, mesh=mesh)


def report_of_draws(first: RunRecord, draw: Draw, tensors: pl.DataFrame, mesh: Mesh) -> NumericsReport:
    """Return the report on a reference that drops other elements in each run, so that the plan cannot be judged.

    Args:
        first: records of one run.
        draw: first draw that differs in another run.
        tensors: compared tensors, with the columns `TENSORS`.
        mesh: mesh of the plan.
    """
    module = f"{first.model}.{draw.module}" if draw.module else first.model
    what = f"in forward of step {draw.step} {draw.function} in {module} draws other elements"
    return _report(
        what, module=draw.module, phase="forward", step=draw.step, tensors=tensors, model=first.model, mesh=mesh
    )


def _report(
    what: str, *, module: str, phase: Phase, step: int, tensors: pl.DataFrame, model: str, mesh: Mesh
) -> NumericsReport:
    """Return the report; `what` is the clause on the first difference of the runs."""
    return NumericsReport(
        same=False,
        module=module,
        phase=phase,
        conclusion=f"The reference itself differs between two runs: {what}. So nothing is known of the plan. {_SEED}.",
        tensors=tensors,
        step=step,
        change=_SEED,
        model=model,
        mesh=str(mesh),
        world_size=mesh.size,
    )


def _frame(rows: list[Repeated]) -> pl.DataFrame:
    """Return the tensors of both runs with the columns `TENSORS`."""
    values: list[dict[str, object]] = [
        {
            "step": row.record.step,
            "phase": row.record.phase,
            "module": row.record.module,
            "name": row.record.name,
            "call": row.record.call,
            "compared": True,
            "same": row.is_same,
            "error": row.error,
            "allowed": SAME,
            "ranks": [],
        }
        for row in rows
    ]
    return pl.DataFrame(values, schema=TENSORS)


def _finite(value: Tensor) -> Tensor:
    """Return the value in float64, with zeros in place of NaN and infinities."""
    return value.double().nan_to_num(0.0, 0.0, 0.0)


def _difference(value: Tensor, other: Tensor) -> float:
    """Return the root mean square of a difference; infinite if shapes or places of non-finite values differ."""
    if value.shape != other.shape or not torch.equal(value.isfinite(), other.isfinite()):
        return math.inf
    return rms(_finite(value) - _finite(other))


def _are_equal(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and value.shape == other.shape and _difference(value, other) <= SAME * rms(_finite(value))
