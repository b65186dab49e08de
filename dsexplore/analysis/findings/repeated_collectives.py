"""The same collective several times in a row: sent again unchanged, or one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes

_ALIKE = ("op", "phase", "group", "dtype", "shape", "cause", "trigger", "peer", "root")
_OF_SCHEDULES = ("FSDP", "DDP", "pipeline")


def repeated_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Yield collectives equal to their predecessor on the rank, issued by the same line or in the same module call.

    Collectives of FSDP, DDP's reducer, pipeline schedules and the optimizer are skipped, and so are sends and receives.
    """
    now, before = evidence.repeats(("rank", "step"), _ALIKE)
    line = now["source"] == before["source"]
    steps = evidence.steps
    once = [name for name, calls in evidence.calls.items() if calls is not None and calls <= steps]
    # a module that is called several times sends the same each time: only what one call repeats is meant
    in_one_call = now["trigger"].is_in(once)
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
    place = ((now["trigger"] == "") & line) | in_one_call
    yield from evidence.findings(
        "repeated_collectives",
        now.filter(place & in_a_row).filter(asked).filter(again | (pl.len().over("rank", "step", *_ALIKE) > 1)),
        _why,
        _change,
        spare_calls=1,
    )


def _why(group: Group) -> str:
    size = format_bytes(group.each)
    return f"{group.calls} of {size}, each sent right after an equal one: the same op, group, shape and line"


def _change(group: Group) -> str:
    return (
        "if the tensor is the same, keep the result of the first; if they are several tensors, send them as one: "
        "flatten them, or all_reduce_coalesced"
    )
