"""The view of a `Timeline`."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from dsexplore.analysis.skew import Skew, skew
from dsexplore.analysis.step_timeline import Timeline
from dsexplore.views.page import html
from dsexplore.views.skew import skew_view
from dsexplore.views.timeline.timeline_drawing import timeline_html
from dsexplore.views.timeline.timeline_text import timeline_text
from dsexplore.views.view import View

_RANK = re.compile(r"rank \d+")


class TimelineView(View):
    """The view of a `Timeline`."""

    title = "Timeline"

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def text(self) -> str:
        """Return the timeline as text: its verdict, the unit of its axis, and a line per lane."""
        return timeline_text(self._with_verdict(self._who_waits))

    def html(self) -> str:
        """Return the drawing as HTML; of ranks whose times were measured, also who waits for whom."""
        late = self._who_waits
        return timeline_html(self._with_verdict(late)) + (
            "" if late is None else html.fragment(skew_view.drawing(late), skew_view.STYLE)
        )

    def _with_verdict(self, late: Skew | None) -> Timeline:
        """Return the timeline with who waits for whom in its verdict."""
        said = [] if late is None else [late.sentence]
        return replace(self._timeline, verdict=" ".join([*said, *filter(None, [self._timeline.verdict])]))

    @property
    def _who_waits(self) -> Skew | None:
        """Skew of the ranks that the lanes are; None if they are no ranks, or nothing was measured."""
        timeline = self._timeline
        if timeline.order != "measured" or len(timeline.lanes) < 2 or not _RANK.fullmatch(timeline.lanes[0]):
            return None
        found = skew(timeline.tables)
        return found if found.is_timed and not found.arrivals.is_empty() else None

    def explore(self) -> Any:
        """Return a timeline with zoom and range selection; ``.selection`` is the `Trace` of what is selected."""
        from dsexplore.views.timeline.timeline_explorer import TimelineExplorer  # anywidget is loaded when asked for

        return TimelineExplorer(self._timeline)
