"""Tables of static views: columns, each with a function that writes its cells, and a note on hidden rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from dsexplore._internal.views.page import html


@dataclass(frozen=True)
class Column:
    """A column of numbers, aligned right; see `text`, `prose` and `bar` for others."""

    title: str
    cell: Callable[[Any], str]
    """Returns the cell of a row as HTML."""
    classes: str = ""
    """CSS classes of its cells."""
    hides_if_constant: bool = False
    """True to replace the column by a note below the table if all its cells are equal."""


def text(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of names, aligned left."""
    return Column(title, cell, classes="l")


def prose(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of texts that may break into lines, aligned left."""
    return Column(title, cell, classes="l w")


def bar(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of bars (`html.stacked_bar`), which takes the remaining width."""
    return Column(title, cell, classes="l track")


def of_cells(titles: Iterable[str], left: Collection[int] = (0,)) -> list[Column]:
    """Return the columns of rows that are sequences of cells; ``left``: indices of the columns aligned left."""
    return [
        Column(title, itemgetter(index), classes="l" if index in left else "") for index, title in enumerate(titles)
    ]


def table(
    columns: Sequence[Column],
    rows: Iterable[Any],
    *,
    attributes: Iterable[str] = (),
    stacks: bool = False,
    hidden: int = 0,
    more: str = "more.",
) -> str:
    """Return an HTML table.

    Args:
        columns: columns from left to right.
        rows: one object per row; each column's function makes its cell of it.
        attributes: attributes of each row's tag, such as ``' tabindex="0"'``; empty for none.
        stacks: whether a narrow page shows the cells of a row below one another, each after its column's title.
        hidden: number of rows that are not shown; a note below the table says how many.
        more: HTML after that number in the note.
    """
    rows = list(rows)
    constant = [
        column for column in columns if column.hides_if_constant and len({column.cell(row) for row in rows}) == 1
    ]
    columns = [column for column in columns if column not in constant]
    tags = [_cell_tag(column, named=stacks) for column in columns]
    row_attributes = list(attributes) or [""] * len(rows)
    body = "".join(
        f"<tr{of_row}>{_cells(columns, tags, row)}</tr>" for row, of_row in zip(rows, row_attributes, strict=True)
    )
    kind = ' class="bars"' if any("track" in column.classes for column in columns) else ""
    head = "".join(map(_title_cell, columns))
    drawn = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    note = html.note(f"… and {hidden:,} {more}") if hidden > 0 else ""
    note += html.note("; ".join(f"{html.escape(column.title)}: {column.cell(rows[0])}" for column in constant))
    return f'<div class="scroll{" stacks" if stacks else ""}" tabindex="0">{drawn}</div>{note}'


def _class_attribute(column: Column) -> str:
    return f' class="{column.classes}"' if column.classes else ""


def _title_cell(column: Column) -> str:
    """Return the cell of the head; without a title a plain cell, as a screen reader would read an empty header."""
    classes = _class_attribute(column)
    return f'<th scope="col"{classes}>{html.escape(column.title)}</th>' if column.title else f"<td{classes}></td>"


def _cell_tag(column: Column, *, named: bool) -> str:
    """Return the opening tag of a column's cells; `named` adds the title, which a narrow page shows before the cell."""
    title = f' data-of="{html.escape(column.title)}"' if named else ""
    return f"<td{_class_attribute(column)}{title}>"


def _cells(columns: Sequence[Column], tags: Sequence[str], row: object) -> str:
    return "".join(f"{tag}{column.cell(row)}</td>" for tag, column in zip(tags, columns, strict=True))
