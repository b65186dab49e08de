"""The optimizer reduces gradients that are still Partial, once for each time that it reads one.

Under sequence parallelism the gradient of a norm is the sum over the ranks of an axis of what each got from its part of
the sequence. Adam reads each gradient three times, and each reading is an all_reduce.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes


def optimizer_reduces(evidence: Evidence) -> Iterator[Finding]:
    """Yield repeated all_reduces of one Partial tensor in the optimizer phase; all but one per tensor can be saved."""
    partial = pl.col("implicit") & (pl.col("op") == "all_reduce") & pl.col("cause").str.contains("P→R", literal=True)
    reduced = evidence.events.filter((pl.col("phase") == "optimizer") & partial)
    # one tensor's readings have one shape; the op that reads the fewest times reads each tensor once
    tensor = ("rank", "step", "group", "dtype", "shape")
    once = reduced.group_by(*tensor, "cause").len("once").group_by(*tensor).agg(pl.col("once").min())
    sized = reduced.join(once, on=tensor, how="left", nulls_equal=True, maintain_order="left")
    again = 1 - pl.col("once") / pl.len().over(tensor)
    yield from evidence.findings(
        "optimizer_reduces",
        sized.filter(again > 0),
        _why,
        _change,
        spare=again,
        by=("axis", "place", "op"),
    )


def _why(group: Group) -> str:
    return (
        f"{group.calls} of at most {format_bytes(group.each)} in the optimizer: gradients are Partial "
        f"on {group.axis or 'their group'}, and each of {', '.join(group.causes[:3])} reduces them anew"
    )


def _change(group: Group) -> str:
    return (
        "before optimizer.step(), make each such gradient whole once: "
        "p.grad = p.grad.redistribute(placements=[Replicate()] * p.grad.device_mesh.ndim) for parameters that are "
        "replicated, as norms are under sequence parallelism"
    )
