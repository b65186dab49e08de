"""The timeline's canvas: boxes in lanes, zoomed and brushed with mouse and keyboard."""

from __future__ import annotations

from typing import Any

import traitlets

from dsexplore.views.widgets import script, style
from dsexplore.views.widgets.answering_widget import AnsweringWidget

TIMELINE_SCRIPTS = ("follow.js", "dom.js", "timeline.js")


class TimelineWidget(AnsweringWidget):
    """Draws the boxes that Python sends for one window; calls ``on_event`` with the requested window or range."""

    _esm = script(*TIMELINE_SCRIPTS, render="alone(timeline)")
    _css = style("timeline.css")

    timeline: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """The drawing; see `dsexplore.views.timeline.timeline_state.TimelineState.drawn`.

    ``boxes`` holds columns as bytes: ``begin``, ``end``, ``level`` float32, from 0 to 1; ``lane`` uint16, ``mark``
    uint8; for boxes that stand for several spans also ``count`` uint32 and ``bytes`` float32.

    ``boxes`` are columns as bytes: ``begin``, ``end``, ``level`` float32, from 0 to 1; ``lane`` uint16, ``mark`` uint8;
    of columns that stand for several spans also ``count`` uint32 and ``bytes`` float32.
    """

    brushed: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """``brush``: [begin, end] of the selected range as fractions of the window, empty for none.

    ``status``: the range's summary.
    """

    def __repr__(self) -> str:
        return "The timeline is live in a running notebook: run this cell again to use it."
