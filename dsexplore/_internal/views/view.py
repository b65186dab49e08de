"""`View`: base class of all views; a view renders one object as text, HTML, figure and explorer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from dsexplore._internal.display import Result
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import of_cells, table


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


R = TypeVar("R", bound=Result)


class ResultView(PlottedView, Generic[R]):
    """A view of a result with a verdict: what it is of, the verdict, the figure, sentences, a table, and notes.

    Subclasses define `what`, `figure`, and `rows` with `HEAD` if there is a table.
    """

    tag: ClassVar[str] = "measured"
    """How its numbers came about: ``measured`` or ``predicted``."""
    HEAD: ClassVar[Sequence[str]] = ()
    """Titles of the table's columns; the columns of `LEFT` hold names, the others numbers."""
    LEFT: ClassVar[Sequence[int]] = (0,)

    def __init__(self, result: R) -> None:
        self.result = result

    def what(self) -> str:
        """Return what the result is of, in one line."""
        raise NotImplementedError

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, plain text."""
        return []

    def notes(self) -> Sequence[str]:
        """Return the assumptions, and how the numbers are to be read."""
        return ()

    def sentences(self) -> list[str]:
        """Return what stands below the figure: the result's lines, without the verdict and notes."""
        notes = self.notes()
        return [line for line in self.result.lines()[1:] if line not in notes]

    def text(self) -> str:
        """Return what it is, the verdict, the table, sentences, and notes."""
        below = (html.plain(line, longest=400) for line in (*self.sentences(), *self.notes()))
        verdict = html.plain(self.result.verdict(), longest=400)
        return "\n".join([f"{html.plain(self.what(), longest=300)}, {self.tag}", verdict, *self._text_table(), *below])

    def _text_table(self) -> list[str]:
        """Return a line per row of the table, with its head, in aligned columns."""
        columns = []
        for at, cells in enumerate(zip(self.HEAD, *self.rows(), strict=True)):
            width = max(map(len, cells))
            columns.append([cell.ljust(width) if at in self.LEFT else cell.rjust(width) for cell in cells])
        return [f"  {'  '.join(cells)}".rstrip() for cells in zip(*columns, strict=True)]

    def html(self) -> str:
        """Return what it is, the verdict, the figure, sentences, the table, and notes."""
        parts = [html.conclusion(self.what(), self.tag, self.result.verdict()), self.still(self.figure())]
        parts.append(html.sentences(self.sentences(), longest=400))
        if self.HEAD:
            rows = ([html.escape(cell) for cell in row] for row in self.rows())
            parts.append(table(of_cells(self.HEAD, self.LEFT), rows))
        parts += [html.note(html.prose(note, longest=400)) for note in self.notes()]
        return html.fragment("".join(parts))
