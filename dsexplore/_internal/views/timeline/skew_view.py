"""The view of a `Skew`: who is late, a lane per rank over time, and a table of the ranks.

In the drawing, waiting, transfer and lateness have different colors. A trace may have millions of collectives; the
consecutive ones in which ranks waited longest are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from dsexplore._internal.analysis.arrivals import COMES_LATE
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.units import format_count, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import LEGEND_ABOVE, round_numbers, themed
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.page.theme import ALARM, SHADE, WAITING
from dsexplore._internal.views.timeline.mark_colors import LATE, WAITS
from dsexplore._internal.views.timeline.timeline_drawing import TICKS_STYLE, axis_html
from dsexplore._internal.views.view import ResultView

MOST_COLLECTIVES, MOST_LANES = 24, 16
_WIDTH, _HEIGHT = 1000, 12
"""Size of a lane, in the drawing's own units."""
_MOST_LABELS = 6
_LEAST_DRAWN = 1.5
"""Minimal width of a mark, in the drawing's units."""
_LABEL_SHARE = 0.27
"""Fraction of a lane's width that a label of lateness needs."""

STYLE = (
    TICKS_STYLE
    + """
.dsx .skew{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:3px 8px;align-items:center;
font-size:var(--dsx-small)}
.dsx .skew .lane{position:relative;height:26px;background:var(--dsx-shade)}
.dsx .skew svg{position:absolute;inset:10px 0 2px;width:100%;height:14px;forced-color-adjust:none}
.dsx .skew .lane b{position:absolute;top:-2px;font-size:var(--dsx-tiny);font-weight:600;line-height:12px;
white-space:nowrap;transform:translateX(-100%);padding-right:2px}
.dsx .skew .late{font-weight:600}
.dsx .keys i{display:inline-block;width:14px;height:9px;margin:0 4px 0 0;vertical-align:0;forced-color-adjust:none}
.dsx .keys span{margin-right:14px;white-space:nowrap}
.dsx .keys i.l{height:3px;vertical-align:3px}
"""
)
_KEYS = (("", SHADE, "transfer"), ("", WAITS.fill, WAITS.name))
"""(class of the swatch, color, text) of each entry of the key."""
_LATE_KEY = ("l", LATE.fill, LATE.name)


@dataclass(frozen=True)
class Lane:
    """A lane that shows no collectives, such as those of a rank's disk. It is drawn below the lane of its rank."""

    timeline_lane: str
    """Name in `Timeline.lanes`: ``rank 1 · disk``."""
    name: str
    """Name in the drawing and its key."""
    color: str
    boxes: tuple[tuple[float, float], ...]
    """(begin, length) in seconds, on the scale of `Skew.arrivals`."""


@dataclass(frozen=True)
class Window:
    """The collectives and the ranks that are drawn."""

    arrivals: pl.DataFrame
    """Rows of `Skew.arrivals` that are drawn."""
    ranks: tuple[int, ...]
    hidden_ranks: int
    """Number of ranks that are not drawn."""
    collectives: int
    """Number of collectives that are drawn."""
    all_collectives: int
    """Number of collectives of the skew."""
    first: float
    """Begin of the first drawn collective, in seconds since the first start of the trace."""
    last: float
    """End of the last drawn collective, in seconds since the first start of the trace."""

    @property
    def seconds(self) -> float:
        """Length of the axis; 1 where everything happens at one time."""
        return (self.last - self.first) or 1.0


def window(skew: Skew, most_collectives: int = MOST_COLLECTIVES, most_lanes: int = MOST_LANES) -> Window:
    """Choose the consecutive collectives in which ranks waited longest, and the ranks to draw.

    Args:
        skew: skew of a trace with times.
        most_collectives: maximal number of collectives.
        most_lanes: maximal number of ranks. Late ranks are preferred, then those that waited longest.
    """
    arrivals = skew.arrivals
    events = (
        arrivals.with_columns(waiting=pl.col("took") - pl.col("duration"))
        .group_by("instance")
        .agg(pl.col("begin").min(), pl.col("waiting").sum())
        .sort("begin", "instance")
    )
    sums = events["waiting"].rolling_sum(min(most_collectives, events.height))
    end = (sums.arg_max() or 0) + 1
    chosen = events["instance"][max(0, end - most_collectives) : end]
    shown = arrivals.filter(pl.col("instance").is_in(chosen.implode()))
    ranks = _drawn_ranks(skew, shown, most_lanes)
    drawn = shown.filter(pl.col("rank").is_in(ranks))
    return Window(
        arrivals=drawn,
        ranks=tuple(ranks),
        hidden_ranks=arrivals["rank"].n_unique() - len(ranks),
        collectives=len(chosen),
        all_collectives=events.height,
        first=float(drawn["begin"].min()),  # type: ignore[arg-type]  # a column of floats
        last=float((drawn["begin"] + drawn["took"]).max()),  # type: ignore[arg-type]
    )


