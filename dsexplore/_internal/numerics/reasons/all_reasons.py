"""The reasons why a plan's numbers may differ from the model's, in the order in which they are tried: narrow ones
first.
"""

from __future__ import annotations

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared
from dsexplore._internal.numerics.reasons import (
    attention_mask,
    dropout,
    factor,
    fused_parts,
    given_input,
    local_norm,
    misplaced_slices,
    missing_reduction,
    partial_softmax,
    stale_values,
    uneven_rows,
)
from dsexplore._internal.numerics.reasons.match import Match, Rule

RULES: tuple[Rule, ...] = (
    uneven_rows.unequal_batches,
    factor.rule,
    stale_values.stale_gradients,
    stale_values.stale_parameters,
    missing_reduction.rule,
    partial_softmax.rule,
    misplaced_slices.shift,
    misplaced_slices.permutation,
    uneven_rows.padding,
    local_norm.rule,
    dropout.rule,
    attention_mask.rule,
    fused_parts.rule,
    given_input.rule,
)
MOST_TRIED = 12
"""Number of layouts of one tensor that each rule is tried on, those that agree best."""


def explain(entry: Compared, comparison: Comparison) -> Match | None:
    """Return the match of the first rule that fits an entry; None if none fits."""
    layouts = entry.alternatives[:MOST_TRIED] or [entry.parts]
    for rule in RULES:
        for parts in layouts:
            match = rule(parts, entry, comparison)
            if match is not None:
                return match
    return None
