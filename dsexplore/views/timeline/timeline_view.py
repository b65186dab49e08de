"""The view of a `Timeline`."""

from __future__ import annotations

from typing import Any

from dsexplore.analysis.step_timeline import Timeline
from dsexplore.views.timeline.timeline_drawing import timeline_html
from dsexplore.views.timeline.timeline_text import timeline_text
from dsexplore.views.view import View


class TimelineView(View):
    """The view of a `Timeline`."""

    title = "Timeline"

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def text(self) -> str:
        """Return the timeline as text: the unit of its axis, and a line per lane."""
        return timeline_text(self._timeline)

    def html(self) -> str:
        """Return the drawing as HTML."""
        return timeline_html(self._timeline)

    def explore(self) -> Any:
        """Return a timeline with zoom and range selection; ``.selection`` is the `Trace` of what is selected."""
        from dsexplore.views.timeline.timeline_explorer import TimelineExplorer  # anywidget is loaded when asked for

        return TimelineExplorer(self._timeline)
