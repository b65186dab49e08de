"""Applies all rules to a trace. A new rule is a function in a `…_rules.py` beside this file, and a line of `RULES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsexplore._internal.analysis.findings.data_parallel_rules import (
    freed_too_soon,
    large_start_up,
    reduced_each_microbatch,
    reduced_in_fp32,
    small_fsdp,
)
from dsexplore._internal.analysis.findings.evidence import Evidence
from dsexplore._internal.analysis.findings.finding import Finding, Findings
from dsexplore._internal.analysis.findings.optimizer_rules import optimizer_gathers, optimizer_reduces
from dsexplore._internal.analysis.findings.rank_rules import late_rank, value_errors
from dsexplore._internal.analysis.findings.tensor_parallel_rules import (
    all_reduce_of_shards,
    gathered_again,
    implicit_redistributes,
    repeated_collectives,
    siblings_reduce,
)
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.trace.steps import SteadySteps
from dsexplore._internal.trace.tables import Tables

Rule = Callable[[Evidence], Iterator[Finding]]

RULES: dict[str, Rule] = {
    "all_reduce_of_shards": all_reduce_of_shards,
    "freed_too_soon": freed_too_soon,
    "gathered_again": gathered_again,
    "implicit_redistributes": implicit_redistributes,
    "large_start_up": large_start_up,
    "late_rank": late_rank,
    "optimizer_gathers": optimizer_gathers,
    "optimizer_reduces": optimizer_reduces,
    "reduced_each_microbatch": reduced_each_microbatch,
    "reduced_in_fp32": reduced_in_fp32,
    "repeated_collectives": repeated_collectives,
    "siblings_reduce": siblings_reduce,
    "small_fsdp": small_fsdp,
    "value_errors": value_errors,
}
"""{name of a rule: its function}. All but `value_errors` need events."""


def findings(tables: Tables, skew: Skew | None = None, steady: SteadySteps | None = None) -> Findings:
    """Apply all rules to a trace.

    Args:
        tables: the trace.
        skew: the skew of the trace; None to compute it.
        steady: the steps from which figures per step are computed; None to compute them.
    """
    if tables.events.is_empty() and tables.differing.is_empty():
        return Findings(tables, [])
    evidence = Evidence(tables, skew, steady)
    rules = [value_errors] if tables.events.is_empty() else RULES.values()
    return Findings(tables, [finding for rule in rules for finding in rule(evidence)])
