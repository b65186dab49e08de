"""The view of a `Skew`: who is late, a lane per rank over time, and a table of the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from dsexplore._internal.analysis.arrivals import COMES_LATE
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.units import format_count, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.charts import LEGEND_ABOVE, themed
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.page.theme import ALARM, SHADE, WAITING
from dsexplore._internal.views.timeline.mark_colors import LATE, WAITS
from dsexplore._internal.views.timeline.timeline_drawing import TICKS_STYLE, axis_html
from dsexplore._internal.views.timeline.timeline_text import round_numbers
from dsexplore._internal.views.view import View

# Drawing of a skew: a lane per rank over time, with waiting, transfer and lateness in different colors.
#
# A trace may have millions of collectives; the consecutive ones in which ranks waited longest are drawn.

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
_LATE_KEY = ("l", LATE.fill, LATE.name)


@dataclass(frozen=True)
class Lane:
    """A lane of something else than collectives, which stands below that of its rank."""

    of: str
    """Its name in the timeline, ``rank 1 · disk``."""
    name: str
    color: str
    boxes: tuple[tuple[float, float], ...]
    """(begin, length) in seconds, on the scale of `Skew.arrivals`."""


@dataclass(frozen=True)
class Window:
    """Consecutive collectives and the ranks that are drawn."""

    arrived: pl.DataFrame
    """Drawn rows of `Skew.arrivals`."""
    ranks: tuple[int, ...]
    hidden_ranks: int
    collectives: int
    of_all: int
    """Total number of collectives."""
    first: float
    """Seconds since the first start of the trace; `last` is the end of the last drawn collective."""
    last: float


def window(skew: Skew, most_collectives: int = MOST_COLLECTIVES, most_lanes: int = MOST_LANES) -> Window:
    """Return the consecutive collectives in which ranks waited longest, and the ranks to draw of them.

    Args:
        skew: skew of a trace with times.
        most_collectives: maximal number of collectives.
        most_lanes: maximal number of ranks; late ones and those that waited longest are preferred.
    """
    arrived = skew.arrivals
    events = (
        arrived.with_columns(waiting=pl.col("took") - pl.col("duration"))
        .group_by("instance")
        .agg(pl.col("begin").min(), pl.col("waiting").sum())
        .sort("begin", "instance")
    )
    sums = events["waiting"].rolling_sum(min(most_collectives, events.height))
    end = (sums.arg_max() or 0) + 1
    chosen = events["instance"][max(0, end - most_collectives) : end]
    shown = arrived.filter(pl.col("instance").is_in(chosen.implode()))
    ranks = _ranks(skew, shown, most_lanes)
    drawn = shown.filter(pl.col("rank").is_in(ranks))
    return Window(
        arrived=drawn,
        ranks=tuple(ranks),
        hidden_ranks=arrived["rank"].n_unique() - len(ranks),
        collectives=len(chosen),
        of_all=events.height,
        first=float(drawn["begin"].min()),  # type: ignore[arg-type]  # a column of floats
        last=float((drawn["begin"] + drawn["took"]).max()),  # type: ignore[arg-type]
    )


def _ranks(skew: Skew, shown: pl.DataFrame, most: int) -> list[int]:
    late = [late_rank.rank for late_rank in skew.late_ranks]
    waited = (
        shown.group_by("rank")
        .agg((pl.col("took") - pl.col("duration")).sum().alias("waited"))
        .sort("waited", "rank", descending=[True, False])["rank"]
        .to_list()
    )
    return sorted(list(dict.fromkeys([*(rank for rank in late if rank in waited), *waited]))[:most])


def drawing(
    skew: Skew, most_collectives: int = MOST_COLLECTIVES, most_lanes: int = MOST_LANES, *, further: Sequence[Lane] = ()
) -> str:
    """Return the lanes, their key and the axis as HTML, empty if nothing was measured; needs `STYLE`.

    Args:
        skew: skew of a trace.
        most_collectives: see `window`.
        most_lanes: see `window`.
        further: other lanes on the same axis, which is as long as all of them need.
    """
    if not skew.is_timed or skew.arrivals.is_empty():
        return ""
    drawn = window(skew, most_collectives, most_lanes)
    ends = [end for lane in further for begin, length in lane.boxes for end in (begin, begin + length)]
    drawn = replace(drawn, first=min([drawn.first, *ends]), last=max([drawn.last, *ends]))
    late = {late_rank.rank for late_rank in skew.late_ranks}
    parts = drawn.arrived.partition_by("rank", as_dict=True)
    lanes = "".join(
        _lane(rank, parts[(rank,)], drawn, rank in late)
        + "".join(_further(lane, drawn) for lane in further if lane.of.startswith(f"rank {rank} "))
        for rank in drawn.ranks
    )
    more = f'<p class="dim">{drawn.hidden_ranks:,} more ranks are not drawn.</p>' if drawn.hidden_ranks > 0 else ""
    length = drawn.last - drawn.first
    marks = [(at / (length or 1.0), format_seconds(at)) for at in round_numbers(0.0, length)]
    shown = [*_KEYS, *([_LATE_KEY] if late else []), *dict.fromkeys(("", lane.color, lane.name) for lane in further)]
    keys = "".join(
        f'<span><i class="{kind}" style="background:{color}"></i>{text}</span> ' for kind, color, text in shown
    )
    return f'<p class="keys">{keys}</p><div class="skew">{lanes}<span></span>{axis_html(marks)}</div>{more}'


def _lane(rank: int, of_rank: pl.DataFrame, drawn: Window, is_late: bool) -> str:
    """Return the name and the lane of a rank."""
    span = (drawn.last - drawn.first) or 1.0
    rows = of_rank.sort("begin").select("begin", "took", "duration", "late_by", is_named=COMES_LATE & is_late).rows()
    waiting, transfers, lateness, labels = [], [], [], []
    for begin, took, duration, late_by, is_named in rows:
        at, wait = begin - drawn.first, took - duration
        waiting.append((at, wait))
        transfers.append((at + wait, duration))
        if is_named:
            lateness.append((at - late_by, late_by))
            labels.append((at, late_by))
    paths = "".join(
        f'<path d="{"".join(_box(*box, span, *band) for box in boxes if box[1] > 0)}" fill="{color}"/>'
        for boxes, color, band in (
            (waiting, WAITING, (0, _HEIGHT)),
            (transfers, SHADE, (0, _HEIGHT)),
            (lateness, ALARM, (_HEIGHT / 2 - 1.5, 3)),
        )
    )
    spoken = f"rank {rank}: waits {format_seconds(sum(length for _, length in waiting))} in {len(rows)} collectives"
    picture = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{html.escape(spoken)}">{paths}</svg>'
    )
    name = f'<span class="late">rank {rank}</span>' if is_late else f"<span>rank {rank}</span>"
    return f'{name} <div class="lane">{picture}{_labels(labels, span)}</div>'


def _further(lane: Lane, drawn: Window) -> str:
    span = (drawn.last - drawn.first) or 1.0
    path = "".join(_box(begin - drawn.first, length, span, 0, _HEIGHT) for begin, length in lane.boxes)
    spoken = f"{lane.of}: {format_seconds(sum(length for _, length in lane.boxes))}"
    return (
        f'<span class="dim">{html.escape(lane.name)}</span> <div class="lane"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'preserveAspectRatio="none" role="img" aria-label="{html.escape(spoken)}"><path d="{path}" '
        f'fill="{lane.color}"/></svg></div>'
    )


def _box(begin: float, length: float, span: float, top: float, height: float) -> str:
    left, width = _WIDTH * begin / span, max(_WIDTH * length / span, _LEAST_DRAWN)
    return f"M{left:.1f} {top:g}h{width:.1f}v{height:g}h-{width:.1f}z"


def _labels(labels: Iterable[tuple[float, float]], span: float) -> str:
    """Return labels of how late a rank comes: the largest first, as far as they have space and there are few."""
    shown: list[tuple[float, str]] = []
    for at, late_by in sorted(labels, key=lambda label: -label[1]):
        last = max(at / span, _LABEL_SHARE)
        if len(shown) == _MOST_LABELS or any(abs(last - place) < _LABEL_SHARE for place, _ in shown):
            continue
        shown.append((last, f'<b style="left:{100 * last:.1f}%">+{html.escape(format_seconds(late_by))}</b>'))
    return " ".join(label for _, label in sorted(shown))


def foot(skew: Skew, drawn: Window | None) -> str:
    """Return the sentences on what is drawn, and where the times come from."""
    parts = []
    if drawn is not None:
        which = (
            ""
            if drawn.collectives == drawn.of_all
            else f", the {drawn.collectives} with most waiting next to one another"
        )
        parts.append(f"{drawn.of_all:,} collectives{which}, seconds since the first of them")
    parts.append("waiting is a collective's time on a rank less the least over its ranks, which is the transfer's")
    return "; ".join([*parts, _clock_text(skew)]) + "."


def _clock_text(skew: Skew) -> str:
    """Return a sentence on how precisely the starts of different ranks can be compared."""
    info = skew.tables.info
    if info.clocks and all(info.clocks) and len(set(info.clocks)) == 1:
        errors = [error for offset, error in zip(info.clock_offsets, info.clock_residuals, strict=False) if offset]
        if not errors:
            return "all ranks on one clock"
        return f"clocks aligned by the ends of collectives, ± {format_seconds(max(errors) / 1e9)} by chance"
    return "clocks may differ: a rank counts as late where both its start and its duration say so"


_COUNTED = (
    "Late at: each collective in which others waited for the rank. The sentence leaves out those where an earlier "
    "collective held it up, and those where it was hardly late."
)
_MOST_ROWS, _MOST_ROWS_OF_PAGE = 8, 2_000
_MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE = 96, 64
_MOST_NOTES = 20
_MARGIN = {"l": 8, "r": 8, "t": 24, "b": 8}


class SkewView(View):
    """The view of a `Skew`."""

    title = "Who waits for whom"

    def __init__(self, skew: Skew) -> None:
        self._skew = skew

    def text(self) -> str:
        """Return the sentence, and a line for each rank that the others waited for longest."""
        lines = [self._skew.verdict()]
        lines += [
            f"  rank {rank}: late at {late:,} of {format_count(collectives, 'collective')}; the others waited "
            f"{format_seconds(kept)} for it, and it waited {format_seconds(waited)}"
            for rank, collectives, late, kept, waited, _ in self._ranks().head(_MOST_ROWS).iter_rows()
        ]
        lines += [f"  {self._counted}"] if self._counted else []
        more = self._ranks().height - _MOST_ROWS
        lines += [f'  {more:,} more ranks: to_frame(by="rank")'] if more > 0 else []
        return "\n".join([*lines, *(f"note: {html.plain(note, longest=0)}" for note in self._notes)])

    def html(self) -> str:
        """Return the sentence, the drawing, and a table of the ranks that the others waited for longest."""
        return self._html(_MOST_ROWS)

    def page(self) -> str:
        """Return a document with more collectives, lanes and rows than a notebook's output holds."""
        return html.page(self.title, self._html(_MOST_ROWS_OF_PAGE, _MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE))

    def _html(self, rows: int, *drawn: int) -> str:
        skew = self._skew
        said = html.verdict(skew.verdict())
        notes = html.notes(self._notes)
        if not self._has_rows:
            return html.fragment(f"<p>{self.title}</p>{said}{notes}", STYLE)
        ranks = f"<p>{self.title}: {format_count(skew.arrivals['rank'].n_unique(), 'rank')}, measured</p>"
        words = f'<p class="dim">{html.escape(foot(skew, window(skew, *drawn)), longest=600)}</p>'
        return html.fragment(f"{ranks}{said}{drawing(skew, *drawn)}{self._table(rows)}{words}{notes}", STYLE)

    @property
    def _notes(self) -> tuple[str, ...]:
        return self._skew.tables.info.notes[:_MOST_NOTES]

    @property
    def _has_rows(self) -> bool:
        return self._skew.is_timed and not self._skew.arrivals.is_empty()

    def _ranks(self) -> pl.DataFrame:
        """Return `Skew.to_frame` by rank, the ranks that the others waited for longest first."""
        if not self._has_rows:
            return pl.DataFrame(schema=("rank", "collectives", "late", "kept_waiting", "waited", "likely"))
        frame = self._skew.to_frame(by="rank").drop("exposed")
        return frame.sort("kept_waiting", "rank", descending=[True, False])

    def _table(self, most: int) -> str:
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
        rest = html.note(f'{more:,} more ranks: <code>to_frame(by="rank")</code>' if more > 0 else "")
        drawn = table(columns, ranks.head(most).iter_rows(named=True))
        return html.details("Each rank", f"{drawn}{rest}{html.note(self._counted)}")

    @property
    def _counted(self) -> str:
        """Why ranks are late at more collectives than the sentence says; empty where they are not."""
        late = dict(self._ranks().select("rank", "late").iter_rows())
        is_more = any(late[named.rank] > named.late for named in self._skew.late_ranks)
        return _COUNTED if is_more else ""

    def figure(self) -> Any:
        """Return a plotly figure of the same: a bar per rank and collective, with waiting and transfer apart.

        Raises:
            TypeError: there are no times.
        """
        if not self._has_rows:
            raise TypeError(f"no figure: {self._skew.verdict()}")
        import plotly.graph_objects as go

        drawn = window(self._skew, _MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE)
        rows = drawn.arrived.with_columns(
            lane=pl.format("rank {}", "rank"),
            at=pl.col("begin") - drawn.first,
            wait=pl.col("took") - pl.col("duration"),
        )
        said = rows.select(pl.format("{} {} of group {}<br>{}", "op", "number", "group", "source")).to_series()
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
                customdata=said.to_list() if part is rows else None,
                hovertemplate=f"{name}: %{{x:.3f}} ms" + ("<br>%{customdata}" * (part is rows)) + "<extra>%{y}</extra>",
            )
        figure.update_layout(barmode="overlay")
        figure.update_yaxes(categoryorder="array", categoryarray=[f"rank {rank}" for rank in reversed(drawn.ranks)])
        figure.update_xaxes(title="ms since the first of these collectives", rangemode="tozero")
        height = 110 + 26 * len(drawn.ranks)
        return themed(figure, margin=_MARGIN, height=height, showlegend=True, legend=LEGEND_ABOVE)
