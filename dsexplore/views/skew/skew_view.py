"""The view of a `Skew`: who is late, a lane per rank over time, and a table of the ranks."""

from __future__ import annotations

from typing import Any

import polars as pl

from dsexplore.analysis.skew import Skew
from dsexplore.units import format_count, format_seconds
from dsexplore.views.page import html
from dsexplore.views.page.theme import BLUE, GREY, LEGEND_ABOVE, VERMILION, themed, tint
from dsexplore.views.skew.skew_drawing import STYLE, drawing, foot, window
from dsexplore.views.view import View

HEAD = ("rank", "late at", "of", "others waited for it", "waited itself", "likely")
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
        lines = [self._skew.sentence]
        lines += [
            f"  rank {rank}: late at {late:,} of {format_count(collectives, 'collective')}; the others waited "
            f"{format_seconds(kept)} for it, and it waited {format_seconds(waited)}"
            for rank, collectives, late, kept, waited, _ in self._ranks().head(_MOST_ROWS).iter_rows()
        ]
        more = self._ranks().height - _MOST_ROWS
        lines += [f'  {more:,} more ranks: to_frame(by="rank")'] if more > 0 else []
        return "\n".join([*lines, *(f"note: {html.plain(note, 0)}" for note in self._notes)])

    def html(self) -> str:
        """Return the sentence, the drawing, and a table of the ranks that the others waited for longest."""
        return self._html(_MOST_ROWS)

    def page(self, **options: Any) -> str:
        """Return a document with more collectives, lanes and rows than a notebook's output holds."""
        self.refuse("to_html", options)
        return html.page(self.title, self._html(_MOST_ROWS_OF_PAGE, _MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE))

    def _html(self, rows: int, *drawn: int) -> str:
        skew = self._skew
        said = f"<p><b>{html.prose(skew.sentence, 600)}</b></p>"
        notes = "".join(f'<p class="dim">{html.escape(note, 0)}</p>' for note in self._notes)
        if not self._has_rows:
            return html.fragment(f"<p>{self.title}</p>{said}{notes}", STYLE)
        ranks = f"<p>{self.title}: {format_count(skew.arrivals['rank'].n_unique(), 'rank')}, measured</p>"
        words = f'<p class="dim">{html.escape(foot(skew, window(skew, *drawn)), 600)}</p>'
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
        found = self._ranks()
        rows = [
            (str(rank), f"{late:,}", f"{collectives:,}", format_seconds(kept), format_seconds(waited), likely or "–")
            for rank, collectives, late, kept, waited, likely in found.head(most).iter_rows()
        ]
        more = found.height - len(rows)
        rest = f'<p class="dim">{more:,} more ranks: <code>to_frame(by="rank")</code></p>' if more > 0 else ""
        return f"<details><summary>Each rank</summary>{html.table(HEAD, rows, left=(5,))}{rest}</details>"

    def figure(self, **options: Any) -> Any:
        """Return a plotly figure of the same: a bar per rank and collective, with waiting and transfer apart.

        Raises:
            UsageError: an option.
            TypeError: there are no times.
        """
        self.refuse("figure", options)
        if not self._has_rows:
            raise TypeError(f"no figure: {self._skew.sentence}")
        import plotly.graph_objects as go

        drawn = window(self._skew, _MOST_COLLECTIVES_OF_PAGE, _MOST_LANES_OF_PAGE)
        rows = drawn.arrived.with_columns(
            lane=pl.format("rank {}", "rank"),
            at=pl.col("begin") - drawn.first,
            wait=pl.col("took") - pl.col("duration"),
        )
        said = rows.select(pl.format("{} {} of group {}<br>{}", "op", "number", "group", "source")).to_series()
        late = rows.filter("is_late")
        figure = go.Figure()
        for name, color, part, base, length in (
            ("waiting", tint(GREY, 0.4), rows, rows["at"], rows["wait"]),
            ("transfer", BLUE, rows, rows["at"] + rows["wait"], rows["duration"]),
            ("late", VERMILION, late, late["at"] - late["late_by"], late["late_by"]),
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
