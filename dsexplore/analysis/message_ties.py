"""Pairs of a send and the receive that takes its message, in a timeline."""

from __future__ import annotations

import polars as pl

from dsexplore.trace.tables import Tables

TIES: dict[str, pl.DataType] = {
    "from_lane": pl.String(),
    "sent": pl.Float64(),  # the end of the send, in the unit of the timeline's order
    "to_lane": pl.String(),
    "received": pl.Float64(),  # the begin of what received it
    "send": pl.Int64(),  # the events, as rows of the trace's; null where no event was recorded
    "receive": pl.Int64(),
}


def message_ties(tables: Tables, spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row per send and the receive that takes its message. Columns: `TIES`.

    Messages between two ranks of one group arrive in the order in which they are sent: the first send matches the first
    receive. Sends to ranks that are not in the trace are left out.

    Args:
        tables: the trace.
        spans: of its events; columns lane, begin, end and row, as in `step_timeline.SPANS`.
    """
    events = tables.events
    if not events["op"].is_in(["send", "recv"]).any():
        return pl.DataFrame(schema=TIES)
    members = tables.groups.select("group", pl.col("ranks").list.eval(pl.element().cast(pl.String)).list.join(","))
    messages = (
        events.with_row_index("row")
        .filter(pl.col("op").is_in(["send", "recv"]) & pl.col("peer").is_not_null())
        .select("row", "rank", "op", "peer", "group", "seq")
        .join(members.unique("group"), on="group", how="left")
        .with_columns(channel=pl.coalesce("ranks", "group"))  # processes may name one group differently
        .join(spans.select("row", "lane", "begin", "end"), on="row")
        .sort("rank", "seq")
    )
    sends, receives = (messages.filter(op=op) for op in ("send", "recv"))
    sends = sends.select("channel", sender="rank", receiver="peer", from_lane="lane", sent="end", send="row")
    receives = receives.select(
        "channel", sender="peer", receiver="rank", to_lane="lane", received="begin", receive="row"
    )
    channel = ("channel", "sender", "receiver")
    sends, receives = (part.with_columns(number=pl.int_range(pl.len()).over(channel)) for part in (sends, receives))
    return sends.join(receives, on=[*channel, "number"]).select(pl.col(name).cast(kind) for name, kind in TIES.items())
