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
from dsexplore._internal.views.timeline import skew_view
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
        """Return the drawing as HTML; for ranks with measured times, also who waits for whom.

        Simulated stages of a pipeline are drawn by their schedule, because the order of their messages does not show
        how long they wait.
        """
        skew, stages = self._skew, self._stages
        if stages is not None:
            order = html.details("In what order the ranks send", drawing(self._timeline))
            return html.fragment(f"{title_html(stages)}{drawing(stages)}{order}", STYLE)
        if skew is None:
            return timeline_html(self._concluded)
        io_lanes = self._io_lanes(skew)
        other_lanes = {*self._timeline.lanes} - {lane.timeline_lane for lane in io_lanes}
        draws_all_collectives = skew_view.window(skew).collectives == skew.arrivals["instance"].n_unique()
        if draws_all_collectives and all(map(is_rank, other_lanes)):  # then the skew shows all that the timeline does
            waiting = html.fragment(skew_view.drawing(skew, further=io_lanes), skew_view.STYLE)
            return html.fragment(title_html(self._concluded)) + waiting
        return timeline_html(self._concluded) + html.fragment(skew_view.drawing(skew), skew_view.STYLE)

    def _io_lanes(self, skew: Skew) -> list[skew_view.Lane]:
        """Return the lanes of reads and writes and of waiting for them, on the time scale of the skew."""
        spans, colors = self._timeline.spans, {color.name: color.fill for color in colors_of(self._timeline)}
        events = spans.filter(pl.col("row").is_not_null())
        shift = skew.arrivals.select(pl.col("begin").min()).item() - events.select(pl.col("begin").min()).item()
        times = pl.struct(pl.col("begin") + shift, pl.col("end") - pl.col("begin"))
        of_lane = spans.filter(pl.col("row").is_null()).group_by("lane", "mark", maintain_order=True).agg(times)
        return [
            skew_view.Lane(lane, mark, colors[mark], tuple(tuple(box.values()) for box in boxes))
            for lane, mark, boxes in of_lane.iter_rows()
        ]

    @cached_property
    def _concluded(self) -> Timeline:
        """Timeline whose `Timeline.conclusion` is its verdict, or that of the stages for a pipeline."""
        return replace(self._timeline, conclusion=(self._stages or self._timeline).verdict())

    @property
    def _skew(self) -> Skew | None:
        """Skew of the ranks; None if the lanes are not ranks, or if no times were measured."""
        return self._timeline.drawn.rank_skew()

    @cached_property
    def _stages(self) -> Timeline | None:
        """Timeline of the pipeline's stages; None without a pipeline, or if times were measured."""
        tables = self._timeline.tables
        is_pipeline = self._timeline.order == "rounds" and read_schedule(tables.info.schedule) is not None
        return stage_timeline(tables) if is_pipeline else None

    def explore(self) -> Any:
        """Return a timeline with zoom and range selection; ``.selection`` is the `Trace` of what is selected."""
        from dsexplore._internal.views.timeline.timeline_explorer import (
            TimelineExplorer,  # anywidget is loaded when asked for
        )

        return TimelineExplorer(self._concluded, self._timeline.drawn.skew)
