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
        """Headline, computed once for all parts of the view."""
        return Headline(self._trace.tables)

    def text(self) -> str:
        """Return count and bytes by op and axis, in a dozen lines at most."""
        return trace_text(self._headline)

    def html(self) -> str:
        """Return the summary, the module tree, and what was sent."""
        return trace_html(self._headline)

    def page(self, sizes: str = WIRE, hardware: HardwareLike | None = None, interactive: bool = False) -> str:
        """Return a document with many more modules than a notebook's output holds.

        Args:
            sizes: Which bytes are shown, ``"wire"`` or ``"message"``.
            hardware: Machine for which the tree shows predicted seconds; see `Trace.predict`.
            interactive: Whether to add the explorer's tree, filters and timeline above, which need no kernel and no
                network.

        Raises:
            UsageError: No such sizes or hardware, or too many events for an interactive page.
        """
        prediction = self._trace.predict(hardware) if hardware is not None else None
        shown = trace_html(self._headline, PAGE_BUDGET, sizes, in_words=True, prediction=prediction)
        if interactive:
            from dsexplore._internal.views.explorer.standalone import (
                standalone_page,  # anywidget is loaded when asked for
            )

            return standalone_page(self._headline, shown, sizes, prediction)
        return html.page(self.title, shown)

    def figure(self, kind: str = "modules", window: tuple[float, float] | None = None, sizes: str = WIRE) -> Any:
        """Return a plotly figure of one kind.

        Args:
            kind: ``"modules"``, place in the model by mesh axis; ``"ops"``, op by phase; ``"sequence"``, over time or
                in program order; ``"ranks"`` and ``"sankey"``, who sends to whom; ``"sizes"`` of messages;
                ``"bandwidth"``.
            window: For a sequence, the part of its axis: seconds where measured, else rounds or places in the order.
            sizes: Which bytes are drawn, ``"wire"`` or ``"message"``.

        Raises:
            UsageError: No such kind or sizes.
        """
        from dsexplore._internal.views.trace.figures import (
            trace_figure,  # the drawing is loaded when a figure is asked for
        )

        return trace_figure(self._trace.tables, kind, window, sizes)

    def still(self, figure: Any, kind: str = "modules", sizes: str = WIRE, **options: Any) -> str:
        """Return the section that shows what the figure shows."""
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
            figure: Kind of the figure shown first, as in `figure`.
            height: Height of the tree in pixels.
            sizes: Which bytes are shown at first, ``"wire"`` or ``"message"``.
            tab: What is shown below the tree at first: ``"timeline"``, ``"map"``, ``"findings"``, ``"parameters"`` or
                ``"prediction"``.
            hardware: Machine for which tree and headline show predicted seconds, as in `Trace.predict`.

        Raises:
            UsageError: No such figure, sizes, tab or hardware, or an invalid height.
        """
        from dsexplore._internal.views.explorer.explorer import (
            Explorer,  # ipywidgets are loaded when an explorer is asked for
        )

        return Explorer(self._trace, figure, height, sizes, tab, hardware)
