"""Rules about collectives of tensor parallelism and of redistributed DTensors, and about what is sent twice."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import BY_PLACE, EventGroup, Evidence, after_a_sibling
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes

# Several modules gather the same input: what is gathered for the first is already whole for the others.
#
# ``q``, ``k`` and ``v`` whose input is sharded along the sequence each redistribute it, S(1) to Replicate.


def gathered_again(evidence: Evidence) -> Iterator[Finding]:
    """Yield equal consecutive all_gathers of sibling modules, and the reduce_scatters of their backward."""
    forward = (pl.col("op") == "all_gather") & pl.col("cause").str.contains(r"^redistribute (backward )?_?S.*→R$")
    backward = (pl.col("op") == "reduce_scatter") & pl.col("cause").str.contains(r"^redistribute backward P→")
    in_step = evidence.events.filter(forward | backward)
    if in_step.is_empty():
        return
    repeated = after_a_sibling(evidence).filter(forward | backward)
    owner = pl.col("parent").alias("owner")
    yield from evidence.findings(
        "gathered_again",
        repeated.with_columns(owner),
        _why_gathered,
        _gather_once,
        spare=1,
        by=("place", "axis"),
    )


def _why_gathered(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} on {group.axis or 'no axis'} could be saved: its modules "
        "gather the same input one after the other, and scatter its gradient as often"
    )


def _gather_once(group: EventGroup) -> str:
    return (
        f"gather it once, where {group.place} is entered: PrepareModuleInput(input_layouts=(Shard(1),), "
        "desired_input_layouts=(Replicate(),)) on it, and ColwiseParallel() without input_layouts on the modules inside"
    )


# Several modules reduce the gradient of the same input, where one all_reduce of their sum would do.
#
# Under tensor parallelism ``ColwiseParallel`` makes each of ``q``, ``k`` and ``v`` reduce its own input gradient.


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
        _why_siblings,
        _reduce_once,
        spare=1,
        by=("place", "op", "axis"),
    )


def _why_siblings(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} on {group.axis or 'no axis'} could be saved: its "
        "modules each reduce the gradient of the same input, where their sum could be reduced once"
    )


def _reduce_once(group: EventGroup) -> str:
    return (
        f"make the input a DTensor where {group.place} is entered: PrepareModuleInput(input_layouts=(Replicate(),), "
        "desired_input_layouts=(Replicate(),)) on it; the gradients are then summed before they are reduced"
    )


# An all_reduce of which each rank keeps a shard only: a reduce_scatter sends half as much.
#
# Partial → Replicate is an all_reduce; Replicate → Shard sends nothing, and is seen when the shards are gathered
# again.

_GATHER = r"^redistribute _?S\((\d+).*→R$"


def all_reduce_of_shards(evidence: Evidence) -> Iterator[Finding]:
    """Yield P→R all_reduces followed by an all_gather of the same tensor, sharded on another dim than the last.

    The next collective of the same rank, step and axis must be an all_gather with equal group, bytes and dtype.
    """
    reduced = pl.col("cause").str.contains(r"^redistribute P→R$") & (pl.col("op") == "all_reduce")
    events = evidence.events
    if events.filter(reduced & (pl.col("phase") == "forward")).is_empty():
        return
    lane = ("rank", "step", "axis")
    following = {name: pl.col(name).shift(-1).over(lane) for name in ("op", "group", "message_bytes", "dtype", "cause")}
    gathered = (following["op"] == "all_gather") & following["cause"].str.contains(_GATHER)
    same = pl.all_horizontal(following[name] == pl.col(name) for name in ("group", "message_bytes", "dtype"))
    # a gather along the last dim is that of a ColwiseParallel module's own output
    dim = following["cause"].str.extract(_GATHER).cast(pl.Int64)
    inner = dim < pl.col("shape").list.len().cast(pl.Int64) - 1
    forward = pl.col("phase") == "forward"
    yield from evidence.findings(
        "all_reduce_of_shards",
        events.filter((forward & reduced & gathered & same & inner).fill_null(False)),
        _why_shards,
        _keep_shards,
        spare=0.5,
        spare_calls=0,
    )


def _why_shards(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} on {group.axis or 'no axis'} of which each rank "
        "keeps a shard, as what is sent next gathers those shards: a reduce_scatter sends half as much"
    )


def _keep_shards(group: EventGroup) -> str:
    return (
        f"output_layouts=Shard(1) in place of Replicate() for {group.place}; in plain DTensor code, one redistribute "
        "from Partial to Shard in place of two"
    )


# Redistributes that the program did not ask for: an op on DTensors met placements that it cannot compute with.

_NEEDED = "aten.linalg_vector_norm"
"""The op whose Partial result clip_grad_norm_ sums over the ranks: a few bytes, and nothing else would do."""


def implicit_redistributes(evidence: Evidence) -> Iterator[Finding]:
    """Yield implicit redistributes outside the optimizer, which has rules of its own."""
    asked = pl.col("implicit") & (pl.col("phase") != "optimizer") & ~pl.col("cause").str.starts_with(_NEEDED)
    implicit = evidence.events.filter(asked & (pl.col("wire_bytes") > 0)).with_columns(pl.col("trigger").alias("owner"))
    yield from evidence.findings(
        "implicit_redistributes",
        implicit,
        _why_implicit,
        _state_layouts,
        spare=1,
        by=(*BY_PLACE, "cause"),
    )


def _why_implicit(group: EventGroup) -> str:
    cause = f": {group.causes[0]}" if group.causes[0] else ""
    return f"{group.calls} of at most {format_bytes(group.each)} that the program did not ask for{cause}"


def _state_layouts(group: EventGroup) -> str:
    before = group.causes[0].rpartition(" ")[2].partition("→")
    asked = f"{before[0]} to {before[2]}" if before[1] else "the placements"
    return (
        f"give the operands of this line the same placements when they are made, or redistribute once, from {asked}, "
        "where the tensor is used again"
    )


# The same collective several times in a row: sent again unchanged, or one tensor at a time.

_SAME = ("op", "phase", "group", "dtype", "shape", "cause", "trigger", "peer", "root")
_OF_SCHEDULES = ("FSDP", "DDP", "pipeline")


def repeated_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Yield collectives equal to their predecessor on the rank, issued by the same line or in the same module call.

    Collectives of FSDP, DDP's reducer, pipeline schedules and the optimizer are skipped, and so are sends and receives.
    """
    now, before = evidence.repeats(("rank", "step"), _SAME)
    line = now["source"] == before["source"]
    steps = evidence.steps
    once = [name for name, calls in evidence.calls.items() if calls is not None and calls <= steps]
    # a module that is called several times sends the same each time: only what one call repeats is meant
    is_in_same_call = now["trigger"].is_in(once)
    # what stands between the two is of another rank or step, or nothing
    in_a_row = now["seq"] - before["seq"] == 1
    asked = (
        ~pl.col("op").is_in(["send", "recv", "barrier"])
        & (pl.col("phase") != "optimizer")
        & (pl.col("wire_bytes") > 0)
        & ~pl.col("implicit")
        & pl.all_horizontal(~pl.col("cause").str.starts_with(word) for word in _OF_SCHEDULES)
        & ~pl.col("cause").str.contains(r" P→")  # gradients, one after the other
        & pl.col("batch").is_null()
    )
    # two sums in a row may be of two tensors, as loss parallelism sends them; two gathers give the same
    again = pl.col("op").is_in(["all_gather", "broadcast"])
    place = ((now["trigger"] == "") & line) | is_in_same_call
    yield from evidence.findings(
        "repeated_collectives",
        now.filter(place & in_a_row).filter(asked).filter(again | (pl.len().over("rank", "step", *_SAME) > 1)),
        _why_repeated,
        _call_once,
        spare_calls=1,
    )


def _why_repeated(group: EventGroup) -> str:
    size = format_bytes(group.each)
    return f"{group.calls} of {size}, each sent right after an equal one: the same op, group, shape and line"


def _call_once(group: EventGroup) -> str:
    return (
        "if the tensor is the same, keep the result of the first; if they are several tensors, send them as one: "
        "flatten them, or all_reduce_coalesced"
    )
