"""FSDP of a layer too small to pay: its gather takes as long as an empty one, and frees next to nothing."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.trace.causes import FSDP_GATHERS, is_fsdp1
from dsexplore.units import format_bytes

SMALL = 1024 * 1024
"""Message bytes of a gather whose time is that of the call, not of the bytes."""
SHARE = 16
"""A group is small beside one that gathers so many times as much."""


def small_fsdp(evidence: Evidence) -> Iterator[Finding]:
    """Yield all_gathers of FSDP groups that are small: below `SMALL` bytes and 1/`SHARE` of the largest on the axis."""
    sent = evidence.events.filter(pl.col("cause").is_in(FSDP_GATHERS))
    largest = pl.col("message_bytes").max().over("rank", "axis")
    small = (
        (pl.col("message_bytes") < SMALL) & (pl.col("message_bytes") * SHARE <= largest) & (pl.col("wire_bytes") > 0)
    )
    yield from evidence.findings(
        "small_fsdp", sent.filter(small), _why, _change, spare_calls=1, by=("place", "op", "axis")
    )


def _why(group: Group) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} for an FSDP group of its own: sharding it frees next "
        "to no memory, and each gather takes as long as an empty one"
    )


def _change(group: Group) -> str:
    wrap = "FullyShardedDataParallel" if is_fsdp1(group.causes) else "fully_shard"
    return f"leave out {wrap}({group.place}), so that the module around it gathers it with its own parameters"
