"""The optimizer gathers or broadcasts tensors, where an elementwise update of each rank's shard would send nothing."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes


def optimizer_gathers(evidence: Evidence) -> Iterator[Finding]:
    """Yield all_gathers, gathers and broadcasts in the optimizer phase."""
    moved = (pl.col("phase") == "optimizer") & pl.col("op").is_in(["all_gather", "broadcast", "gather"])
    gathered = evidence.events.filter(moved & (pl.col("wire_bytes") > 0))
    # of the gathers of one shape the first is needed by an update that reads whole matrices, the others are the same
    tensor = ("rank", "step", "group", "op", "dtype", pl.col("shape").list.sort())
    again = pl.col("implicit") & (pl.int_range(pl.len()).over(tensor) > 0)
    yield from evidence.findings(
        "optimizer_gathers",
        gathered,
        _why,
        _change,
        spare=again,
        by=("axis", "place", "op"),
    )


def _why(group: Group) -> str:
    by = f" by {', '.join(group.causes[:3])}" if any(group.causes) else ""
    return f"{group.calls} of at most {format_bytes(group.each)} in the optimizer{by}: " + (
        "each rank updates some parameters and sends them whole to all others"
        if "broadcast" in group.calls
        else "the update needs whole tensors, and gathers shards for every op that reads them"
        if any(group.causes)
        else "each rank updates its part, and the program gathers the parts of all ranks"
    )


def _change(group: Group) -> str:
    if "broadcast" in group.calls:
        return (
            "ZeroRedundancyOptimizer(…, parameters_as_bucket_view=True) sends them in buckets; fully_shard keeps them "
            "sharded, gathers ahead of use and sends nothing here"
        )
    if not any(group.causes):
        return (
            "wait for each gather in the next forward, before the module that reads its parameters; or fully_shard, "
            "which keeps them sharded, gathers ahead of use and sends nothing here for an elementwise optimizer"
        )
    return (
        "make each tensor whole once (gradient.full_tensor()), update it, and keep the rank's shard; or use an "
        "elementwise optimizer, such as AdamW, for what is sharded"
    )