def _drawn_ranks(skew: Skew, shown: pl.DataFrame, most: int) -> list[int]:
    """Return at most ``most`` ranks of the rows ``shown``: late ones, then those that waited longest; ascending."""
    by_waiting = (
        shown.group_by("rank")
        .agg((pl.col("took") - pl.col("duration")).sum().alias("waited"))
        .sort("waited", "rank", descending=[True, False])["rank"]
        .to_list()
    )
    late = [late_rank.rank for late_rank in skew.late_ranks if late_rank.rank in by_waiting]
    return sorted(list(dict.fromkeys([*late, *by_waiting]))[:most])


def drawing(
    skew: Skew, most_collectives: int = MOST_COLLECTIVES, most_lanes: int = MOST_LANES, *, further: Sequence[Lane] = ()
) -> str:
    """Return the lanes, their key and the axis as HTML, empty if nothing was measured; needs `STYLE`.

    Args:
        skew: skew of a trace.
        most_collectives: maximal number of collectives.
        most_lanes: maximal number of ranks.
        further: other lanes to draw; the axis is extended to show all of them.
    """
    if not skew.is_timed or skew.arrivals.is_empty():
        return ""
    drawn = window(skew, most_collectives, most_lanes)
    boxes = [box for lane in further for box in lane.boxes]
    drawn = replace(
        drawn,
        first=min([drawn.first, *(begin for begin, _ in boxes)]),
        last=max([drawn.last, *(begin + length for begin, length in boxes)]),
    )
    late = {late_rank.rank for late_rank in skew.late_ranks}
    arrivals = drawn.arrivals.partition_by("rank", as_dict=True)
    lanes = ""
    for rank in drawn.ranks:
        lanes += _rank_lane(rank, arrivals[(rank,)], drawn, is_late=rank in late)
        lanes += "".join(_lane(lane, drawn) for lane in further if lane.timeline_lane.startswith(f"rank {rank} "))
    more = f'<p class="dim">{drawn.hidden_ranks:,} more ranks are not drawn.</p>' if drawn.hidden_ranks > 0 else ""
    marks = [(at / drawn.seconds, format_seconds(at)) for at in round_numbers(0.0, drawn.last - drawn.first)]
    shown = [*_KEYS, *([_LATE_KEY] if late else []), *dict.fromkeys(("", lane.color, lane.name) for lane in further)]
    keys = "".join(
        f'<span><i class="{kind}" style="background:{color}"></i>{text}</span> ' for kind, color, text in shown
    )
    return f'<p class="keys">{keys}</p><div class="skew">{lanes}<span></span>{axis_html(marks)}</div>{more}'


def _rank_lane(rank: int, arrivals: pl.DataFrame, drawn: Window, is_late: bool) -> str:
    """Return the name and the lane of a rank; ``is_late`` says whether the verdict names it."""
    columns = arrivals.sort("begin").select("begin", "took", "duration", "late_by", is_labeled=COMES_LATE & is_late)
    waiting, transfers, lateness, labels = [], [], [], []
    for begin, took, duration, late_by, is_labeled in columns.iter_rows():
        at, wait = begin - drawn.first, took - duration
        waiting.append((at, wait))
        transfers.append((at + wait, duration))
        if is_labeled:
            lateness.append((at - late_by, late_by))
            labels.append((at, late_by))
    paths = (
        _path(waiting, drawn, WAITING)
        + _path(transfers, drawn, SHADE)
        + _path(lateness, drawn, ALARM, top=_HEIGHT / 2 - 1.5, height=3)
    )
    waited = format_seconds(sum(length for _, length in waiting))
    picture = _picture(f"rank {rank}: waits {waited} in {len(waiting)} collectives", paths)
    name = f'<span class="late">rank {rank}</span>' if is_late else f"<span>rank {rank}</span>"
    return f'{name} <div class="lane">{picture}{_labels(labels, drawn.seconds)}</div>'


def _lane(lane: Lane, drawn: Window) -> str:
    """Return the name and the boxes of a lane that shows no collectives."""
    boxes = [(begin - drawn.first, length) for begin, length in lane.boxes]
    spoken = f"{lane.timeline_lane}: {format_seconds(sum(length for _, length in boxes))}"
    picture = _picture(spoken, _path(boxes, drawn, lane.color))
    return f'<span class="dim">{html.escape(lane.name)}</span> <div class="lane">{picture}</div>'


