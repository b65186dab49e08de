"""Several modules reduce the gradient of the same input, where one all_reduce of their sum would do.

Under tensor parallelism ``ColwiseParallel`` makes each of ``q``, ``k`` and ``v`` reduce its own input gradient.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group, after_a_sibling
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes


def siblings_reduce(evidence: Evidence) -> Iterator[Finding]:
    """Yield equal consecutive all_reduces of sibling modules in backward."""
    partial = pl.col("cause").str.contains(r"^redistribute (backward )?P→R$")
    reduced = (pl.col("phase") == "backward") & (pl.col("op") == "all_reduce") & partial
    if evidence.events.filter(reduced).is_empty():
        return
    repeated = after_a_sibling(evidence).filter(reduced)
    yield from evidence.findings(
        "siblings_reduce",
        repeated.with_columns(pl.col("parent").alias("owner")),
        _why,
        _change,
        spare=1,
        by=("place", "op", "axis"),
    )


def _why(group: Group) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} on {group.axis or 'no axis'} too many: its "
        "modules each reduce the gradient of the same input, where their sum could be reduced once"
    )


def _change(group: Group) -> str:
    return (
        f"make the input a DTensor where {group.place} is entered: PrepareModuleInput(input_layouts=(Replicate(),), "
        "desired_input_layouts=(Replicate(),)) on it; the gradients are then summed before they are reduced"
    )
