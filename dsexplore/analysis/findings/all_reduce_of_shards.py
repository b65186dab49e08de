"""An all_reduce of which each rank keeps a shard only: a reduce_scatter sends half as much.

Partial → Replicate is an all_reduce; Replicate → Shard sends nothing, and is seen when the shards are gathered again.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes

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
        _why,
        _change,
        spare=0.5,
        spare_calls=0,
    )


def _why(group: Group) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} on {group.axis or 'no axis'} of which each rank "
        "keeps a shard, as what is sent next gathers those shards: a reduce_scatter sends half as much"
    )


def _change(group: Group) -> str:
    return (
        f"output_layouts=Shard(1) in place of Replicate() for {group.place}; in plain DTensor code, one redistribute "
        "from Partial to Shard in place of two"
    )
