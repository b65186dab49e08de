"""The rule about a rank that comes late to collectives again and again, for which the others of its groups wait."""

from __future__ import annotations

from collections.abc import Iterator

from dsexplore._internal.analysis.findings.evidence import Evidence
from dsexplore._internal.analysis.findings.finding import Finding
from dsexplore._internal.analysis.late_ranks import LateRank
from dsexplore._internal.analysis.skew import lateness_text
from dsexplore._internal.trace.numbered_modules import OUTSIDE
from dsexplore._internal.units import format_seconds


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
            spare_bytes=0,
            spare_calls=0,
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
