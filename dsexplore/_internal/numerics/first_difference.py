"""Find where two runs first differ, in program order, and what the difference looks like.

A plan is right if the gradients that the optimizer reads and the updated parameters are right, in whatever form its
ranks hold activations in between. If they are wrong, the first difference is searched in this order:

1. **forward**: the first module whose output is wrong. An intermediate output (a partial sum, rows in another order)
   may be completed later, so it counts only if no right output is computed from it before the next wrong one. Modules
   inside a module with a right output do not count.
2. **backward**: the first output, in the order of backward, whose gradient is wrong. One factor on all ranks is a scale
   of the loss, and right if the gradients of parameters are. A partial sum does not count if it is reduced before
   gradients reach the inputs of this output.
3. **gradient** and **optimizer**: the first parameter in the order of backward; the whole model if all parameters are
   wrong for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared
from dsexplore._internal.numerics.numeric_records import Phase
from dsexplore._internal.numerics.part_layouts import same_indices
from dsexplore._internal.numerics.reasons.all_reasons import explain
from dsexplore._internal.numerics.reasons.dropout import WrongDraw, wrong_draws, wrong_recomputation
from dsexplore._internal.numerics.reasons.factor import common_factor
from dsexplore._internal.numerics.reasons.match import Match, Reason, is_close
from dsexplore._internal.numerics.reasons.missing_reduction import factor_of_sum
from dsexplore._internal.numerics.reasons.stale_values import match_of, unsynchronized

COMPLETED_LATER: tuple[Reason, ...] = ("missing reduction",)
"""Reasons that an intermediate output of a right plan may have."""


@dataclass(frozen=True)
class FirstDifference:
    """The first place where the numbers differ."""

    phase: Phase
    module: str
    name: str
    """Name of the parameter, or ``output``; ``parameters`` for all parameters."""
    step: int
    ranks: tuple[int, ...]
    """Ranks whose numbers differ."""
    match: Match | None
    """Likely reason of the difference; None if no rule matches."""
    error: float
    """Largest relative error of a rank."""


def first_difference(comparison: Comparison) -> FirstDifference | None:
    """Return where the numbers first differ by more than rounding; None if they are the same."""
    searches = (
        _start_difference,
        _forward_difference,
        _recomputation_difference,
        _backward_difference,
        _parameter_difference,
    )
    for step in comparison.steps:
        if _is_wrong(comparison, step):
            differences = (search(comparison, step) for search in searches)
            return next((difference for difference in differences if difference is not None), None)
    return next((_draw_difference(step, draw) for step, draw in wrong_draws(comparison)), None)


def _is_wrong(comparison: Comparison, step: int) -> bool:
    """Return True if gradients or parameters of a step are wrong, or the model's output if there are none."""
    gradients, parameters = comparison.of("gradient", step), comparison.of("optimizer", step)
    wrong = [entry for entry in gradients if not entry.is_right]
    if any(not entry.is_right for entry in parameters):
        return True
    if not gradients and not any(entry.scale for entry in parameters):
        outputs = [entry for entry in comparison.of("forward", step) if not entry.record.module]
        return any(not entry.is_right for entry in outputs)
    # Optimizers with shards may reduce gradients after the hook that records them, so this reduction is not missing.
    matches = (explain(entry, comparison) for entry in wrong)
    return any(match is None or match.reason != "missing reduction" for match in matches)


def _difference(entry: Compared, match: Match | None, ranks: tuple[int, ...] = ()) -> FirstDifference:
    """Return the difference of an entry, on `ranks`, or else on its wrong ranks, or else on all that hold it."""
    record = entry.record
    wrong = ranks or entry.wrong_ranks or tuple(sorted({part.holder.rank for part in entry.parts}))
    error = entry.relative_error()
    if entry.is_right:  # up to a factor
        error = max(abs(part.factor - 1) for part in entry.parts)
    return FirstDifference(
        phase=record.phase,
        module=record.module,
        name=record.name,
        step=record.step,
        ranks=wrong,
        match=match,
        error=error,
    )


def _start_difference(comparison: Comparison, step: int) -> FirstDifference | None:
    """Return the difference of parameters that are not synchronized before the first step."""
    names = unsynchronized(comparison)
    if not names:
        return None
    match = match_of(names)
    modules = {name.rpartition(".")[0] for name in names}
    ranks = tuple(sorted({rank for ranks_of_name in names.values() for rank in ranks_of_name}))
    for entry in comparison.of("forward", step):
        if entry.record.module in modules:
            return _difference(entry, match, ranks)
    first = next(iter(names))
    return FirstDifference(
        phase="forward",
        module=first.rpartition(".")[0],
        name=first,
        step=step,
        ranks=ranks,
        match=match,
        error=float("inf"),
    )


def _forward_difference(comparison: Comparison, step: int) -> FirstDifference | None:
    """Return the first wrong output, see the module's docstring.

    ``chain`` has the wrong outputs that no right output has completed yet.
    """
    entries = comparison.of("forward", step)
    right = {entry.record.module for entry in entries} - {e.record.module for e in entries if not e.is_right}
    chain: list[tuple[Compared, Match]] = []
    upstream: dict[str, set[str]] = {}
    for entry in entries:
        before = _add_upstream(upstream, entry)
        if right.intersection(entry.record.inside):
            continue
        if entry.is_right:
            chain = [
                (earlier, match)
                for earlier, match in chain
                if match.reason not in COMPLETED_LATER or (before is not None and earlier.record.module not in before)
            ]
            continue
        match = explain(entry, comparison)
        if match is None:
            return _difference(*chain[0]) if chain else _difference(entry, None)
        chain.append((entry, match))
    return _difference(*chain[0]) if chain and not chain[-1][0].record.inside else None


