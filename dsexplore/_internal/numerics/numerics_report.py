"""`NumericsReport`: the result of `compare_numerics`, with its sentences and its table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import polars as pl

from dsexplore._internal.display import Result
from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.difference_map import DifferenceMap, difference_map
from dsexplore._internal.numerics.first_difference import FirstDifference
from dsexplore._internal.numerics.numeric_records import Phase
from dsexplore._internal.numerics.reasons.match import Reason
from dsexplore._internal.units import format_count, format_ranks

TENSORS: dict[str, pl.DataType] = {
    "step": pl.Int32(),
    "phase": pl.String(),
    "module": pl.String(),  # path of the module; empty for the model itself
    "name": pl.String(),  # output, or the parameter
    "call": pl.Int32(),  # number of the module's call in this step
    "compared": pl.Boolean(),  # false if the ranks' shapes fit the reference's in no layout
    "same": pl.Boolean(),  # true if no rank differs by more than rounding; parts of a sum are not the same
    "error": pl.Float64(),  # largest difference of a rank in the compared runs, relative to the reference's RMS
    "allowed": pl.Float64(),  # largest difference that rounding may make in these runs, relative to the same
    "measured": pl.Float64(),  # error in the program's own dtypes, against the reference in float64; null: unknown
    "rounding": pl.Float64(),  # error of the reference in the program's own dtypes against float64; null: unknown
    "ranks": pl.List(pl.Int32()),  # ranks that differ by more than rounding
}
"""Columns of `NumericsReport.to_frame`: one row per tensor of the reference, in program order."""


@dataclass(frozen=True, eq=False, kw_only=True)
class NumericsReport(Result):
    """Comparison of a plan's numbers with the model's, and the place where they first differ by more than rounding."""

    _INTERNAL = frozenset({"conclusion"})

    same: bool
    """True if gradients of parameters and updated parameters differ by no more than rounding."""
    conclusion: str
    """The text of `verdict`."""
    tensors: pl.DataFrame
    """All tensors that were compared; columns: `TENSORS`."""
    model: str
    """Name of the model's class."""
    mesh: str
    """The mesh as text."""
    world_size: int
    module: str | None = None
    """Path of the first module whose numbers differ; empty for the model itself, None if all are the same."""
    phase: Phase | None = None
    """Phase of the first difference: forward, backward, gradient or optimizer; None if all numbers are the same."""
    ranks: tuple[int, ...] = ()
    """Ranks whose numbers differ there."""
    reason: Reason | None = None
    """Likely reason, a word of `numerics.reasons.match.Reason`; None if no rule fits."""
    step: int | None = None
    """Step of the first difference, from 0; None if all numbers are the same."""
    parameter: str | None = None
    """Name of the parameter that differs, in the phases gradient and optimizer; None in others, or for several."""
    change: str = ""
    """Change to try; empty if none is known."""
    difference: DifferenceMap | None = None
    """Map of the tensor that first differs; None if all are the same, or if only draws of dropout differ."""
    notes: tuple[str, ...] = ()
    """Limits of the comparison."""

    def __str__(self) -> str:
        return self.conclusion

    def __repr__(self) -> str:
        return f"<NumericsReport: {self.conclusion}>"

    def verdict(self) -> str:
        """Return whether the numbers are the same; if not, where they first differ, why, and the change to try."""
        return self.conclusion

    def lines(self) -> list[str]:
        """Return the verdict, then the limits of the comparison."""
        return [self.conclusion, *self.notes]

    def to_frame(self) -> pl.DataFrame:
        """Return `tensors`, one row per tensor of the reference in program order."""
        return self.tensors


def report_of(comparison: Comparison, difference: FirstDifference | None, notes: tuple[str, ...]) -> NumericsReport:
    """Return the report on a comparison.

    Args:
        comparison: the compared tensors.
        difference: first difference; None if the numbers are the same.
        notes: limits of the comparison, as sentences.
    """
    model = next((record.model for record in comparison.ranks if record.model), "model")
    frame = tensors_of(comparison)
    skipped = frame.filter(~pl.col("compared"))["module"].n_unique()
    if skipped:
        modules = format_count(skipped, "module")
        notes = (*notes, f"not compared: tensors of {modules}, whose shapes on the ranks fit in no layout")
    report = partial(
        NumericsReport,
        tensors=frame,
        model=model,
        mesh=str(comparison.mesh),
        world_size=comparison.mesh.size,
        notes=notes,
    )
    if difference is None:
        return report(same=True, conclusion=_same(comparison, model, frame))
    is_parameter = difference.phase in ("gradient", "optimizer") and difference.name != "parameters"
    return report(
        same=False,
        module=difference.module,
        phase=difference.phase,
        ranks=difference.ranks,
        reason=difference.match.reason if difference.match is not None else None,
        conclusion=f"{_place(comparison, difference, model)} {_looks(difference)}",
        step=difference.step,
        parameter=difference.name if is_parameter else None,
        change=difference.match.change if difference.match is not None else "",
        difference=_difference_map(comparison, difference),
    )


