"""Rules about what an optimizer's step sends."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import EventGroup, Evidence
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes

# The optimizer gathers or broadcasts tensors, where an elementwise update of each rank's shard would send nothing.


def optimizer_gathers(evidence: Evidence) -> Iterator[Finding]:
    """Yield all_gathers, gathers and broadcasts in the optimizer phase."""
    is_gather = (pl.col("phase") == "optimizer") & pl.col("op").is_in(["all_gather", "broadcast", "gather"])
    gathered = evidence.events.filter(is_gather & (pl.col("wire_bytes") > 0))
    # of the gathers of one shape the first is needed by an update that reads whole matrices, the others are the same
    tensor = ("rank", "step", "group", "op", "dtype", pl.col("shape").list.sort())
    again = pl.col("implicit") & (pl.int_range(pl.len()).over(tensor) > 0)
    yield from evidence.findings(
        "optimizer_gathers",
        gathered,
        _why_gathers,
        _shard_states,
        spare=again,
        by=("axis", "place", "op"),
    )


def _why_gathers(group: EventGroup) -> str:
    by = f" by {', '.join(group.causes[:3])}" if any(group.causes) else ""
    return f"{group.calls} of at most {format_bytes(group.each)} in the optimizer{by}: " + (
        "each rank updates some parameters and sends them whole to all others"
        if "broadcast" in group.calls
        else "the update needs whole tensors, and gathers shards for every op that reads them"
        if any(group.causes)
        else "each rank updates its part, and the program gathers the parts of all ranks"
    )


def _shard_states(group: EventGroup) -> str:
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


# The optimizer reduces gradients that are still Partial, once for each time that it reads one.
#
# Under sequence parallelism the gradient of a norm is the sum over the ranks of an axis of what each got from its
# part of
# the sequence. Adam reads each gradient three times, and each reading is an all_reduce.


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
        _why_reduces,
        _foreach_norms,
        spare=again,
        by=("axis", "place", "op"),
    )


def _why_reduces(group: EventGroup) -> str:
    return (
        f"{group.calls} of at most {format_bytes(group.each)} in the optimizer: gradients are Partial "
        f"on {group.axis or 'their group'}, and each of {', '.join(group.causes[:3])} reduces them anew"
    )


def _foreach_norms(group: EventGroup) -> str:
    return (
        "before optimizer.step(), make each such gradient whole once: "
        "p.grad = p.grad.redistribute(placements=[Replicate()] * p.grad.device_mesh.ndim) for parameters that are "
        "replicated, as norms are under sequence parallelism"
    )
