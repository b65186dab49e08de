"""All rules, and what they find in a trace. To add a rule, write a file beside this one and add its line to `RULES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dsexplore.analysis.findings.all_reduce_of_shards import all_reduce_of_shards
from dsexplore.analysis.findings.evidence import Evidence
from dsexplore.analysis.findings.finding import Finding, Findings
from dsexplore.analysis.findings.freed_too_soon import freed_too_soon
from dsexplore.analysis.findings.gathered_again import gathered_again
from dsexplore.analysis.findings.implicit_redistributes import implicit_redistributes
from dsexplore.analysis.findings.large_start_up import large_start_up
from dsexplore.analysis.findings.late_rank import late_rank
from dsexplore.analysis.findings.optimizer_gathers import optimizer_gathers
from dsexplore.analysis.findings.optimizer_reduces import optimizer_reduces
from dsexplore.analysis.findings.reduced_each_microbatch import reduced_each_microbatch
from dsexplore.analysis.findings.reduced_in_fp32 import reduced_in_fp32
from dsexplore.analysis.findings.repeated_collectives import repeated_collectives
from dsexplore.analysis.findings.siblings_reduce import siblings_reduce
from dsexplore.analysis.findings.small_fsdp import small_fsdp
from dsexplore.analysis.skew import Skew
from dsexplore.trace.tables import Tables

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
}


def findings(tables: Tables, skew: Skew | None = None) -> Findings:
    """Apply all rules to a trace.

    Args:
        tables: the trace.
        skew: of the trace, where it is known already.
    """
    if tables.events.is_empty():
        return Findings(tables, [])
    evidence = Evidence(tables, skew)
    return Findings(tables, [one for rule in RULES.values() for one in rule(evidence)])
