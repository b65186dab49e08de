"""Redistributes that the program did not ask for: an op on DTensors met placements that it cannot compute with."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import BY_PLACE, Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes

_NEEDED = "aten.linalg_vector_norm"
"""The op whose Partial result clip_grad_norm_ sums over the ranks: a few bytes, and nothing else would do."""


def implicit_redistributes(evidence: Evidence) -> Iterator[Finding]:
    """Yield implicit redistributes outside the optimizer, which has rules of its own."""
    asked = pl.col("implicit") & (pl.col("phase") != "optimizer") & ~pl.col("cause").str.starts_with(_NEEDED)
    found = evidence.events.filter(asked & (pl.col("wire_bytes") > 0)).with_columns(pl.col("trigger").alias("owner"))
    yield from evidence.findings(
        "implicit_redistributes",
        found,
        _why,
        _change,
        spare=1,
        by=(*BY_PLACE, "cause"),
    )


def _why(group: Group) -> str:
    cause = f": {group.causes[0]}" if group.causes[0] else ""
    return f"{group.calls} of at most {format_bytes(group.each)} that the program did not ask for{cause}"


def _change(group: Group) -> str:
    before = group.causes[0].rpartition(" ")[2].partition("→")
    asked = f"{before[0]} to {before[2]}" if before[1] else "the placements"
    return (
        f"give the operands of this line the same placements when they are made, or redistribute once, from {asked}, "
        "where the tensor is used again"
    )
