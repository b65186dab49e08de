"""The view of a `Trace`."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.cost.cluster import HardwareLike
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.byte_sizes import WIRE
from dsexplore._internal.views.trace.trace_html import PAGE_BUDGET, figure_html, trace_html, trace_text
from dsexplore._internal.views.view import View


class TraceView(View):
    """The view of a `Trace`."""

    title = "Trace"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _headline(self) -> Headline:
        """Headline of the trace, computed once for all parts of the view."""
        return Headline(self._trace.tables)

    def text(self) -> str:
        """Return the headline, and count and bytes by op and axis, in about a dozen lines."""
        return trace_text(self._headline)

    def html(self) -> str:
        """Return the headline, the timeline, the module tree, findings, and sections of what was sent."""
        return trace_html(self._headline)

    def page(self, sizes: str = WIRE, hardware: HardwareLike | None = None, interactive: bool = False) -> str:
        """Return a document with many more modules than a notebook's output holds.

        Args:
            sizes: bytes to show, ``"wire"`` or ``"message"``.
            hardware: machine for which the tree shows predicted seconds, see `Trace.predict`; None for none.
            interactive: whether to add the explorer's tree, filters and timeline, which need no kernel and no network.

        Raises:
            UsageError: There are no such sizes or hardware, or too many events for an interactive page.
        """
        prediction = self._trace.predict(hardware) if hardware is not None else None
        shown = trace_html(self._headline, PAGE_BUDGET, sizes, with_answers=True, prediction=prediction)
        if interactive:
            from dsexplore._internal.views.explorer.standalone import (
                standalone_page,  # anywidget is loaded when asked for
            )

            return standalone_page(self._headline, shown, sizes, prediction)
        return html.page(self.title, shown)

    def figure(self, kind: str = "modules", window: tuple[float, float] | None = None, sizes: str = WIRE) -> Any:
        """Return a plotly figure of one kind.

        Args:
            kind: ``"modules"`` draws bytes by place in the model and mesh axis, ``"ops"`` by op and phase,
                ``"sequence"`` over time or in program order, ``"ranks"`` and ``"sankey"`` from rank to rank;
                ``"sizes"`` counts messages by size, and ``"bandwidth"`` draws bus bandwidth by message size.
            window: part of the axis of a sequence, in seconds if measured, else in rounds or positions in program
                order; None for all of it.
            sizes: bytes to draw, ``"wire"`` or ``"message"``.

        Raises:
            UsageError: There is no such kind, or there are no such sizes.
        """
        from dsexplore._internal.views.trace.figures import (
            trace_figure,  # the drawing is loaded when a figure is asked for
        )

        return trace_figure(self._trace.tables, kind, window, sizes)

    def still(self, figure: Any, kind: str = "modules", sizes: str = WIRE, **options: Any) -> str:
        """Return the static section with the content of the figure."""
        return figure_html(self._headline, kind, sizes)

    def explore(
        self,
        figure: str = "modules",
        height: int = 420,
        sizes: str = WIRE,
        tab: str = "timeline",
        hardware: HardwareLike | None = None,
    ) -> Any:
        """Return linked filters, tree, figure, timeline, map and tables; ``.selection`` has the selected events.

        Args:
            figure: kind of the first figure, see `figure`.
            height: height of the tree in pixels.
            sizes: bytes to show at first, ``"wire"`` or ``"message"``.
            tab: first tab below the tree: ``"timeline"``, ``"map"``, ``"findings"``, ``"parameters"`` or
                ``"prediction"``.
            hardware: machine for which tree and headline show predicted seconds, see `Trace.predict`; None for none.

        Raises:
            UsageError: There is no such figure, sizes, tab or hardware, or the height is no positive number.
        """
        from dsexplore._internal.views.explorer.explorer import (
            Explorer,  # ipywidgets are loaded when an explorer is asked for
        )

        return Explorer(self._trace, figure, height=height, sizes=sizes, tab=tab, hardware=hardware)