def _picture(spoken: str, paths: str) -> str:
    """Return the SVG of a lane; ``spoken`` is its text for screen readers."""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(spoken)}">{paths}</svg>'
    )


def _path(
    boxes: Iterable[tuple[float, float]], drawn: Window, color: str, *, top: float = 0, height: float = _HEIGHT
) -> str:
    """Return an SVG path of the boxes that have a length; ``boxes``: (seconds since `Window.first`, length)."""
    outlines = []
    for begin, length in boxes:
        if length > 0:
            left, width = _WIDTH * begin / drawn.seconds, max(_WIDTH * length / drawn.seconds, _LEAST_DRAWN)
            outlines.append(f"M{left:.1f} {top:g}h{width:.1f}v{height:g}h-{width:.1f}z")
    return f'<path d="{"".join(outlines)}" fill="{color}"/>'


def _labels(labels: Iterable[tuple[float, float]], seconds: float) -> str:
    """Return labels that say how late a rank is, the latest first, until they lack space or are too many.

    Args:
        labels: (seconds since the begin of the axis, seconds late) of each arrival.
        seconds: length of the axis.
    """
    shown: list[tuple[float, str]] = []
    for at, late_by in sorted(labels, key=lambda label: -label[1]):
        last = max(at / seconds, _LABEL_SHARE)
        if len(shown) == _MOST_LABELS or any(abs(last - place) < _LABEL_SHARE for place, _ in shown):
            continue
        shown.append((last, f'<b style="left:{100 * last:.1f}%">+{html.escape(format_seconds(late_by))}</b>'))
    return " ".join(label for _, label in sorted(shown))


def _foot(skew: Skew, drawn: Window) -> str:
    """Return the sentence on what is drawn, and how the times were measured."""
    is_all = drawn.collectives == drawn.all_collectives
    which = "" if is_all else f", of which the consecutive {drawn.collectives} with most waiting are drawn"
    collectives = f"{drawn.all_collectives:,} collectives{which}, seconds since the first of them"
    waiting = "waiting is a collective's time on a rank minus its shortest time on any rank, which is the transfer"
    return f"{collectives}; {waiting}; {_clock_text(skew)}."


def _clock_text(skew: Skew) -> str:
    """Return how precisely the starts of different ranks can be compared."""
    info = skew.tables.info
    if info.clocks and all(info.clocks) and len(set(info.clocks)) == 1:
        errors = [error for offset, error in zip(info.clock_offsets, info.clock_residuals, strict=False) if offset]
        if not errors:
            return "all ranks on one clock"
        return f"clocks aligned by the ends of collectives, ± {format_seconds(max(errors) / 1e9)}"
    return "clocks may differ: a rank counts as late where both its start and its duration say so"


_COUNTED = (
    "Late at: each collective in which others waited for the rank. The verdict does not count those in which an "
    "earlier collective delayed it, and those in which it was hardly late."
)
_MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE = 96, 64
_MOST_NOTES = 20
_MARGIN = {"l": 8, "r": 8, "t": 24, "b": 8}


