"""Sums the time that a program blocks on its disk and its input, by module.

A wait for the disk lasts from the call until its transfer is complete. A wait for input lasts from the call of ``next``
on a ``DataLoader`` until the batch has arrived.
"""

from __future__ import annotations

import polars as pl

from dsexplore._internal.analysis.late_ranks import LateRank
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.units import format_count, format_seconds, format_share

COLUMNS: dict[str, pl.DataType] = {
    "op": pl.String(),  # wait: for reads and writes; input: for the next batch
    "module": pl.String(),  # module that was running; "" outside any
    "phase": pl.String(),
    "count": pl.Int64(),  # number of waits of all ranks
    "seconds": pl.Float64(),  # per rank: the mean over the recorded ranks
}
_FOR = {"wait": "the disk", "input": "input"}
"""{op that blocks the program: what it waits for}."""
_EXPLAINS = 0.5
"""The share of a rank's lateness by which it must have blocked longer than the others, for that to be the reason."""


def io_waits(tables: Tables) -> pl.DataFrame:
    """Return one row per module and phase in which the program blocked, the longest first; columns: `COLUMNS`."""
    ended = tables.io.filter(pl.col("op").is_in(list(_FOR))).drop_nulls("end")
    seconds = (pl.col("end") - pl.col("start")).sum() / 1e9 / _ranks(tables)
    sums = ended.group_by("op", "module", "phase").agg(pl.len().alias("count"), seconds.alias("seconds"))
    ordered = sums.sort("seconds", "op", "module", "phase", descending=[True, False, False, False])
    return ordered.select(pl.col(name).cast(kind) for name, kind in COLUMNS.items())


def io_sentence(tables: Tables) -> str:
    """Return a sentence on the time that the program blocks on disk and input; empty if neither was recorded."""
    waits, span = io_waits(tables), _span(tables)
    ranks = _ranks(tables)
    who = "A rank" if ranks > 1 else "The program"
    over = f", mean of {ranks:,} ranks" if ranks > 1 else ""
    said = []
    for op, what in _FOR.items():
        of_op = waits.filter(op=op)
        if of_op.is_empty():
            continue
        total = float(of_op["seconds"].sum())
        text = (
            f"{who} waits for {what} for {format_seconds(total)} of {format_seconds(span)} "
            f"({format_share(total, span)}{over})"
        )
        module, phase, count, seconds = of_op.select("module", "phase", "count", "seconds").row(0)
        times = f"in {format_count(int(of_op['count'].sum()), 'wait')}"
        rest = "all of it" if of_op.height == 1 else f"{format_seconds(seconds)} of it in {format_count(count, 'wait')}"
        where = f"; {rest} {f'in {module}' if module else _outside(phase)}" if module or op == "wait" else ""
        said.append(f"{text}, {times}{where}{f' ({phase})' if module else ''}.")
    return " ".join(said)


def _outside(phase: str) -> str:
    return "outside any module" if phase == "other" else f"in phase {phase}"


def _ranks(tables: Tables) -> int:
    return max(tables.io["rank"].n_unique(), 1)


def _span(tables: Tables) -> float:
    """Return the seconds from the first start to the last end of collectives and of what is read and written."""
    times = pl.concat([tables.events.select("start", "end"), tables.io.select("start", "end")])
    latest = pl.max_horizontal(pl.col("start").max(), pl.col("end").max())
    first, last = times.select(pl.col("start").min(), latest.alias("last")).row(0)
    return float(last - first) / 1e9 if first is not None else 0.0


def reason_of_lateness(tables: Tables, late: LateRank) -> str:
    """Return a sentence if a late rank blocked on its disk or input before it came late; empty if it did not.

    The time that it blocked between its previous collective and the late one must exceed that of the other ranks, as a
    wait that all share makes no rank late. Late collectives of one step are summed, since consecutive ones are late for
    the same reason.
    """
    blocking = tables.io.filter(pl.col("op").is_in(list(_FOR))).drop_nulls("end")
    if blocking.is_empty():
        return ""
    events = (
        tables.events.with_row_index("row")
        .sort("rank", "seq")
        .with_columns(since=pl.col("start").shift(1).over("rank"))
        .filter(pl.col("row").is_in(late.rows.tolist()))
        .drop_nulls(["since", "start"])
    )
    by = "step" if events["step"].n_unique() > 1 else "row"
    windows = events.select("row", "rank", of=by, since="since", until="start")
    inside = windows.join(blocking.select("rank", "op", "start", "end"), on="rank")
    overlap = pl.min_horizontal("until", "end") - pl.max_horizontal("since", "start")
    waited = inside.with_columns(overlap=overlap.clip(lower_bound=0))
    is_late = pl.col("rank") == late.rank
    for op, what in _FOR.items():
        blocked = _median(waited.filter(is_late, op=op), windows.filter(is_late))
        others = _median(waited.filter(~is_late, op=op), windows.filter(~is_late))
        if blocked - others > _EXPLAINS * late.late_by:
            theirs = f"the others for {format_seconds(others)}" if others >= 1e-6 else "the others hardly"
            return f"Before that it waits for {what} for {format_seconds(blocked)}, {theirs} (medians)."
    return ""


def _median(waited: pl.DataFrame, windows: pl.DataFrame) -> float:
    """Return the median over windows of the seconds that a rank waited in them.

    Args:
        waited: waits by window; columns ``rank``, ``of`` (a step or a collective) and ``overlap`` in nanoseconds.
        windows: all windows, also those without waits; columns ``rank`` and ``of``.
    """
    sums = waited.group_by("rank", "of").agg(pl.col("overlap").sum())
    per_window = windows.select("rank", "of").unique().join(sums, on=["rank", "of"], how="left")
    middle = per_window["overlap"].fill_null(0).median()
    return float(middle) / 1e9 if isinstance(middle, (int, float)) else 0.0