def _add_upstream(upstream: dict[str, set[str]], entry: Compared) -> set[str] | None:
    """Add to `upstream` the modules that an output is computed from, and return them; None if they are unknown."""
    sources = entry.record.sources
    if sources is None:
        return None
    before = set(sources).union(*(upstream.get(source, set()) for source in sources))
    upstream[entry.record.module] = upstream.get(entry.record.module, set()) | before
    return before


def _recomputation_difference(comparison: Comparison, step: int) -> FirstDifference | None:
    """Return the first module whose recomputation draws another mask of dropout than its forward."""
    draw = next(wrong_recomputation(comparison, step), None)
    return None if draw is None else _draw_difference(step, draw)


def _backward_difference(comparison: Comparison, step: int) -> FirstDifference | None:
    """Return the first wrong gradient of a right output, see the module's docstring."""
    wrong_forward = {entry.record.module for entry in comparison.of("forward", step) if not entry.is_right}
    data_axes = _data_axes(comparison, step)
    scale: float | None = None
    for entry in comparison.of("backward", step):
        if entry.record.module in wrong_forward:
            continue
        factor = common_factor(entry.parts, entry)
        if factor is not None:
            if scale is None:
                scale = factor
            if is_close(factor, scale) or _is_zero(entry):
                continue
        elif entry.is_right and _is_zero(entry):
            continue
        outermost = _outermost(entry, comparison.of("backward", step))
        if scale is not None and _is_scaled_sum(outermost, data_axes, scale):
            continue
        match = explain(outermost, comparison)
        if match is not None and match.axes and set(match.axes) <= data_axes:
            continue  # a partial sum over data ranks, which the gradient reduction completes
        if match is not None and match.reason in COMPLETED_LATER and _is_reduced_upstream(entry, comparison, scale):
            continue  # reduced before the inputs of this output; gradients of parameters are checked next
        return _difference(outermost, match)
    return None


def _is_reduced_upstream(entry: Compared, comparison: Comparison, scale: float | None) -> bool:
    """Return True if the gradients of all outputs that this one is computed from are right, up to the loss scale."""
    step, module = entry.record.step, entry.record.module
    sources: set[str] = set()
    for output in comparison.of("forward", step):
        if output.record.module == module:
            sources.update(output.record.sources or ())
    gradients = [gradient for gradient in comparison.of("backward", step) if gradient.record.module in sources]
    if not sources or {gradient.record.module for gradient in gradients} != sources:
        return False
    for gradient in gradients:
        factor = common_factor(gradient.parts, gradient)
        if not _is_zero(gradient) and (factor is None or not is_close(factor, scale or 1.0)):
            return False
    return True


def _is_scaled_sum(entry: Compared, axes: set[str], scale: float) -> bool:
    """Return True if the gradient is a partial sum along `axes` of `scale` times the reference's gradient."""
    factor = factor_of_sum(entry.parts, axes, entry)
    return factor is not None and is_close(factor, scale)


def _data_axes(comparison: Comparison, step: int) -> set[str]:
    """Return the axes along which ranks have different rows of the model's output."""
    parts = [part for entry in comparison.of("backward", step)[:1] for part in entry.parts]
    axes = set()
    for first, second in combinations(parts, 2):
        places = first.holder.coordinates, second.holder.coordinates
        differing = [axis for axis in places[0] if places[0][axis] != places[1][axis]]
        if len(differing) == 1 and not same_indices(first.indices[:-1], second.indices[:-1]):
            axes.add(differing[0])
    return axes


def _outermost(entry: Compared, entries: Sequence[Compared]) -> Compared:
    """Return the entry of the outermost module that returned the same tensor."""
    around = {module: place for place, module in enumerate(entry.record.inside)}
    same = [other for other in entries if other.record.module in around and torch.equal(other.whole, entry.whole)]
    return min(same, key=lambda other: around[other.record.module], default=entry)


def _is_zero(entry: Compared) -> bool:
    """Return True if the reference's values are zero up to rounding."""
    return entry.scale <= entry.allowed


def _parameter_difference(comparison: Comparison, step: int) -> FirstDifference | None:
    """Return the first wrong gradient or parameter, or that of all parameters if they have one reason."""
    for phase in ("gradient", "optimizer"):
        entries = comparison.of(phase, step)
        wrong = [(entry, explain(entry, comparison)) for entry in reversed(entries) if not entry.is_right]
        if not wrong:
            continue
        if _have_same_reason(entries, wrong):
            entry, match = wrong[0]
            ranks = tuple(sorted({rank for entry, _ in wrong for rank in entry.wrong_ranks}))
            error = max(entry.relative_error() for entry, _ in wrong)
            return FirstDifference(
                phase=entry.phase, module="", name="parameters", step=step, ranks=ranks, match=match, error=error
            )
        return _difference(*wrong[0])
    return None


def _have_same_reason(entries: Sequence[Compared], wrong: Sequence[tuple[Compared, Match | None]]) -> bool:
    """Return True if all changing parameters are wrong for the same reason, or all for an unknown one."""
    reasons = {match.reason if match is not None else None for _, match in wrong}
    changing = [entry for entry in entries if not _is_zero(entry)]
    return len(entries) > 1 and len(wrong) >= len(changing) and len(reasons) == 1


def _draw_difference(step: int, draw: WrongDraw) -> FirstDifference:
    return FirstDifference(
        phase=draw.phase,
        module=draw.module,
        name="output",
        step=step,
        ranks=draw.ranks,
        match=draw.match,
        error=float("nan"),
    )
