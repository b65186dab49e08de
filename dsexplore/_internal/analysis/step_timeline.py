"""`Timeline` holds the spans of a trace in lanes, each with its begin and end in the unit of the timeline's order.

A trace of real ranks has measured times, and one simulated rank has program order. Several simulated ranks have the
rounds in which their events can run (`waiting_order`). `views.timeline.boxes` draws the spans.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import polars as pl

from dsexplore._internal.analysis.timeline_verdict import DrawnSpans
from dsexplore._internal.analysis.waiting_order import rounds
from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import measured_time, schema
from dsexplore._internal.trace.schema import IN_STEPS, NO_AXIS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_count

LaneKind = Literal["phase", "axis", "module", "op", "rank", "collective"]
ColorKind = Literal["phase", "axis", "op", "rank"]
Sizes = Literal["wire", "message"]
Order = Literal["measured", "program order", "rounds", "predicted", "slots"]
"""``measured``: seconds since the first start; ``program order``: the number of the collective; ``rounds``: see
`waiting_order`; ``predicted``: seconds since the step began, on a cluster; ``slots``: of a pipeline's schedule, as long
as one forward of one microbatch."""

SPANS: dict[str, pl.DataType] = {
    "lane": pl.String(),
    "begin": pl.Float64(),  # in the unit of the timeline's order
    "end": pl.Float64(),
    "mark": pl.String(),  # what its color says: a phase, an axis, …
    "name": pl.String(),  # the op
    "bytes": pl.Int64(),  # wire or message bytes; null for what moves none
    "row": pl.UInt32(),  # of the trace's events; null for what is not an event
    "label": pl.String(),  # text on its box; null for the letter of its mark
}
"""Columns of `Timeline.spans`."""
TIES: dict[str, pl.DataType] = {
    "from_lane": pl.String(),
    "sent": pl.Float64(),  # the end of the send, in the unit of the timeline's order
    "to_lane": pl.String(),
    "received": pl.Float64(),  # the begin of the receive
    "send": pl.Int64(),  # row of the send in the trace's events; null if it was not recorded
    "receive": pl.Int64(),  # row of the receive in the trace's events; null if it was not recorded
}
"""Columns of `Timeline.ties`."""
HELD: dict[str, pl.DataType] = {
    "span": pl.Int64(),  # index in the timeline's spans
    "row": pl.Int64(),  # index in the trace's events
}
"""Columns of `Timeline.held`."""
_TIMES: dict[Order, str] = {
    "measured": "measured",
    "program order": "simulated, in program order",
    "rounds": "simulated, in the earliest order that ranks can run in",
    "predicted": "predicted",
    "slots": "in the time of forwards, by its schedule",
}
NO_MODULE = "outside any module"
WAITING = "waiting"
"""Mark of the time in which a stage waits for others (the pipeline's bubble), or a stream for work."""
DISK, BLOCKED = "disk", "blocked"
"""Lanes and marks of reads and writes, and of the times for which these or the input block the program."""
_MOST_IN_ROUNDS = 300_000
"""Maximum number of events that are placed in rounds, at 2 µs each; program order is used for more."""


@dataclass(frozen=True, eq=False)
class Timeline(Result):
    """Spans in lanes. Shows itself as a drawing; ``.explore()`` zooms, brushes and follows the keyboard.

    Examples:
        >>> with dsexplore.commtrace(mesh="dp=4") as trace:
        ...     dist.all_reduce(torch.ones(256))
        ...     dist.barrier()
        >>> timeline = trace.timeline(lanes="op")
        >>> timeline.lanes
        ('all_reduce', 'barrier')
    """

    _INTERNAL = frozenset({"conclusion", "drawn", "has_busy_lane", "held", "tables", "ties"})

    spans: pl.DataFrame
    """Columns: `SPANS`; sorted by begin."""
    lanes: tuple[str, ...]
    """The lanes, from top to bottom."""
    marks: tuple[str, ...]
    """The values that have a color, in the order of the key."""
    order: Order
    color_by: str
    """The kind of `marks`: ``phase``, ``axis``, …"""
    tables: Tables
    """The trace that the timeline shows."""
    sizes: Sizes = "wire"
    """The kind of bytes of the spans."""
    ties: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=TIES))
    """Messages from one lane to another. Columns: `TIES`."""
    conclusion: str = ""
    """The verdict, such as the size of a pipeline's bubble; if empty, `verdict` derives one from the spans."""
    note: str = ""
    """Text beside the key: the meaning of letters or times."""
    held: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=HELD))
    """Events of spans that are not events themselves, such as the messages of a stage's action. Columns: `HELD`."""

    def __repr__(self) -> str:
        rows = self.spans["row"].drop_nulls().n_unique()
        what = format_count(rows, "collective") if rows else format_count(self.spans.height, "part")
        axes = self.tables.events["axis"].replace("", None).drop_nulls().n_unique()
        of = f" on {axes} axes" if axes > 1 else ""
        ranks = format_count(len(self.tables.info.ranks), "rank")
        return f"<Timeline of {what}{of}, {ranks}, {_TIMES[self.order]}>"

    def verdict(self) -> str:
        """Return who is late, which time is exposed, what the longest chain is, or which lane sends most."""
        return self.conclusion or self.drawn.verdict()

    @cached_property
    def drawn(self) -> DrawnSpans:
        """Fields from which the verdict is made."""
        return DrawnSpans(self.tables, self.spans, self.lanes, self.order, self.sizes)

    def lines(self) -> list[str]:
        """Return the verdict, and the note on what letters or times stand for."""
        return [self.verdict(), *filter(None, [self.note])]

    @property
    def has_busy_lane(self) -> bool:
        """True if a lane always computes or waits, such as a pipeline stage or the compute stream."""
        return WAITING in self.marks

    def to_frame(self) -> pl.DataFrame:
        """Return the spans as a polars frame; columns: `SPANS`.

        Examples:
            >>> timeline.to_frame().select("lane", "begin", "end").rows()
            [('all_reduce', 0.0, 1.0), ('barrier', 1.0, 2.0)]
        """
        return self.spans

    def between(self, begin: float, end: float, lanes: tuple[str, ...] | None = None) -> Trace:
        """Return the events that overlap a range, as a `Trace`.

        Args:
            begin: start of the range, in the unit of the order: seconds, rounds or places in program order.
            end: end of the range, exclusive.
            lanes: only events of these lanes; None for all.

        Examples:
            >>> timeline.between(0, 1)
            <Trace: 1 collective of rank 0, world of 4>
        """
        inside = (pl.col("begin") < end) & (pl.col("end") > begin)
        if lanes is not None:
            inside &= pl.col("lane").is_in(lanes)
        spans = self.spans.with_row_index("span").filter(inside)
        held = self.held.join(spans.select(pl.col("span").cast(pl.Int64)), on="span")
        rows = sorted({*spans["row"].drop_nulls(), *held["row"]})
        events = self.tables.events[rows] if rows else self.tables.events.clear()
        return Trace(replace(self.tables, events=events))


