"""Several modules gather the same input: what is gathered for the first is already whole for the others.

``q``, ``k`` and ``v`` whose input is sharded along the sequence each redistribute it, S(1) to Replicate.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group, after_a_sibling
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes


def gathered_again(evidence: Evidence) -> Iterator[Finding]:
    """Yield equal consecutive all_gathers of sibling modules, and the reduce_scatters of their backward."""
    forward = (pl.col("op") == "all_gather") & pl.col("cause").str.contains(r"^redistribute (backward )?_?S.*→R$")
    backward = (pl.col("op") == "reduce_scatter") & pl.col("cause").str.contains(r"^redistribute backward P→")
    moved = evidence.events.filter(forward | backward)
    if moved.is_empty():
        return
    repeated = after_a_sibling(evidence).filter(forward | backward)
    owner = pl.col("parent").alias("owner")
    yield from evidence.findings(
        "gathered_again",
        repeated.with_columns(owner),
        _why,
        _change,
        spare=1,
        by=("place", "axis"),
    )


def _why(group: Group) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} on {group.axis or 'no axis'} too many: its modules gather the "
        "same input one after the other, and scatter its gradient as often"
    )


def _change(group: Group) -> str:
    return (
        f"gather it once, where {group.place} is entered: PrepareModuleInput(input_layouts=(Shard(1),), "
        "desired_input_layouts=(Replicate(),)) on it, and ColwiseParallel() without input_layouts on the modules inside"
    )
