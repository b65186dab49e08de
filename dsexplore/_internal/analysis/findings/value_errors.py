"""Values that differ between ranks that should hold the same: no traffic to spare, but a wrong result."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from dsexplore._internal.analysis.findings.evidence import Evidence
from dsexplore._internal.analysis.findings.finding import Finding
from dsexplore._internal.trace.numbered_modules import place_of

_WHY = {
    "activation": "a DTensor says Replicate over {axis}, and its values differ there (read by {names}, in {phase})",
    "gradient": "the optimizer reads the gradient of {names}, which ranks of {axis} hold alike, before it is reduced "
    "over {axis}: they update it differently",
    "parameter": "ranks of {axis} hold {names} alike, and the optimizer updates it differently on each",
}
_CHANGE = {
    "activation": "say what it is: Shard or Partial in DTensor.from_local, and in backward "
    "to_local(grad_placements=[Partial()]) where a rank computes with its own part; or reduce it over {axis} first",
    "gradient": "all_reduce it over {axis} before optimizer.step(); or let the parameter be a DTensor, whose gradient "
    "is Partial and so reduced",
    "parameter": "let all ranks of {axis} compute the update of the same numbers: reduce a norm over {axis} first",
}


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
            source="",
            op="",
            axis=axis,
            count=0.0,
            message_bytes=0,
            wire_bytes=0,
            spare_bytes=0,
            spare_calls=0.0,
            why=_WHY[kind].format(**words),
            change=_CHANGE[kind].format(**words),
            rows=np.zeros(0, dtype=np.int64),
            is_wrong=True,
        )
