"""The measured start and end of events, in nanoseconds since the first start of a trace."""

from __future__ import annotations

import polars as pl


def is_timed(events: pl.DataFrame) -> bool:
    """Return True if any event was measured; otherwise all are shown in program order."""
    return events["start"].null_count() < events.height


def begin(events: pl.DataFrame) -> pl.Expr:
    """Return the start in ns since the first start; an event that was never sent has the start of the one before it."""
    start = pl.col("start")
    if events["start"].null_count():
        start = start.forward_fill().backward_fill().over("rank").fill_null(start.min())
    return start - pl.col("start").min()


def end(events: pl.DataFrame) -> pl.Expr:
    """Return the end, never before the start; an event that had not ended when the recording did has no length."""
    return pl.max_horizontal(begin(events), pl.col("end") - pl.col("start").min())
