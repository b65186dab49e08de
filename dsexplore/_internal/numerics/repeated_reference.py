"""Whether the reference computes the same when it runs again: no plan can be compared with one that does not.

The reference runs once as it is and once with other roundings. If these two differ by far more than rounding does, it
amplifies rounding, as where two experts are nearly tied; or it draws other numbers in each run, as with
``torch.seed()`` or a generator seeded by the clock. Another run without other roundings tells which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from dsexplore._internal.numerics.numeric_records import Draw, NumericRecord, Phase, RunRecord
from dsexplore._internal.numerics.numerics_report import TENSORS, NumericsReport, place_of, size_of
from dsexplore._internal.numerics.part_layouts import rms

SUSPECT = 1e-6
"""Relative differences in float64 that other roundings seldom make."""
SAME = 1e-9
"""Relative difference up to which two runs of a program count as equal."""
_OF_LARGEST = 1e-3
"""How much of these counts, relative to the largest values of the phase, where values are zero up to rounding."""
_SEED = "Seed all that reference() draws, its data and initial weights too, with a constant"


@dataclass(frozen=True)
class Repeated:
    """One tensor of the reference in two runs."""

    record: NumericRecord
    error: float
    """Relative to its root mean square; infinite where shapes or non-finite values differ."""
    is_same: bool


def repeated(first: RunRecord, second: RunRecord, allowed: float) -> Iterator[Repeated]:
    """Yield what two runs of the reference recorded, in program order.

    Args:
        first: a run.
        second: another one, whose calls are compared in turn with those of the first.
        allowed: relative difference that is none.
    """
    largest: dict[str, float] = {}
    for record in first.records:
        largest[record.phase] = max(largest.get(record.phase, 0.0), rms(_finite(record.value)))
    for at, record in enumerate(first.records):
        other = second.records[at] if at < len(second.records) else None
        difference = math.inf if other is None else _difference(record.value, other.value)
        scale = rms(_finite(record.value))
        is_same = difference <= allowed * (scale + _OF_LARGEST * largest[record.phase])
        yield Repeated(record, difference / scale if scale else (math.inf if difference else 0.0), is_same)


def changed_weights(first: RunRecord, second: RunRecord) -> str | None:
    """Return the first parameter or buffer that two runs of the reference begin with other values of; None for none."""
    return next((name for name in first.start if not _are_equal(first.start[name], second.start.get(name))), None)


def changed_draw(first: RunRecord, second: RunRecord) -> Draw | None:
    """Return the first draw of a run that another run drew otherwise; None where all are the same."""
    for draw, other in zip(first.draws, second.draws, strict=False):
        if not _are_equal(draw.values, other.values):
            return draw
    return None


def report_of_reference(
    first: RunRecord, rows: list[Repeated], weights: str | None, mesh: str, world_size: int
) -> NumericsReport:
    """Return the report on a reference whose runs differ from each other, which says nothing of the plan."""
    wrong = next(row for row in rows if not row.is_same) if weights is None else None
    if wrong is not None:
        record = wrong.record
        place = place_of(record.phase, record.module, record.name, first.model)
        what = f"in {record.phase} of step {record.step} {place}{size_of(wrong.error)}"
        module, phase, step = record.module, record.phase, record.step
    else:
        what, module, phase, step = f"its initial {weights} differs", (weights or "").rpartition(".")[0], "forward", 0
    return _report(first, what, module, phase, step, tensors=_frame(rows), mesh=mesh, world_size=world_size)


def report_of_draws(first: RunRecord, draw: Draw, tensors: pl.DataFrame, mesh: str, world_size: int) -> NumericsReport:
    """Return the report on a reference that drops other elements in each run, which says nothing of the plan."""
    what = f"in forward of step {draw.step} {draw.function} in {_named(first.model, draw.module)} draws other elements"
    return _report(
        first, what, draw.module, phase="forward", step=draw.step, tensors=tensors, mesh=mesh, world_size=world_size
    )


def _report(
    first: RunRecord, what: str, module: str, phase: Phase, step: int, tensors: pl.DataFrame, mesh: str, world_size: int
) -> NumericsReport:
    sentence = f"The reference itself differs between two runs: {what}. So nothing is known of the plan. {_SEED}."
    return NumericsReport(
        same=False,
        module=module,
        phase=phase,
        conclusion=sentence,
        tensors=tensors,
        step=step,
        change=_SEED,
        model=first.model,
        mesh=mesh,
        world_size=world_size,
    )


def _frame(rows: list[Repeated]) -> pl.DataFrame:
    values: list[tuple[object, ...]] = [
        (r.step, r.phase, r.module, r.name, r.call, True, row.is_same, row.error, SAME, None, None, [])
        for row in rows
        for r in (row.record,)
    ]
    return pl.DataFrame(values, schema=TENSORS, orient="row")


def _named(model: str, module: str) -> str:
    return f"{model}.{module}" if module else model


def _finite(value: Tensor) -> Tensor:
    return value.double().nan_to_num(0.0, 0.0, 0.0)


def _difference(value: Tensor, other: Tensor) -> float:
    """Return the root mean square of a difference; infinite where shapes or places of non-finite values differ."""
    if value.shape != other.shape or not torch.equal(value.isfinite(), other.isfinite()):
        return math.inf
    return rms(_finite(value) - _finite(other))


def _are_equal(value: Tensor, other: Tensor | None) -> bool:
    return other is not None and value.shape == other.shape and _difference(value, other) <= SAME * rms(_finite(value))
