"""Rules about the collectives of an optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore._internal.analysis.findings.evidence import EventGroup, Evidence
from dsexplore._internal.analysis.findings.finding import Finding
from dsexplore._internal.units import format_bytes

# The optimizer gathers or broadcasts tensors, where an elementwise update of each rank's shard would send nothing.


def optimizer_gathers(evidence: Evidence) -> Iterator[Finding]:
    """Yield implicit gathers of one tensor in the optimizer, and small tensors that are sent one by one.

    An optimizer that updates parts of the parameters, such as ZeRO's, has to send each part once, but not one by one.
    """
    is_sent = evidence.texts("op", ("all_gather", "broadcast", "gather").__contains__) & (pl.col("wire_bytes") > 0)
    sent = evidence.tables.with_columns(evidence.events.filter((pl.col("phase") == "optimizer") & is_sent), *_TENSOR)
    yield from evidence.findings(
        "optimizer_gathers",
        _repeated(sent.filter("implicit").with_columns(pl.col("shape").list.sort())),
        _why_gathers,
        _make_whole_once,
        spare=pl.col("again"),
        by=("axis", "place", "op"),
    )
    together = pl.len().over("rank", "step", "group", "op", "dtype", "root")
    small = sent.filter((pl.col("cause") == "") & (pl.col("message_bytes") < _SMALL))
    yield from evidence.findings(
        "optimizer_gathers",
        small.filter(together > 1),
        _why_small_calls,
        _send_in_bulk,
        spare=0.0,
        spare_calls=1 - 1 / together,
        by=("axis", "place", "op"),
    )


_TENSOR = ("shape", "root")
_SMALL = 1024 * 1024
"""Message bytes below which the time of a collective does not depend on its bytes."""


def _why_gathers(group: EventGroup) -> str:
    by = f" by {', '.join(group.causes[:3])}" if any(group.causes) else ""
    return (
        f"{group.calls} of at most {format_bytes(group.largest_bytes)} in the optimizer{by}: the update needs whole "
        "tensors, and gathers shards for every op that reads them"
    )


def _make_whole_once(_group: EventGroup) -> str:
    return (
        "make each tensor whole once (gradient.full_tensor()), update it, and keep the rank's shard; or use an "
        "elementwise optimizer, such as AdamW, for what is sharded"
    )


def _why_small_calls(group: EventGroup) -> str:
    who = (
        "each rank updates some parameters and sends them whole to all others"
        if "broadcast" in group.calls
        else "each rank updates its part, and the program gathers the parts of all ranks"
    )
    return f"{group.calls} of at most {format_bytes(group.largest_bytes)} in the optimizer, one by one: {who}"


def _send_in_bulk(group: EventGroup) -> str:
    if "broadcast" in group.calls:
        return "ZeroRedundancyOptimizer(…, parameters_as_bucket_view=True), which sends what a rank updates as one"
    return (
        "let the parameters be views of one flat tensor, update the rank's part of it and gather it with one "
        "all_gather_into_tensor; or fully_shard, which sends nothing here for an elementwise optimizer"
    )


# The optimizer reduces gradients that are still Partial, once for each time that it reads one.
#
# Under sequence parallelism, the gradient of a norm is a sum over the ranks of an axis, each of which has the gradient
# of its part of the sequence. Adam reads each gradient three times, and each read is an all_reduce.


def optimizer_reduces(evidence: Evidence) -> Iterator[Finding]:
    """Yield repeated all_reduces of one Partial tensor in the optimizer phase; all but one per tensor can be saved."""
    is_partial = evidence.texts("cause", lambda cause: "P→R" in cause)
    partial = pl.col("implicit") & (pl.col("op") == "all_reduce") & is_partial
    in_optimizer = evidence.events.filter((pl.col("phase") == "optimizer") & partial)
    reduced = evidence.tables.with_columns(in_optimizer, *_TENSOR)
    yield from evidence.findings(
        "optimizer_reduces",
        _repeated(reduced),
        _why_reduces,
        _foreach_norms,
        spare=pl.col("again"),
        by=("axis", "place", "op"),
    )


def _repeated(implicit: pl.DataFrame) -> pl.DataFrame:
    """Return the collectives of tensors that are sent for several ops, with ``again``: the fraction that is needless.

    Tensors are told apart by their shapes. The op with the fewest collectives reads each tensor once.
    """
    tensor = ("rank", "step", "group", "op", "dtype", "shape")
    once = implicit.group_by(*tensor, "cause").len("once").group_by(*tensor).agg(pl.col("once").min())
    sized = implicit.join(once, on=tensor, how="left", nulls_equal=True, maintain_order="left")
    return sized.with_columns(again=1 - pl.col("once") / pl.len().over(tensor)).filter(pl.col("again") > 0)


def _why_reduces(group: EventGroup) -> str:
    return (
        f"{group.calls} of at most {format_bytes(group.largest_bytes)} in the optimizer: gradients are Partial "
        f"on {group.axis or 'their group'}, and each of {', '.join(group.causes[:3])} reduces them anew"
    )


def _foreach_norms(group: EventGroup) -> str:
    return (
        "before optimizer.step(), make each such gradient whole once: "
        "p.grad = p.grad.redistribute(placements=[Replicate()] * p.grad.device_mesh.ndim) for parameters that are "
        "replicated, as norms are under sequence parallelism"
    )
