"""Start-up sends more than a step does."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from dsexplore.analysis.findings.evidence import Evidence, Group
from dsexplore.analysis.findings.finding import Finding
from dsexplore.units import format_bytes


def large_start_up(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if start-up sends more bytes per rank than a step does; it names the largest op and cause."""
    start_up, events = evidence.start_up, evidence.events
    ranks = max(evidence.tables.events["rank"].n_unique(), 1)
    step = int(events["wire_bytes"].sum()) / ranks / evidence.steps
    whole = int(start_up["wire_bytes"].sum()) / ranks
    if events.is_empty() or whole <= step:
        return

    def why(group: Group) -> str:
        what = f" ({', '.join(group.causes[:2])})" if any(group.causes) else ""
        return f"start-up sends {format_bytes(whole)} per rank{what}, once; a step sends {format_bytes(step)} per rank"

    # the largest part speaks for all of it
    largest = start_up.group_by("op", "cause").agg(pl.col("wire_bytes").sum()).sort("wire_bytes", "op", "cause")
    op, cause, _ = largest.row(-1)
    part = start_up.filter((pl.col("op") == op) & (pl.col("cause") == cause))
    yield from evidence.findings("large_start_up", part, why, _change, per_step=False, by=("op",))


def _change(group: Group) -> str:
    how = {
        "distribute_tensor": "parallelize_module(…, src_data_rank=None) where all ranks initialise alike; or build the "
        "model on the meta device and load each rank's shard with dcp.load",
        "model broadcast": "DistributedDataParallel(…, init_sync=False) where all ranks initialise or load alike",
    }
    return next(
        (text for cause, text in how.items() if cause in group.causes),
        "build the model on the meta device, and let each rank initialise or load its own shard",
    )
