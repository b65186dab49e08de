"""FSDP frees the parameters of the last group after forward, and gathers them again as the first of backward."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.trace.causes import is_fsdp1
from dsexplore.units import format_bytes


def freed_too_soon(evidence: Evidence) -> Iterator[Finding]:
    """Yield FSDP all_gathers that open backward with the same module whose all_gather ended forward."""
    gathers = evidence.events.filter((pl.col("op") == "all_gather") & pl.col("cause").str.starts_with("FSDP"))
    lane = ("rank", "step")
    # the root group holds its parameters anyway, and one group is gathered once
    several = pl.col("owner").n_unique().over(lane) > 1
    same = pl.col("owner") == pl.col("owner").shift(1).over(lane)
    turned = pl.col("phase").is_in(["backward", "recompute"]) & (pl.col("phase").shift(1).over(lane) == "forward")
    yield from evidence.findings(
        "freed_too_soon",
        gathers.filter((several & same & turned).fill_null(False)),
        _why,
        _change,
        spare=1,
        by=("place", "op", "axis"),
    )


def _why(group: Group) -> str:
    return (
        f"{group.calls} of {format_bytes(group.each)} too many: its parameters are freed after forward "
        "and gathered again at once, as backward begins with them"
    )


def _change(group: Group) -> str:
    last = "for the last group that forward uses"
    if is_fsdp1(group.causes):
        return f"FullyShardedDataParallel({group.place}, …, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP) {last}"
    return f"fully_shard({group.place}, …, reshard_after_forward=False) {last}"