def timeline_of(
    tables: Tables, lanes: LaneKind | None = None, color_by: ColorKind | None = None, sizes: Sizes = "wire"
) -> Timeline:
    """Build the timeline of a trace.

    Args:
        tables: the trace.
        lanes: the kind of lanes: phase, axis, module (a block that the model repeats), op, rank, or collective (an op
            on an axis, or on a group without one). None means ranks if there are several, else phases.
        color_by: the kind of colors: phase, axis, op or rank. None means axes if lanes are phases, else phases.
        sizes: the kind of bytes of the spans, ``"wire"`` or ``"message"``.

    Raises:
        UsageError: ``lanes``, ``color_by`` or ``sizes`` is unknown.
    """
    events = tables.events
    several = events["rank"].n_unique() > 1
    lanes = lanes or ("rank" if several else "phase")
    color_by = color_by or ("axis" if lanes == "phase" else "phase")
    _check("lanes", lanes, LaneKind)
    _check("color_by", color_by, ColorKind)
    _check("sizes", sizes, Sizes)
    order, begin, end = _places(tables, several)
    spans = (
        events.with_row_index("row")
        .select(
            _key(lanes, with_rank=several).alias("lane"),
            begin.alias("begin"),
            end.alias("end"),
            _key(color_by, with_rank=False).alias("mark"),
            pl.col("op").alias("name"),
            pl.col(f"{sizes}_bytes").alias("bytes"),
            "row",
            pl.lit(None, pl.String).alias("label"),
        )
        .cast(dict(SPANS))  # type: ignore[arg-type]  # polars' own types
        .sort("begin", maintain_order=True)
    )
    marks = axes_by_bytes(events) if color_by == "axis" else _sorted_names(spans["mark"], color_by)
    if tables.io.height and (order == "measured" or events.is_empty()):
        order = "measured"
        spans, further = _add_io(spans, tables, several)
        marks = (*marks, *further)
    ties = message_ties(tables, spans) if several else pl.DataFrame(schema=TIES)
    return Timeline(spans, _sorted_names(spans["lane"], lanes), marks, order, color_by, tables, sizes, ties)


