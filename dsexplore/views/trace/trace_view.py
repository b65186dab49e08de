"""The view of a `Trace`."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

from dsexplore.analysis.headline import Headline
from dsexplore.trace.trace import Trace
from dsexplore.views.page import html
from dsexplore.views.trace.byte_sizes import WIRE
from dsexplore.views.trace.trace_html import PAGE_BUDGET, figure_html, trace_html, trace_text
from dsexplore.views.view import View


class TraceView(View):
    """The view of a `Trace`."""

    title = "Trace"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    @cached_property
    def _headline(self) -> Headline:
        """Found once for all that the view shows."""
        return Headline(self._trace.tables)

    def text(self) -> str:
        """Count and bytes by op and axis: a dozen lines at most."""
        return trace_text(self._headline)

    def html(self) -> str:
        """The summary, the module tree, and what was sent; complete in itself."""
        return trace_html(self._headline)

    def page(self, sizes: str = WIRE, cluster: Any = None, interactive: bool = False) -> str:
        """A document with many more modules than a notebook's output holds.

        Args:
            sizes: which bytes it shows, ``"wire"`` or ``"message"``.
            cluster: for which the tree shows predicted seconds; see `Trace.predict`.
            interactive: with the explorer's tree, filters and timeline above, which need no kernel and no network.

        Raises:
            UsageError: no such sizes or cluster, or too many events for an interactive page.
        """
        prediction = self._trace.predict(cluster) if cluster is not None else None
        shown = trace_html(self._headline, PAGE_BUDGET, sizes, in_words=True, prediction=prediction)
        if interactive:
            from dsexplore.views.explorer.standalone import standalone_page  # anywidget is loaded when asked for

            return standalone_page(self._headline, shown, sizes, prediction)
        return html.page(self.title, shown)

    def figure(self, kind: str = "modules", window: tuple[float, float] | None = None, sizes: str = WIRE) -> Any:
        """Bytes, drawn in one of several ways.

        Args:
            kind: ``"modules"``, place in the model by mesh axis; ``"ops"`` by phase; ``"sequence"``, in program order
                or time; ``"ranks"`` and ``"sankey"``, who talks to whom; ``"sizes"`` of messages; ``"bandwidth"``.
            window: for a sequence, the part of its axis to draw.
            sizes: which bytes are drawn, ``"wire"`` or ``"message"``.

        Raises:
            UsageError: no such kind or sizes.
        """
        from dsexplore.views.trace.figures import trace_figure  # the drawing is loaded when a figure is asked for

        return trace_figure(self._trace.tables, kind, window, sizes)

    def still(self, figure: Any, kind: str = "modules", sizes: str = WIRE, **options: Any) -> str:
        """The section that shows what the figure shows."""
        return figure_html(self._headline, kind, sizes)

    def explore(
        self,
        figure: str = "modules",
        height: int = 420,
        sizes: str = WIRE,
        opened: Collection[str] = ("timeline",),
        cluster: Any = None,
    ) -> Any:
        """Filters, tree, figure, timeline, map and tables that follow one another; ``.selection`` is what is chosen.

        Args:
            figure: the figure shown first, a kind of `figure`.
            height: of the tree, in pixels.
            sizes: which bytes are shown at first, ``"wire"`` or ``"message"``.
            opened: the parts below the tree that are open at first, of ``"timeline"`` and ``"map"``.
            cluster: for which tree and headline show predicted seconds, as those of `Trace.predict`.

        Raises:
            UsageError: no such figure, sizes, part or cluster, or a height that is none.
        """
        from dsexplore.views.explorer.explorer import Explorer  # ipywidgets are loaded when an explorer is asked for

        return Explorer(self._trace, figure, height, sizes, opened, cluster)
