"""`View`: how one object is shown; the base class of all views."""

from __future__ import annotations

from typing import Any

from dsexplore.errors import UsageError
from dsexplore.near_names import did_you_mean
from dsexplore.views.page import html


class View:
    """Text, HTML, figure and explorer of one object."""

    title: str = "dsexplore"

    def text(self) -> str:
        """A short, deterministic ``text/plain``."""
        raise NotImplementedError

    def html(self) -> str:
        """A static HTML fragment: complete without JavaScript, kernel or network; all names escaped."""
        raise NotImplementedError

    def page(self) -> str:
        """One self-contained HTML document around `html`."""
        return html.page(self.title, self.html())

    def refuse(self, method: str, options: dict[str, Any], *known: str) -> None:
        """Raise if a method of the shown object was given an option that it has not.

        Raises:
            UsageError: ``options`` is not empty.
        """
        if options:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            given = next(iter(options))
            near = did_you_mean(given, known)
            raise UsageError(f"{method}() of this {self.title} has no option {given!r}: {takes}{near}")

    def figure(self) -> Any:
        """A ``plotly.graph_objects.Figure``."""
        raise TypeError(f"{self.title} has no figure: show the object itself, or write it with to_html(path)")

    def still(self, figure: Any, **options: Any) -> str:
        """Static HTML that stands in for a figure of these options where no plotly runs."""
        return self.html()

    def figure_with_twin(self, **options: Any) -> Any:
        """The figure, with `still` beside it in a notebook's output."""
        view: Any = self
        figure = view.figure(**options)
        from dsexplore.views.page.figure_twin import with_twin  # plotly is loaded when a figure is drawn

        return with_twin(figure, view.still(figure, **options))

    def explore(self) -> Any:
        """An ipywidgets application."""
        raise TypeError(f"{self.title} has no explorer: show the object itself, or write it with to_html(path)")