def _add_io(spans: pl.DataFrame, tables: Tables, several: bool) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return spans with reads, writes and waits added, in seconds since the first start; and the added marks."""
    events, io = tables.events, tables.io
    first = io["start"].min()
    assert isinstance(first, int)
    earliest = events["start"].min()
    before = max(earliest - first, 0) if isinstance(earliest, int) else 0
    origin = min(first, earliest) if isinstance(earliest, int) else first
    mark = pl.when(pl.col("op").is_in(["read", "write"])).then(pl.lit(DISK)).otherwise(pl.lit(BLOCKED))
    file = pl.col("path").str.split("/").list.last()
    words = (pl.col("op") + " " + file).str.strip_chars()
    added = io.select(
        (pl.format("rank {} · {}", "rank", mark) if several else mark).alias("lane"),
        ((pl.col("start") - origin) / 1e9).alias("begin"),
        ((pl.col("end").fill_null(pl.col("start")) - origin) / 1e9).alias("end"),
        mark.alias("mark"),
        pl.concat_str(
            [words, pl.col("module").replace("", None), pl.col("phase")], separator=" · ", ignore_nulls=True
        ).alias("name"),
        "bytes",
        pl.lit(None, pl.UInt32).alias("row"),
        pl.lit(None, pl.String).alias("label"),
    ).cast(dict(SPANS))  # type: ignore[arg-type]  # polars' own types
    shifted = spans.with_columns(pl.col("begin", "end") + before / 1e9)
    marks = tuple(name for name in (DISK, BLOCKED) if name in set(added["mark"]))
    return pl.concat([shifted, added]).sort("begin", maintain_order=True), marks


def _check(name: str, value: str, kind: Any) -> None:
    """Raise UsageError if the value of an argument is none of a ``Literal``."""
    if value not in get_args(kind):
        raise UsageError(f"timeline({name}={value!r}): no such {name}; they are {', '.join(get_args(kind))}")


def _places(tables: Tables, several: bool) -> tuple[Order, pl.Expr | pl.Series, pl.Expr | pl.Series]:
    """Return the kind of order, and the begin and end of each event in it."""
    events = tables.events
    if measured_time.is_timed(events):
        return "measured", measured_time.begin(events) / 1e9, measured_time.end(events) / 1e9
    if several and events.height <= _MOST_IN_ROUNDS:
        begin = pl.Series(rounds(tables), dtype=pl.Float64)
        return "rounds", begin, begin + 1
    return "program order", pl.col("seq").cast(pl.Float64), pl.col("seq").cast(pl.Float64) + 1


def _key(kind: str, *, with_rank: bool) -> pl.Expr:
    """Return the expression for the lane or color of an event.

    Args:
        kind: a `LaneKind` or `ColorKind`.
        with_rank: whether the name begins with the rank.
    """
    rank = pl.format("rank {}", pl.col("rank"))
    if kind == "rank":
        return rank
    axis = pl.when(pl.col("axis") == "").then(pl.lit(NO_AXIS)).otherwise("axis")
    key = {"phase": pl.col("phase"), "op": pl.col("op"), "axis": axis, "module": _block(), "collective": _collective()}[
        kind
    ]
    return pl.format("{} · {}", rank, key) if with_rank else key


def _collective() -> pl.Expr:
    """Return the op with its axis, or with its group if that has no axis: ``tp · all_reduce``."""
    place = pl.when(pl.col("axis") == "").then("group").otherwise("axis")
    return pl.when(place == "").then("op").otherwise(pl.format("{} · {}", place, pl.col("op")))


def _block() -> pl.Expr:
    """Return the owner up to its block number: ``Llama.layers.3`` for ``Llama.layers.3.attn.wq``."""
    block = pl.col("owner").str.extract(r"^(.*?\.\d+)(?:\.|$)")
    top = pl.col("owner").str.extract(r"^([^.]*(?:\.[^.]*)?)")
    return pl.when(pl.col("owner") == "").then(pl.lit(NO_MODULE)).otherwise(block.fill_null(top))


def axes_by_bytes(events: pl.DataFrame) -> tuple[str, ...]:
    """Return the axes, most wire bytes in steps first; all views of a trace assign colors in this order."""
    in_steps = pl.when(IN_STEPS).then(pl.col("wire_bytes")).otherwise(0)
    totals = events.group_by("axis").agg(in_steps.sum().alias("size")).sort("size", "axis", descending=[True, False])
    return tuple(axis or NO_AXIS for axis in totals["axis"])


def _sorted_names(names: pl.Series, kind: str) -> tuple[str, ...]:
    """Return the distinct names: phases in the order of a step, ranks by number, others as they first appear.

    The lanes of a rank's disk and of its waits follow its others.
    """
    place: dict[str, int] = {phase: i for i, phase in enumerate(schema.PHASES)} if kind == "phase" else {}
    last = {DISK: len(place) + 1, BLOCKED: len(place) + 2}

    def key(name: str) -> tuple[int, int]:
        part = name.rpartition(" · ")[2]
        return _rank_of(name), last.get(part, place.get(part, len(place)))

    return tuple(sorted(names.unique(maintain_order=True).to_list(), key=key))


def _rank_of(name: str) -> int:
    """Return the rank with which the name of a lane begins; -1 if it begins with none."""
    number = name.removeprefix("rank ").partition(" ")[0]
    return int(number) if name.startswith("rank ") and number.isdigit() else -1


def message_ties(tables: Tables, spans: pl.DataFrame) -> pl.DataFrame:
    """Return one row per send and the receive that takes its message. Columns: `TIES`.

    Messages between two ranks of one group arrive in the order in which they are sent: the first send matches the first
    receive. Sends to ranks that are not in the trace are omitted.

    Args:
        tables: the trace.
        spans: the spans of its events; columns lane, begin, end and row of `SPANS`.
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


def with_sizes(timeline: Timeline, sizes: Sizes) -> Timeline:
    """Return the timeline with wire or message bytes."""
    column = timeline.tables.events[f"{sizes}_bytes"].gather(timeline.spans["row"]).cast(SPANS["bytes"])
    bytes_ = pl.coalesce(column, pl.when(pl.col("mark") == DISK).then("bytes")).alias("bytes")
    return replace(timeline, spans=timeline.spans.with_columns(bytes_), sizes=sizes)