def _difference_map(comparison: Comparison, difference: FirstDifference) -> DifferenceMap | None:
    """Return the map of the tensor that a report names; for all parameters, of the one that differs most."""
    entries = [
        entry
        for entry in comparison.of(difference.phase, difference.step)
        if not entry.is_right
        and (
            difference.name == "parameters"
            or (entry.record.module, entry.record.name) == (difference.module, difference.name)
        )
    ]
    return difference_map(max(entries, key=lambda entry: entry.relative_error())) if entries else None


def tensors_of(comparison: Comparison) -> pl.DataFrame:
    """Return one row per tensor of the reference, with the columns `TENSORS`."""
    rows = []
    for entry in comparison.entries:
        record, scale = entry.record, entry.scale
        rows.append(
            {
                "step": record.step,
                "phase": record.phase,
                "module": record.module,
                "name": record.name,
                "call": record.call,
                "compared": entry.is_compared,
                "same": entry.is_right if entry.is_compared else None,
                "error": entry.relative_error() if entry.is_compared else None,
                "allowed": entry.allowed / scale if scale else None,
                "measured": entry.measured,
                "rounding": entry.rounding,
                "ranks": list(entry.wrong_ranks),
            }
        )
    return pl.DataFrame(rows, schema=TENSORS)


def _same(comparison: Comparison, model: str, frame: pl.DataFrame) -> str:
    """Return the verdict on a plan that computes the same numbers."""
    precision = "in float64" if comparison.is_exact else "in the program's own dtypes"
    compared = frame.filter(pl.col("compared")).height
    return (
        f"The same numbers: on {comparison.mesh}, {model} computes in {format_count(len(comparison.steps), 'step')} "
        f"what it computes on one process ({compared:,} tensors compared {precision})."
    )


def _place(comparison: Comparison, difference: FirstDifference, model: str) -> str:
    """Return the sentence on where the numbers first differ."""
    what = place_of(difference.phase, difference.module, difference.name, model)
    ranks = "all ranks" if len(difference.ranks) == comparison.mesh.size > 1 else format_ranks(difference.ranks)
    return (
        f"The numbers first differ in {difference.phase} of step {difference.step}: "
        f"{what}{size_of(difference.error)} on {ranks}."
    )


def place_of(phase: Phase, path: str, name: str, model: str) -> str:
    """Return the clause that says which tensor differs; the name ``parameters`` stands for those of the whole model."""
    module = f"{model}.{path}" if path else model
    is_single = name != "parameters"
    return {
        "forward": f"the output of {module} differs",
        "backward": f"the gradient of {module}'s output differs",
        "gradient": f"the gradient of {name} differs" if is_single else f"all gradients of {module} differ",
        "optimizer": f"what the optimizer adds to {name if is_single else 'all parameters'} differs",
    }[phase]


def size_of(error: float) -> str:
    """Return by how much a tensor differs, as the end of a clause; empty if the error is not finite."""
    return f" by {share_text(error)}{' of' if error < 10 else ''} its size" if math.isfinite(error) else ""


def share_text(error: float) -> str:
    """Return a relative difference as text: ``3.2e-05``, ``24 %`` or ``12 times``."""
    if error >= 10:
        return f"{error:,.0f} times" if error < 1e6 else f"{error:.2g} times"
    return f"{float(f'{100 * error:.2g}'):g} %" if error >= 0.001 else f"{error:.2g}"


def _looks(difference: FirstDifference) -> str:
    """Return the sentence on the likely reason of a difference, with the change to try."""
    if difference.match is None:
        return "It parts here, reason unknown."
    looks = difference.match.looks_like
    return f"{looks[0].upper()}{looks[1:]} ({difference.match.reason}): {difference.match.change}."