class SkewView(ResultView[Skew]):
    """The view of a `Skew`."""

    title = "Who waits for whom"
    STYLE = STYLE
    MOST_ROWS = 8

    def text(self) -> str:
        """Return the verdict, and a line for each rank that the others waited for longest."""
        ranks = self._ranks()
        lines = [
            self.result.verdict(),
            *(
                f"  rank {row['rank']}: late at {row['late']:,} of {format_count(row['collectives'], 'collective')}; "
                f"the others waited {format_seconds(row['kept_waiting'])} for it, "
                f"and it waited {format_seconds(row['waited'])}"
                for row in ranks.head(self.MOST_ROWS).iter_rows(named=True)
            ),
        ]
        if self._counted:
            lines.append(f"  {self._counted}")
        if ranks.height > self.MOST_ROWS:
            lines.append(f'  {ranks.height - self.MOST_ROWS:,} more ranks: to_frame(by="rank")')
        return "\n".join([*lines, *(f"note: {html.plain(note, longest=0)}" for note in self.notes())])

    def head(self) -> str:
        """Return how many ranks were measured, and the verdict, as HTML."""
        ranks = format_count(self.result.arrivals["rank"].n_unique(), "rank") if self._has_rows else ""
        measured = f": {ranks}, measured" if ranks else ""
        return f"<p>{self.title}{measured}</p>{html.verdict(self.result.verdict())}"

    def body(self, most: int) -> str:
        """Return the drawing, and a table of the ranks that the others waited for longest, as HTML.

        A page, which has more than `MOST_ROWS` rows, draws more collectives and lanes than a notebook's output.
        """
        skew, notes = self.result, html.notes(self.notes())
        if not self._has_rows:
            return notes
        collectives, lanes = MOST_COLLECTIVES, MOST_LANES
        if most > self.MOST_ROWS:
            collectives, lanes = _MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE
        foot = html.note(html.escape(_foot(skew, window(skew, collectives, lanes)), longest=600))
        return f"{drawing(skew, collectives, lanes)}{self._table(most)}{foot}{notes}"

    def still(self, figure: Any, **options: Any) -> str:
        """Return the view itself: its lanes show what the figure shows."""
        return self.html()

    def notes(self) -> Sequence[str]:
        """Return the notes of the trace."""
        return self.result.tables.info.notes[:_MOST_NOTES]

    @property
    def _has_rows(self) -> bool:
        return self.result.is_timed and not self.result.arrivals.is_empty()

    def _ranks(self) -> pl.DataFrame:
        """Return `Skew.to_frame` by rank; the rank that the others waited for longest is first."""
        if not self._has_rows:
            return pl.DataFrame(schema=("rank", "collectives", "late", "kept_waiting", "waited", "likely"))
        frame = self.result.to_frame(by="rank").drop("exposed")
        return frame.sort("kept_waiting", "rank", descending=[True, False])

    def _table(self, most: int) -> str:
        """Return a section with a row for each of the first ``most`` ranks."""
        ranks = self._ranks()
        columns = (
            Column("rank", lambda row: str(row["rank"])),
            Column("late at", lambda row: f"{row['late']:,}"),
            Column("of", lambda row: f"{row['collectives']:,}"),
            Column("others waited for it", lambda row: format_seconds(row["kept_waiting"])),
            Column("waited itself", lambda row: format_seconds(row["waited"])),
            text("likely", lambda row: row["likely"] or "–"),
        )
        more = ranks.height - most
        hidden = html.note(f'{more:,} more ranks: <code>to_frame(by="rank")</code>' if more > 0 else "")
        drawn = table(columns, ranks.head(most).iter_rows(named=True))
        return html.details("Each rank", f"{drawn}{hidden}{html.note(self._counted)}")

    @property
    def _counted(self) -> str:
        """Why the table counts more late collectives than the verdict; empty where it does not."""
        late = dict(self._ranks().select("rank", "late").iter_rows())
        is_more = any(late[late_rank.rank] > late_rank.late for late_rank in self.result.late_ranks)
        return _COUNTED if is_more else ""

    def figure(self) -> Any:
        """Return a plotly figure with bars of waiting, transfer and lateness per rank and collective.

        Raises:
            TypeError: There are no times.
        """
        if not self._has_rows:
            raise TypeError(f"no figure: {self.result.verdict()}")
        import plotly.graph_objects as go

        drawn = window(self.result, _MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE)
        rows = drawn.arrivals.with_columns(
            lane=pl.format("rank {}", "rank"),
            at=pl.col("begin") - drawn.first,
            wait=pl.col("took") - pl.col("duration"),
        )
        hover = rows.select(pl.format("{} {} of group {}<br>{}", "op", "number", "group", "source")).to_series()
        late = rows.filter(COMES_LATE)
        figure = go.Figure()
        for name, color, part, base, length in (
            ("waiting", WAITING, rows, rows["at"], rows["wait"]),
            ("transfer", SHADE, rows, rows["at"] + rows["wait"], rows["duration"]),
            ("late", ALARM, late, late["at"] - late["late_by"], late["late_by"]),
        ):
            figure.add_bar(
                orientation="h",
                y=part["lane"].to_list(),
                base=(base * 1e3).to_list(),
                x=(length * 1e3).to_list(),
                name=name,
                marker={"color": color},
                width=0.2 if part is late else 0.7,
                customdata=hover.to_list() if part is rows else None,
                hovertemplate=f"{name}: %{{x:.3f}} ms" + ("<br>%{customdata}" * (part is rows)) + "<extra>%{y}</extra>",
            )
        figure.update_layout(barmode="overlay")
        figure.update_yaxes(categoryorder="array", categoryarray=[f"rank {rank}" for rank in reversed(drawn.ranks)])
        figure.update_xaxes(title="ms since the first of these collectives", rangemode="tozero")
        height = 110 + 26 * len(drawn.ranks)
        return themed(figure, margin=_MARGIN, height=height, showlegend=True, legend=LEGEND_ABOVE)
