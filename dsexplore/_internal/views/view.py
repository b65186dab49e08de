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
    """Title of the page that `page` returns."""

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
    """A view of a `Result`: what it describes, its verdict, then the figure, sentences, a table, and notes.

    Subclasses define `what` and `figure`, `rows` with `HEAD` if there is a table, and `body` if they show other parts.
    """

    tag: ClassVar[str] = "measured"
    """Where the numbers come from: ``measured`` or ``predicted``."""
    HEAD: ClassVar[Sequence[str]] = ()
    """Titles of the table's columns; the columns of `LEFT` hold names, the others numbers."""
    LEFT: ClassVar[Sequence[int]] = (0,)
    """Indices of the columns that are aligned left."""
    STYLE: ClassVar[str] = ""
    """CSS of the view, in addition to that of all views."""
    MOST_ROWS: ClassVar[int] = 200
    """Maximal number of rows of a table in a notebook's output."""
    MOST_ROWS_OF_PAGE: ClassVar[int] = 2_000
    """Maximal number of rows of a table in a file."""

    def __init__(self, result: R) -> None:
        self.result = result

    def what(self) -> str:
        """Return one line that names what the result describes."""
        raise NotImplementedError

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, plain text."""
        return []

    def notes(self) -> Sequence[str]:
        """Return the assumptions, and how to read the numbers."""
        return ()

    def sentences(self) -> list[str]:
        """Return the sentences below the figure: the result's lines without the verdict and the notes."""
        notes = self.notes()
        return [line for line in self.result.lines()[1:] if line not in notes]

    def text(self) -> str:
        """Return what the result describes, the verdict, the table, sentences, and notes."""
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
        """Return `head` and `body` as HTML, with tables of at most `MOST_ROWS` rows."""
        return html.fragment(self.head() + self.body(self.MOST_ROWS), self.STYLE)

    def page(self) -> str:
        """Return a document with many more rows than a notebook's output holds."""
        return html.page(self.title, html.fragment(self.head() + self.body(self.MOST_ROWS_OF_PAGE), self.STYLE))

    def head(self) -> str:
        """Return what the result describes, with its verdict, as HTML."""
        return html.conclusion(self.what(), self.tag, self.result.verdict())

    def body(self, most: int) -> str:
        """Return the figure, sentences, the table with at most ``most`` rows, and notes as HTML."""
        parts = [self.still(self.figure()), html.sentences(self.sentences(), longest=400)]
        if self.HEAD:
            rows = [[html.escape(cell) for cell in row] for row in self.rows()]
            more = "more: <code>to_frame()</code> has all"
            parts.append(table(of_cells(self.HEAD, self.LEFT), rows[:most], hidden=len(rows) - most, more=more))
        return "".join([*parts, html.notes(self.notes(), longest=400)])
