"""Rules about collectives of tensor parallelism and of redistributed DTensors, and about repeated collectives."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import polars as pl

from dsexplore._internal.analysis.findings.evidence import BY_PLACE, EventGroup, Evidence, after_a_sibling, equal_rows
from dsexplore._internal.analysis.findings.finding import Finding
from dsexplore._internal.trace.schema import NO_AXIS
from dsexplore._internal.units import format_bytes

# Several modules gather the same input: what is gathered for the first is already whole for the others.
#
# ``q``, ``k`` and ``v`` whose input is sharded along the sequence each redistribute it, S(1) to Replicate.


def gathered_again(evidence: Evidence) -> Iterator[Finding]:
    """Yield equal consecutive all_gathers of sibling modules, and the reduce_scatters of their backward."""
    gather, scatter = re.compile(r"redistribute (backward )?_?S.*→R\Z"), re.compile(r"redistribute backward P→")
    forward = (pl.col("op") == "all_gather") & evidence.texts("cause", gather.match)
    backward = (pl.col("op") == "reduce_scatter") & evidence.texts("cause", scatter.match)
    yield from evidence.findings(
        "gathered_again",
        after_a_sibling(evidence, forward | backward),
        _why_gathered,
        _gather_once,
        spare=1,
        by=("place", "axis"),
    )


def _why_gathered(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.largest_bytes)} on {group.axis or NO_AXIS} could be saved: its "
        "modules gather the same input one after the other, and scatter its gradient as often"
    )


def _gather_once(group: EventGroup) -> str:
    return (
        f"gather it once: PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)) on "
        f"{group.place}{_BY_NAME}, and ColwiseParallel() without input_layouts inside; or, of what it computes for "
        "them, DTensor.from_local(x, mesh, (Shard(1),)).redistribute(placements=(Replicate(),))"
    )


_BY_NAME = " (input_kwarg_layouts={name: …}, … where the input is passed by name)"
"""Advice for inputs that are keyword arguments."""


# Several modules reduce the gradient of the same input, where one all_reduce of their sum would do.
#
# Under tensor parallelism ``ColwiseParallel`` makes each of ``q``, ``k`` and ``v`` reduce its own input gradient.


def siblings_reduce(evidence: Evidence) -> Iterator[Finding]:
    """Yield equal consecutive all_reduces in backward of sibling modules that were called with the same tensor."""
    partial = evidence.texts("cause", ("redistribute P→R", "redistribute backward P→R").__contains__)
    reduced = (pl.col("phase") == "backward") & (pl.col("op") == "all_reduce") & partial
    yield from evidence.findings(
        "siblings_reduce",
        after_a_sibling(evidence, reduced),
        _why_siblings,
        _reduce_once,
        spare=1,
        by=("place", "op", "axis"),
    )


def _why_siblings(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.largest_bytes)} on {group.axis or NO_AXIS} could be saved: its "
        "modules each reduce the gradient of the same input, where their sum could be reduced once"
    )


def _reduce_once(group: EventGroup) -> str:
    return (
        "make the input a DTensor, whose gradient is reduced once: PrepareModuleInput(input_layouts=(Replicate(),), "
        f"desired_input_layouts=(Replicate(),)) on {group.place}{_BY_NAME}; or, of what it computes for them, "
        "DTensor.from_local(x, mesh, (Replicate(),))"
    )


# An all_reduce whose result each rank keeps a shard of: a reduce_scatter sends half as much.
#
# Partial → Replicate is an all_reduce; Replicate → Shard sends nothing, and is seen when the shards are gathered
# again.

_GATHER = r"^redistribute _?S\((\d+).*→R$"


def all_reduce_of_shards(evidence: Evidence) -> Iterator[Finding]:
    """Yield P→R all_reduces followed by an all_gather of the same tensor, sharded on another dim than the last.

    The next collective of the same rank, step and axis must be an all_gather with equal group, bytes and dtype.
    """
    reduced = (pl.col("cause") == "redistribute P→R") & (pl.col("op") == "all_reduce")
    events = evidence.events
    if events.filter(reduced & (pl.col("phase") == "forward")).is_empty():
        return
    lane = ("rank", "step", "axis")
    is_gather = (pl.col("op") == "all_gather") & evidence.texts("cause", re.compile(_GATHER).match)
    gathers = np.flatnonzero(events.select(is_gather).to_series().to_numpy())
    earlier = evidence.earlier(lane)[gathers]
    gathered, before = events[gathers[earlier >= 0]], events[earlier[earlier >= 0]]
    same = equal_rows(gathered, before, ("group", "message_bytes", "dtype"))
    # a gather along the last dim is that of a ColwiseParallel module's output
    dim = gathered["cause"].cast(pl.String).str.extract(_GATHER).cast(pl.Int64)
    dims = evidence.tables.with_columns(before.select("row"), "shape")["shape"].list.len()
    inner = dim < dims.cast(pl.Int64) - 1
    yield from evidence.findings(
        "all_reduce_of_shards",
        before.filter(same & inner).filter((pl.col("phase") == "forward") & reduced),
        _why_shards,
        _keep_shards,
        spare=0.5,
        spare_calls=0,
    )


def _why_shards(group: EventGroup) -> str:
    return (
        f"{group.calls} of {format_bytes(group.largest_bytes)} on {group.axis or NO_AXIS}, each followed by an "
        "all_gather of as many bytes: if that gathers shards of the result, a reduce_scatter would have sent half as "
        "much"
    )


def _keep_shards(group: EventGroup) -> str:
    return (
        f"output_layouts=Shard(1) in place of Replicate() for {group.place}; in plain DTensor code, one redistribute "
        "from Partial to Shard in place of two"
    )


# Redistributes that the program did not ask for: an op on DTensors met placements that it cannot compute with.

_NEEDED = "aten.linalg_vector_norm"
"""The op of clip_grad_norm_ whose Partial result has to be summed over the ranks; that sends a few bytes."""
_NEEDED_OF_A_NUMBER = "aten.reciprocal"
"""The op of clip_grad_norm_ up to torch 2.9 for which the norm, one number, is summed."""
_NUMBER = 8
"""Maximum bytes of one number."""


def implicit_redistributes(evidence: Evidence) -> Iterator[Finding]:
    """Yield implicit redistributes outside the optimizer, for which `optimizer_rules` has rules."""
    is_needed = evidence.texts("cause", lambda cause: cause.startswith(_NEEDED))
    is_of_number = pl.col("message_bytes") <= _NUMBER
    is_needed |= evidence.texts("cause", lambda cause: cause.startswith(_NEEDED_OF_A_NUMBER)) & is_of_number
    asked = pl.col("implicit") & (pl.col("phase") != "optimizer") & ~is_needed
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
    return f"{group.calls} of at most {format_bytes(group.largest_bytes)} that the program did not ask for{cause}"


def _state_layouts(group: EventGroup) -> str:
    before = group.causes[0].rpartition(" ")[2].partition("→")
    asked = f"{before[0]} to {before[2]}" if before[1] else "the placements"
    return (
        f"give the operands of this line the same placements when they are made, or redistribute once, from {asked}, "
        "where the tensor is used again"
    )


# The same collective several times in a row: sent again unchanged, or one tensor at a time.

_SAME = ("op", "phase", "group", "dtype", "shape", "cause", "trigger", "peer", "root", "batch")
_OF_SCHEDULES = ("FSDP", "DDP", "pipeline", "aten.")
"""Beginnings of causes of collectives that torch issues itself; ``aten.``: within one op, such as ring attention."""


def repeated_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Yield collectives equal to their predecessor on the rank, issued by the same line in the same module call.

    Collectives of FSDP, DDP's reducer, pipeline schedules and the optimizer are skipped, and so are sends and receives.
    """
    now, before = evidence.repeats(("rank", "step"), _SAME)
    same_line = now["source"] == before["source"]
    steps = evidence.steps
    once = [name for name, calls in evidence.calls.items() if calls is not None and calls <= steps]
    # a module that is called several times in a step sends the same in each call, which is no repetition
    is_in_same_call = evidence.texts("trigger", {"", *once}.__contains__)
    in_a_row = now["seq"] - before["seq"] == 1
    asked = (
        ~evidence.texts("op", ("send", "recv", "barrier").__contains__)
        & is_in_same_call
        & (pl.col("phase") != "optimizer")
        & (pl.col("wire_bytes") > 0)
        & ~pl.col("implicit")
        # gradients are reduced one after the other
        & ~evidence.texts("cause", lambda cause: cause.startswith(_OF_SCHEDULES) or " P→" in cause)
        & pl.col("batch").is_null()
    )
    # two reductions in a row may be of two tensors, as in loss parallelism; two gathers or broadcasts give the same
    again = evidence.texts("op", ("all_gather", "broadcast").__contains__)
    yield from evidence.findings(
        "repeated_collectives",
        now.filter(same_line & in_a_row).filter(asked).filter(again | (pl.len().over("rank", "step", *_SAME) > 1)),
        _why_repeated,
        _call_once,
        spare_calls=1,
    )


def _why_repeated(group: EventGroup) -> str:
    size = format_bytes(group.largest_bytes)
    return f"{group.calls} of {size}, each sent right after an equal one: the same op, group, shape and line"


def _call_once(group: EventGroup) -> str:
    return (
        "if the tensor is the same, keep the result of the first; if they are several tensors, send them as one: "
        "flatten them, or all_reduce_coalesced"
    )
