"""The widgets that explorers consist of: figure, timeline and module tree, and their base class."""

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
    """A widget that tells the browser which of its numbered messages have been handled; see ``kernel_state.js``.

    Everything that a message changes is sent back in one message, together with its number.

    Args:
        on_event: called with each message that is not a change of a trait; None to ignore such messages.
        traits: initial values of the widget's traits.
    """

    asked = traitlets.Int(0).tag(sync=True, echo_update=False)
    """Number of the message in which the browser last changed traits."""
    answered = traitlets.Int(0).tag(sync=True)
    """Number of the last message that was handled."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None] | None = None, **traits: Any) -> None:
        super().__init__(**traits)
        self._on_event = on_event
        self.on_msg(self._on_message)

    def set_state(self, sync_data: dict[str, Any]) -> None:
        """Apply the changes of traits that the browser made."""
        with self._answering(sync_data):
            super().set_state(sync_data)

    def _on_message(self, _widget: Any, content: dict[str, Any], _buffers: Any) -> None:
        with self._answering(content):
            self._receive(content)

    def _receive(self, content: dict[str, Any]) -> None:
        """Handle a message of the browser that is not a change of a trait."""
        if self._on_event is not None:
            self._on_event(content)

    @contextmanager
    def _answering(self, message: Mapping[str, Any]) -> Iterator[None]:
        """Send everything that is changed in this context together with the number of the message, also on errors."""
        with self.hold_sync():
            try:
                yield
            finally:
                if "asked" in message:
                    self.answered = int(message["asked"])


class PlotWidget(AnsweringWidget):
    """Shows one plotly figure; calls ``on_event`` with clicked marks and with the range that was zoomed to.

    plotly.js is not sent with each figure. In JupyterLab the widget uses that of plotly's extension. Elsewhere the
    browser requests it once, compressed, from the installed ``plotly`` package; nothing is fetched from a network.
    """

    _esm = script("follow.js", "dom.js", "marks.js", "heat_grid.js", "plot.js", render="alone(plot)")
    _css = style("plot.css") + HEAT_STYLE
    spec = traitlets.Dict().tag(sync=True)
    """The figure as plotly's JSON."""
    spoken = traitlets.Unicode("").tag(sync=True)
    """Name of the figure for screen readers."""

    def show(self, spec: dict[str, Any], spoken: str = "") -> None:
        """Replace the figure by one given as plotly's JSON; ``spoken`` is its name for screen readers."""
        with self.hold_sync():
            self.spec, self.spoken = spec, spoken

    def show_figure(self, figure: Any, spoken: str = "") -> None:
        """Replace the figure by a ``plotly.graph_objects.Figure``."""
        self.show(json.loads(figure.to_json()), spoken)

    def _receive(self, content: dict[str, Any]) -> None:
        if content.get("type") == "library":
            from plotly.offline import get_plotlyjs

            self.send({"type": "library"}, [gzip.compress(get_plotlyjs().encode(), 6)])
        else:
            super()._receive(content)


TIMELINE_SCRIPTS = ("follow.js", "dom.js", "timeline.js")


class TimelineWidget(AnsweringWidget):
    """Draws the boxes of one window of a timeline; calls ``on_event`` with the window or range that the user sets."""

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
    """{row: text after the name, such as placements}, for rows that have one."""
    folded = traitlets.Dict().tag(sync=True)
    """{first row of a fold: [label, its rows]}."""
    titles: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[title, unit, explanation] per column.

    The unit is ``bytes``, ``seconds``, ``count``, or ``bar``: a bar of the previous column.
    """
    axes: traitlets.List[int] = traitlets.List(traitlets.Int()).tag(sync=True)
    """Index into `views.page.theme.AXES` of each mesh axis; its columns follow that of the bar, which they divide."""
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
        """Show other numbers in the same rows.

        Args:
            columns: numbers of shape (columns, rows). Equal columns are sent once, columns of zeros not at all.
        """
        zeros = bytes(4 * columns.shape[1])
        index_of: dict[bytes, int] = {zeros: -1}
        indices = [index_of.setdefault(column.tobytes(), len(index_of) - 1) for column in columns.astype(np.float32)]
        del index_of[zeros]
        with self.hold_sync():
            self.columns, self.values = indices, b"".join(index_of)
