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
    """Collectives equal to the one before them on their rank, issued by the same line or in the same module call.

    Not those of FSDP, of DDP's reducer, of pipeline schedules and of the optimizer, and nothing between two ranks only.
    """
    events = evidence.events
    lane = ("rank", "step")
    before = {name: pl.col(name).shift(1).over(lane) for name in (*_ALIKE, "source")}
    same = pl.all_horizontal(pl.col(name).eq_missing(before[name]) for name in _ALIKE)
    line = pl.col("source").eq_missing(before["source"])
    steps = evidence.steps
    once = [name for name, calls in evidence.calls.items() if calls is not None and calls <= steps]
    # a module that is called several times sends the same each time: only what one call repeats is meant
    in_one_call = pl.col("trigger").is_in(pl.Series(once, dtype=pl.String).implode())
    asked = (
        ~pl.col("op").is_in(["send", "recv", "barrier"])
        & (pl.col("phase") != "optimizer")
        & (pl.col("wire_bytes") > 0)
        & ~pl.col("implicit")
        & pl.all_horizontal(~pl.col("cause").str.starts_with(word) for word in _OF_SCHEDULES)
        & ~pl.col("cause").str.contains(r" P→")  # gradients, one after the other
        & pl.col("batch").is_null()
    )
    place = ((pl.col("trigger") == "") & line) | in_one_call
    yield from evidence.findings(
        "repeated_collectives",
        events.filter((same & asked & place).fill_null(False)),
        _why,
        _change,
        spare_calls=pl.lit(1),
    )


def _why(group: Group) -> str:
    return f"{group.calls} of {format_bytes(group.each)} repeat the one before them: the same op, group, shape and line"


def _change(group: Group) -> str:
    return (
        "if the tensor is the same, keep the result of the first; if they are several tensors, send them as one: "
        "flatten them, or all_reduce_coalesced"
    )
