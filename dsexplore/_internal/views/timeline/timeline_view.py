"""The view of a `Timeline`."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import polars as pl

from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.analysis.step_timeline import Timeline
from dsexplore._internal.analysis.timeline_verdict import is_rank
from dsexplore._internal.cost.step.predicted_timeline import stage_timeline
from dsexplore._internal.cost.step.schedules import read_schedule
from dsexplore._internal.views.page import html
from dsexplore._internal.views.skew import skew_view
from dsexplore._internal.views.timeline.mark_colors import colors_of
from dsexplore._internal.views.timeline.timeline_drawing import STYLE, drawing, timeline_html, title_html
from dsexplore._internal.views.timeline.timeline_text import timeline_text
from dsexplore._internal.views.view import View


class TimelineView(View):
    """The view of a `Timeline`."""

    title = "Timeline"

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def text(self) -> str:
        """Return the timeline as text: its verdict, the unit of its axis, and a line per lane."""
        return timeline_text(self._concluded)

    def html(self) -> str:
        """Return the drawing as HTML; of ranks whose times were measured, also who waits for whom.

        Simulated stages of a pipeline are drawn by its schedule, since the order of their messages does not show how
        long they wait.
        """
        late, stages = self._who_waits, self._stages
        if stages is not None:
            order = html.details("In what order the ranks send", drawing(self._timeline))
            return html.fragment(f"{title_html(stages)}{drawing(stages)}{order}", STYLE)
        if late is None:
            return timeline_html(self._concluded)
        is_all = skew_view.window(late).collectives == late.arrivals["instance"].n_unique()
        further = self._further(late)
        is_all &= all(map(is_rank, {*self._timeline.lanes} - {lane.of for lane in further}))
        waiting = html.fragment(skew_view.drawing(late, further=further if is_all else ()), skew_view.STYLE)
        if not is_all:
            return timeline_html(self._concluded) + waiting
        return html.fragment(title_html(self._concluded)) + waiting

    def _further(self, late: Skew) -> list[skew_view.Lane]:
        """Return the lanes of reads, writes and waits for them, on the time scale of the skew."""
        spans = self._timeline.spans
        events, colors = spans.filter(pl.col("row").is_not_null()), {c.name: c.fill for c in colors_of(self._timeline)}
        shift = late.arrivals.select(pl.col("begin").min()).item() - events.select(pl.col("begin").min()).item()
        times = pl.struct(pl.col("begin") + shift, pl.col("end") - pl.col("begin"))
        of_lane = spans.filter(pl.col("row").is_null()).group_by("lane", "mark", maintain_order=True).agg(times)
        return [
            skew_view.Lane(lane, mark, colors[mark], tuple(tuple(box.values()) for box in boxes))
            for lane, mark, boxes in of_lane.iter_rows()
        ]

    @cached_property
    def _concluded(self) -> Timeline:
        """Timeline with its verdict as a text; that of the stages if it is a pipeline's."""
        return replace(self._timeline, conclusion=(self._stages or self._timeline).verdict())

    @property
    def _who_waits(self) -> Skew | None:
        """Skew of the ranks that the lanes are; None if they are no ranks, or nothing was measured."""
        return self._timeline.drawn.who_waits()

    @cached_property
    def _stages(self) -> Timeline | None:
        """Timeline of the pipeline whose ranks the lanes are; None if there is none, or times were measured."""
        tables = self._timeline.tables
        is_pipeline = self._timeline.order == "rounds" and read_schedule(tables.info.schedule) is not None
        return stage_timeline(tables) if is_pipeline else None

    def explore(self) -> Any:
        """Return a timeline with zoom and range selection; ``.selection`` is the `Trace` of what is selected."""
        from dsexplore._internal.views.timeline.timeline_explorer import (
            TimelineExplorer,  # anywidget is loaded when asked for
        )

        return TimelineExplorer(self._concluded, self._timeline.drawn.skew)
