"""Rules about ranks: late ranks, and values that differ between ranks that should hold the same."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore._internal.analysis.findings.evidence import Evidence
from dsexplore._internal.analysis.findings.finding import Finding
from dsexplore._internal.analysis.late_ranks import LateRank
from dsexplore._internal.analysis.skew import lateness_text
from dsexplore._internal.trace.numbered_modules import OUTSIDE, place_of
from dsexplore._internal.units import format_seconds

# A rank comes late to collectives repeatedly, and the others of its groups wait for it.


def late_rank(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each late rank; bytes are those of the collectives to which it comes late."""
    for late in evidence.skew.late_ranks:
        events = evidence.tables.events[late.rows.tolist()]
        share = events["rank"].n_unique() * max(events["step"].n_unique(), 1)
        yield Finding(
            rule="late_rank",
            module=late.module or OUTSIDE,
            source=late.source,
            op=", ".join(late.ops),
            axis=late.axis,
            count=events.height / share,
            message_bytes=round(int(events["message_bytes"].sum()) / share),
            wire_bytes=round(int(events["wire_bytes"].sum()) / share),
            spare_seconds=late.waited,
            why=f"rank {late.rank} arrives {lateness_text(late)}; the other ranks wait {format_seconds(late.waited)} "
            "for it, added up",
            change=_change_late_rank(late),
            rows=late.rows,
        )


def _change_late_rank(late: LateRank) -> str:
    where = f" before {late.source}" if late.source else ""
    return (
        f"the trace does not show which change: look at what rank {late.rank} alone does{where}, such as reading data, "
        "logging, saving or garbage collection, and at whether its share of the work, its GPU or its "
        "host differs from the others'"
    )


# Ranks hold different values of a tensor that should be the same on them: no traffic to spare, but a wrong result.

_WHY_VALUES = {
    "activation": "a DTensor is Replicate over {axis}, but its values differ there (read by {names}, in {phase})",
    "gradient": "the optimizer reads the gradient of {names} before it is reduced over {axis}, where the parameter is "
    "replicated: each rank updates it differently",
    "parameter": "{names} is replicated over {axis}, and the optimizer updates it differently on each rank",
}
"""{kind of tensor: the sentence of the finding}."""
_CHANGE_VALUES = {
    "activation": "say what it is: Shard or Partial in DTensor.from_local, and in backward "
    "to_local(grad_placements=[Partial()]) where a rank computes with its own part; or reduce it over {axis} first",
    "gradient": "all_reduce it over {axis} before optimizer.step(); or let the parameter be a DTensor, whose gradient "
    "is Partial and so reduced",
    "parameter": "let all ranks of {axis} compute the update of the same numbers: reduce a norm over {axis} first",
}
"""{kind of tensor: the change to try}."""


def value_errors(evidence: Evidence) -> Iterator[Finding]:
    """Yield tensors that differ along an axis over which ranks should hold the same, one finding per place and axis."""
    differing = evidence.tables.differing.with_columns(place=place_of(pl.col("module")))
    by = ("kind", "place", "axis", "phase")
    for row in differing.group_by(by, maintain_order=True).agg(pl.col("name").unique(maintain_order=True)).iter_rows():
        kind, place, axis, phase, names = row
        words = {"axis": axis or "their group", "phase": phase, "names": ", ".join(names[:4])}
        yield Finding(
            rule="value_errors",
            module=place,
            axis=axis,
            why=_WHY_VALUES[kind].format(**words),
            change=_CHANGE_VALUES[kind].format(**words),
            is_wrong=True,
        )
