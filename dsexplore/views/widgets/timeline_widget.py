"""The timeline's canvas: boxes in lanes, zoomed and brushed with mouse and keyboard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anywidget
import traitlets

from dsexplore.views.widgets import script, style


class TimelineWidget(anywidget.AnyWidget):
    """Draws the boxes that Python sends for one window; calls ``on_event`` with the window and the range asked for."""

    _esm = script("follow.js", "dom.js", "timeline.js", render="alone(timeline)")
    _css = style("timeline.css")

    title = traitlets.Unicode("").tag(sync=True)
    lanes: traitlets.List[str] = traitlets.List().tag(sync=True)
    """From top to bottom."""
    marks: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[name, letter, colour, ink] each."""
    ticks: traitlets.List[list[object]] = traitlets.List().tag(sync=True)
    """[place from 0 to 1, text] along the axis."""
    axis = traitlets.Unicode("").tag(sync=True)
    """What the axis is."""
    boxes: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """Columns as bytes: ``begin``, ``end``, ``level`` float32, from 0 to 1; ``lane`` uint16, ``mark`` uint8."""
    texts: traitlets.List[str] = traitlets.List().tag(sync=True)
    """What each box is, in words."""
    brush: traitlets.List[float] = traitlets.List().tag(sync=True, echo_update=False)
    """[begin, end] of the chosen range, from 0 to 1 of the window; empty for none."""
    status = traitlets.Unicode("").tag(sync=True)
    """What is chosen, in words."""
    zoomed = traitlets.Bool(False).tag(sync=True)
    """Whether the window is less than the whole timeline."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._on_event = on_event
        self.on_msg(self._receive)

    def _receive(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        if self._on_event is not None:
            self._on_event(content)

    def __repr__(self) -> str:
        return "The timeline is live in a running notebook: run this cell again to use it."
