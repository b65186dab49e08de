"""Widgets of one part each (figure, timeline, tree), and their base, which answers numbered browser messages."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import anywidget
import numpy as np
import numpy.typing as npt
import traitlets

from dsexplore._internal.views.page.style import AXIS_STYLE, HEAT_STYLE
from dsexplore._internal.views.widgets import script, style


class AnsweringWidget(anywidget.AnyWidget):
    """A widget whose browser side knows which of its messages are answered; see ``kernel_state.js``.

    All that a message changes is sent back in one message, with its number.

    Args:
        on_event: called with each message that is not a change of a trait.
        traits: initial values of the widget's traits.
    """

    asked = traitlets.Int(0).tag(sync=True, echo_update=False)
    """Number of the browser's last change of traits."""
    answered = traitlets.Int(0).tag(sync=True)
    """Number of the last message that was handled."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._on_event = on_event
        self.on_msg(self._on_message)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Apply the changes that the browser made."""
        with self._answering(sync_data):
            super().set_state(sync_data)

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        with self._answering(content):
            self._receive(content)

    def _receive(self, content: dict[str, Any]) -> None:
        """Handle a message of the browser."""
        if self._on_event is not None:
            self._on_event(content)

    @contextmanager
    def _answering(self, message: Mapping[str, Any]) -> Iterator[None]:
        """Send the number of a message with everything changed in this context, also if it raises."""
        with self.hold_sync():
            try:
                yield
            finally:
                if "asked" in message:
                    self.answered = int(message["asked"])


# A plotly figure in a page, without sending plotly.js with every figure.
#
# JupyterLab has plotly.js through plotly's own extension, and the widget uses that; elsewhere the browser requests it
# once, compressed, from the installed ``plotly`` package. Nothing is fetched from a network.


class PlotWidget(AnsweringWidget):
    """Shows one figure; calls ``on_event`` with clicked marks and with the range that was zoomed to."""

    _esm = script("follow.js", "dom.js", "marks.js", "heat_grid.js", "plot.js", render="alone(plot)")
    _css = style("plot.css") + HEAT_STYLE
    spec = traitlets.Dict().tag(sync=True)
    """The figure as plotly's JSON."""
    spoken = traitlets.Unicode("").tag(sync=True)
    """Name of the figure for screen readers."""

    def show(self, spec: dict[str, Any], spoken: str = "") -> None:
        """Draw this figure, given as plotly's JSON, in place of the previous one."""
        with self.hold_sync():
            self.spec, self.spoken = spec, spoken

    def show_figure(self, figure: Any, spoken: str = "") -> None:
        """Draw a ``plotly.graph_objects.Figure`` in place of the previous one."""
        self.show(json.loads(figure.to_json()), spoken)

    def _receive(self, content: dict[str, Any]) -> None:
        if content.get("type") == "library":
            from plotly.offline import get_plotlyjs

            self.send({"type": "library"}, [gzip.compress(get_plotlyjs().encode(), 6)])
        else:
            super()._receive(content)


TIMELINE_SCRIPTS = ("follow.js", "dom.js", "timeline.js")


class TimelineWidget(AnsweringWidget):
    """Draws the boxes that Python sends for one window; calls ``on_event`` with the requested window or range."""

    _esm = script(*TIMELINE_SCRIPTS, render="alone(timeline)")
    _css = style("timeline.css")

    timeline: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """The drawing; see `views.timeline.timeline_state.TimelineState.drawn`.

    ``boxes`` holds columns as bytes: ``begin``, ``end``, ``level`` float32, from 0 to 1; ``lane`` uint16, ``mark``
    uint8; for boxes that stand for several spans also ``count`` uint32 and ``bytes`` float32.
    """

    brushed: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """``brush``: [begin, end] of the selected range as fractions of the window, empty for none.

    ``status``: the range's summary.
    """

    def __repr__(self) -> str:
        return "The timeline is live in a running notebook: run this cell again to use it."


TREE_SCRIPTS = ("follow.js", "dom.js", "rows.js", "tree.js")


class TreeWidget(AnsweringWidget):
    """Rows in preorder with numeric columns; the browser filters by name, sorts and folds without the kernel."""

    _esm = script(*TREE_SCRIPTS, render="alone(tree)")
    _css = style("tree.css") + AXIS_STYLE

    labels = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """Name of each row, without the parent's name."""
    types = traitlets.List(traitlets.Unicode()).tag(sync=True)
    """Distinct module types, which ``structure`` indexes."""
    notes = traitlets.Dict().tag(sync=True)
    """{row: text after the name, such as placements}; sparse."""
    folded = traitlets.Dict().tag(sync=True)
    """{first row of a fold: [label, its rows]}."""
    titles: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[title, unit, explanation] per column.

    The unit is ``bytes``, ``seconds``, ``count``, or ``bar``: a bar of the previous column.
    """
    axes: traitlets.List[int] = traitlets.List(traitlets.Int()).tag(sync=True)
    """Color, as in `views.page.theme.axis_number`, of each column after the bar's that is a part of the bar."""
    structure = traitlets.Bytes(b"").tag(sync=True)
    """int32, four per row: parent, end of the subtree, index of the type, 1 if the row is hidden by a fold."""
    values = traitlets.Bytes(b"").tag(sync=True)
    """float32 of shape (distinct columns, rows)."""
    columns: traitlets.List[int] = traitlets.List(traitlets.Int()).tag(sync=True)
    """Index into `values` for each of `titles`; −1 if the column is all zero."""
    height = traitlets.Int(420).tag(sync=True)
    """Maximal height of the rows in pixels."""
    selected = traitlets.Int(-1).tag(sync=True, echo_update=False)
    folding = traitlets.Bool(True).tag(sync=True, echo_update=False)

    def set_values(self, columns: npt.NDArray[np.float64]) -> None:
        """Show other numbers in the same rows; equal columns are sent once, all-zero columns are not sent."""
        places: dict[bytes, int] = {bytes(4 * columns.shape[1]): -1}
        indices = [places.setdefault(column.tobytes(), len(places) - 1) for column in columns.astype(np.float32)]
        with self.hold_sync():
            self.columns, self.values = indices, b"".join(content for content, place in places.items() if place >= 0)
