"""What traffic is for, in words: ``FSDP gathers parameters (67 %)``."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from dsexplore._internal.trace.causes import FSDP_GATHERS, FSDP_REDUCES, PIPELINE_SCHEDULE
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_share

_PURPOSES = {
    # cause, op: what happens, in words
    **{(cause, "all_gather"): "FSDP gathers parameters" for cause in FSDP_GATHERS},
    **{(cause, "reduce_scatter"): "FSDP reduces gradients" for cause in FSDP_REDUCES},
    **{(cause, "all_reduce"): "FSDP reduces gradients over replicas" for cause in FSDP_REDUCES},
    ("DDP gradient bucket", "all_reduce"): "DDP reduces gradients",
    (PIPELINE_SCHEDULE, "send"): "stages pass activations and gradients on",
}


def purpose_of(cause: str, op: str) -> str:
    """Return the purpose of a collective with this cause, in words."""
    return _PURPOSES.get((cause, op)) or (f"{op} ({cause})" if cause else op)


def purposes_of(events: pl.DataFrame, total: int) -> list[str]:
    """Return the purposes that account for most of `total` bytes, with the share of each if there are several."""
    sums = events.group_by("cause", "op").agg(weighed("wire_bytes"))
    bytes_of: dict[str, int] = {}
    for cause, op, size in sums.iter_rows():
        purpose = purpose_of(cause, op)
        bytes_of[purpose] = bytes_of.get(purpose, 0) + size
    ranked = sorted(bytes_of.items(), key=lambda item: (-item[1], item[0]))
    if ranked[0][1] >= 0.995 * total:
        return [ranked[0][0]]
    named = [(purpose, size) for purpose, size in ranked if size >= total / 100] or ranked
    most = named if len(named) == 3 else named[:2]
    shown = [f"{purpose} ({format_share(size, total)})" for purpose, size in most]
    return [*shown, "others"] if sum(size for _, size in most) < 0.995 * total else shown


def wire_text(events: pl.DataFrame, share: float) -> str:
    """Return wire bytes of some of `Headline.step_events`, divided by `share`, as text; says if sizes are unknown."""
    total = float(events.select(weighed("wire_bytes")).item())
    return format_sum(total / share, events["wire_bytes"].null_count())


def weighed(size: str) -> pl.Expr:
    """Return the sum of a column of `Headline.step_events` over all ranks that the recorded ones represent."""
    return (pl.col(size) * pl.col("weight")).sum().alias(size)


def listed(parts: Iterable[str]) -> str:
    """Join names to a list in words: ``["a", "b", "c"]`` → ``"a, b and c"``."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def source_line_of(events: pl.DataFrame) -> str:
    """Return the source line that sends most bytes."""
    sums = events.group_by("source").agg(pl.col("wire_bytes").sum()).cast({"source": pl.String})
    sums = sums.sort("wire_bytes", "source")
    return str(sums["source"][-1]).partition(" ← ")[0] or "no line"
