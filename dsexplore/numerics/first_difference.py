"""Find where two runs first differ, in program order, and what the difference looks like.

Whether a plan is right is decided by what it is for: the gradients that the optimizer reads, and what it makes of the
parameters. Where these are right, so is the plan, however its ranks hold activations in between. Where they are not,
the first place is looked for:

1. **forward**: the first module whose output is wrong. A rank's output may be an intermediate one (a part of a sum,
   rows in another order) that is made whole later; so such an output counts only if nothing right is computed of it
   before an output that is wrong. What runs inside a module whose own output is right does not count.
2. **backward**: the first output, in the order of backward, whose gradient is wrong. One factor of all ranks is a scale
   of the loss, which is right if gradients of parameters are. Parts of a sum do not count if it is made before
   gradients reach the outputs from which this one is computed.
3. **gradient** and **optimizer**: the first parameter in the order of backward; the whole model, if all are wrong for
   the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.compared_values import Compared
from dsexplore.numerics.numeric_records import Phase
from dsexplore.numerics.part_layouts import same_indices
from dsexplore.numerics.reasons.all_reasons import explain
from dsexplore.numerics.reasons.dropout import DrawnOtherwise, drawn_again, drawn_otherwise
from dsexplore.numerics.reasons.factor import common_factor
from dsexplore.numerics.reasons.match import Match, Reason, is_close
from dsexplore.numerics.reasons.missing_reduction import factor_of_sum
from dsexplore.numerics.reasons.stale_values import match_of, unsynchronized

MADE_WHOLE: tuple[Reason, ...] = ("missing reduction",)
"""What a right plan may have for a while."""


@dataclass(frozen=True)
class FirstDifference:
    """The first place where the numbers differ."""

    phase: Phase
    module: str
    name: str
    """Of the parameter, or ``output``; ``parameters`` for all of them."""
    step: int
    ranks: tuple[int, ...]
    match: Match | None
    """What it looks like; None where no rule fits."""
    error: float
    """Relative to the reference, of the worst rank."""


def first_difference(comparison: Comparison) -> FirstDifference | None:
    """Return where the numbers first differ by more than rounding; None where they are the same."""
    for step in comparison.steps:
        if _is_wrong(comparison, step):
            return (
                _at_start(comparison, step)
                or _in_forward(comparison, step)
                or next((_of_draw(step, place) for place in drawn_again(comparison, step)), None)
                or _in_backward(comparison, step)
                or _in_parameters(comparison, step)
            )
    return next((_of_draw(step, place) for step, place in drawn_otherwise(comparison)), None)


def _is_wrong(comparison: Comparison, step: int) -> bool:
    """Return True if gradients or parameters of a step are wrong; of a program without them, the model's output."""
    gradients, parameters = comparison.of("gradient", step), comparison.of("optimizer", step)
    wrong = [entry for entry in gradients if not entry.is_right]
    if any(not entry.is_right for entry in parameters):
        return True
    if not gradients and not any(entry.scale for entry in parameters):
        return any(not e.is_right for e in comparison.of("forward", step) if not e.record.module)
    # A reduction that comes after the optimizer's hook, as in optimizers that hold shards, is none that is missing.
    return any((match := explain(e, comparison)) is None or match.reason != "missing reduction" for e in wrong)


def _difference(entry: Compared, match: Match | None, ranks: tuple[int, ...] = ()) -> FirstDifference:
    record = entry.record
    wrong = ranks or entry.wrong_ranks or tuple(sorted({part.holder.rank for part in entry.parts}))
    error = entry.relative_error()
    if entry.is_right:  # but for a factor
        error = max(abs(part.factor - 1) for part in entry.parts)
    return FirstDifference(record.phase, record.module, record.name, record.step, wrong, match, error)


def _at_start(comparison: Comparison, step: int) -> FirstDifference | None:
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
    return FirstDifference("forward", first.rpartition(".")[0], first, step, ranks, match, float("inf"))


def _in_forward(comparison: Comparison, step: int) -> FirstDifference | None:
    entries = comparison.of("forward", step)
    right = {entry.record.module for entry in entries} - {e.record.module for e in entries if not e.is_right}
    chain: list[tuple[Compared, Match]] = []
    upstream: dict[str, set[str]] = {}
    for entry in entries:
        before = _upstream_of(entry, upstream)
        if right.intersection(entry.record.inside):
            continue
        if entry.is_right:
            chain = [
                (entry, match)
                for entry, match in chain
                if match.reason not in MADE_WHOLE or (before is not None and entry.record.module not in before)
            ]
            continue
        match = explain(entry, comparison)
        if match is None:
            return _difference(*chain[0]) if chain else _difference(entry, None)
        chain.append((entry, match))
    return _difference(*chain[0]) if chain and not chain[-1][0].record.inside else None


