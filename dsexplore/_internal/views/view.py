"""`View`: base class of all views; a view renders one object as text, HTML, figure and explorer."""

from __future__ import annotations

from typing import Any

from dsexplore._internal.views.page import html


class View:
    """Text, HTML, figure and explorer of one object."""

    title: str = "dsexplore"

    def text(self) -> str:
        """Return a short, deterministic ``text/plain`` rendering."""
        raise NotImplementedError

    def html(self) -> str:
        """Return a static HTML fragment that needs no JavaScript, kernel or network; all names in it are escaped."""
        raise NotImplementedError

    def page(self) -> str:
        """Return `html` wrapped in one self-contained HTML document."""
        return html.page(self.title, self.html())

    def figure(self) -> Any:
        """Return a ``plotly.graph_objects.Figure``; views without a figure raise TypeError."""
        raise TypeError(f"{self.title} has no figure: show the object itself, or write it with to_html(path)")

    def still(self, figure: Any, **options: Any) -> str:
        """Return static HTML that replaces ``figure``, drawn with ``options``, where plotly cannot run."""
        return self.html()

    def figure_with_twin(self, **options: Any) -> Any:
        """Return the figure with `still` attached as its static HTML in a notebook's output."""
        view: Any = self
        figure = view.figure(**options)
        from dsexplore._internal.views.page.figure_twin import with_twin  # plotly is loaded when a figure is drawn

        return with_twin(figure, view.still(figure, **options))

    def explore(self) -> Any:
        """Return an ipywidgets application; views without an explorer raise TypeError."""
        raise TypeError(f"{self.title} has no explorer: show the object itself, or write it with to_html(path)")


class PlottedView(View):
    """A view whose figure is drawn as SVG where plotly cannot run."""

    def still(self, figure: Any, **options: Any) -> str:
        """Return the figure as SVG."""
        from dsexplore._internal.views.page.still_figure import still_figure

        return still_figure(figure)
