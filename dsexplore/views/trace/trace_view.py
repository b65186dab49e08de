"""The view of a `Trace`."""

from __future__ import annotations

from typing import Any

from dsexplore.trace.trace import Trace
from dsexplore.views.page import html
from dsexplore.views.trace.byte_sizes import WIRE
from dsexplore.views.trace.trace_page import PAGE_BUDGET, figure_html, trace_html, trace_text
from dsexplore.views.view import View


class TraceView(View):
    """The view of a `Trace`."""

    title = "Trace"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def text(self) -> str:
        """Count and bytes by op and axis: a dozen lines at most."""
        return trace_text(self._trace.tables)

    def html(self) -> str:
        """The summary, the module tree, and what was sent; complete in itself."""
        return trace_html(self._trace.tables)

    def page(self, sizes: str = WIRE, **options: Any) -> str:
        """A document with many more modules than a notebook's output holds.

        Args:
            sizes: which bytes it shows, ``"wire"`` or ``"message"``.
            options: none.
        """
        self.refuse("to_html", options, "sizes")
        return html.page(self.title, trace_html(self._trace.tables, PAGE_BUDGET, sizes, in_words=True))

    def figure(self, kind: str = "modules", **options: Any) -> Any:
        """A plotly figure: modules, ops, sequence, ranks, sankey, sizes or bandwidth."""
        from dsexplore.views.trace.figures import trace_figure  # the drawing is loaded when a figure is asked for

        return trace_figure(self._trace.tables, kind, **options)

    def still(self, kind: str = "modules", **options: Any) -> str:
        """The section that shows what the figure shows."""
        return figure_html(self._trace.tables, kind, options.get("sizes", WIRE))

    def explore(self, **options: Any) -> Any:
        """The live explorer; see `dsexplore.views.explorer.explorer`."""
        from dsexplore.views.explorer.explorer import Explorer  # ipywidgets are loaded when an explorer is asked for

        return Explorer(self._trace, **options)