def _upstream_of(entry: Compared, upstream: dict[str, set[str]]) -> set[str] | None:
    """Return the modules that an output is computed from, and add it to those of all outputs; None if unknown."""
    sources = entry.record.sources
    if sources is None:
        return None
    before = set(sources).union(*(upstream.get(source, set()) for source in sources))
    upstream[entry.record.module] = upstream.get(entry.record.module, set()) | before
    return before


def _in_backward(comparison: Comparison, step: int) -> FirstDifference | None:
    odd = {entry.record.module for entry in comparison.of("forward", step) if not entry.is_right}
    data = _axes_of_data(comparison, step)
    scale: float | None = None
    for entry in comparison.of("backward", step):
        if entry.record.module in odd:
            continue
        factor = common_factor(entry.parts, entry)
        if factor is not None:
            scale = factor if scale is None else scale
            if is_close(factor, scale) or _is_zero(entry):
                continue
        elif entry.is_right and _is_zero(entry):
            continue
        outermost = _outermost(entry, comparison.of("backward", step))
        if scale is not None and _is_scaled_sum(outermost, data, scale):
            continue
        match = explain(outermost, comparison)
        if match is not None and match.axes and set(match.axes) <= data:
            continue  # of what is the same for all data: reduced with the gradients of parameters
        if match is not None and match.reason in MADE_WHOLE and _is_made_whole(entry, comparison, scale):
            continue  # reduced before the modules that it is computed of; gradients of its parameters are asked next
        return _difference(outermost, match)
    return None


def _is_made_whole(entry: Compared, comparison: Comparison, scale: float | None) -> bool:
    """Return True if the gradients of all outputs that this one is computed of are right, in that scale of the loss."""
    step, module = entry.record.step, entry.record.module
    sources = {s for e in comparison.of("forward", step) if e.record.module == module for s in e.record.sources or ()}
    of_sources = [e for e in comparison.of("backward", step) if e.record.module in sources]
    return (
        bool(sources)
        and {e.record.module for e in of_sources} == sources
        and all(
            _is_zero(e) or ((factor := common_factor(e.parts, e)) is not None and is_close(factor, scale or 1.0))
            for e in of_sources
        )
    )


def _is_scaled_sum(entry: Compared, axes: set[str], scale: float) -> bool:
    """Return True if ranks hold parts of the gradient, of a loss so many times the reference's, along these axes."""
    factor = factor_of_sum(entry.parts, axes, entry)
    return factor is not None and is_close(factor, scale)


def _axes_of_data(comparison: Comparison, step: int) -> set[str]:
    """Return the axes whose ranks, or calls in turn, have different rows of the model's output."""
    parts = [part for entry in comparison.of("backward", step)[:1] for part in entry.parts]
    axes = set()
    for first, second in combinations(parts, 2):
        places = first.holder.coordinates, second.holder.coordinates
        differing = [axis for axis in places[0] if places[0][axis] != places[1][axis]]
        if len(differing) == 1 and not same_indices(first.indices[:-1], second.indices[:-1]):
            axes.add(differing[0])
    return axes


def _outermost(entry: Compared, entries: Sequence[Compared]) -> Compared:
    """Return the entry of the outermost module that returned the same tensor, whose hooks are called after others."""
    around = {module: place for place, module in enumerate(entry.record.inside)}
    same = [other for other in entries if other.record.module in around and torch.equal(other.whole, entry.whole)]
    return min(same, key=lambda other: around[other.record.module], default=entry)


def _is_zero(entry: Compared) -> bool:
    return entry.scale <= entry.allowed


def _in_parameters(comparison: Comparison, step: int) -> FirstDifference | None:
    for phase in ("gradient", "optimizer"):
        entries = comparison.of(phase, step)
        wrong = [(entry, explain(entry, comparison)) for entry in reversed(entries) if not entry.is_right]
        if not wrong:
            continue
        if _have_a_common_reason(entries, wrong):
            entry, match = wrong[0]
            ranks = tuple(sorted({rank for entry, _ in wrong for rank in entry.wrong_ranks}))
            error = max(entry.relative_error() for entry, _ in wrong)
            return FirstDifference(entry.phase, "", "parameters", step, ranks, match, error)
        return _difference(*wrong[0])
    return None


def _have_a_common_reason(entries: Sequence[Compared], wrong: Sequence[tuple[Compared, Match | None]]) -> bool:
    """Return True if all parameters are wrong, but those that do not change, for one reason or all for none known."""
    reasons = {match.reason if match is not None else None for _, match in wrong}
    changing = [entry for entry in entries if not _is_zero(entry)]
    return len(entries) > 1 and len(wrong) >= len(changing) and len(reasons) == 1


def _of_draw(step: int, place: DrawnOtherwise) -> FirstDifference:
    return FirstDifference(place.phase, place.module, "output", step, place.ranks, place.match, float("nan"))
