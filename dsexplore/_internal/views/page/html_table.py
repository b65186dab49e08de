"""Tables of static views: columns, each with a function that writes its cells, and a note on hidden rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
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
    if_varied: bool = False
    """True to replace the column by a note below the table if all its cells are equal."""


def text(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of names, aligned left."""
    return Column(title, cell, "l")


def prose(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of texts that may break into lines, aligned left."""
    return Column(title, cell, "l w")


def bar(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of bars (`html.stacked_bar`), which takes the remaining width."""
    return Column(title, cell, "l track")


def of_cells(titles: Iterable[str], left: Collection[int] = (0,)) -> list[Column]:
    """Return the columns of rows that are sequences of cells; ``left``: indices of the columns aligned left."""
    return [Column(title, itemgetter(at), "l" if at in left else "") for at, title in enumerate(titles)]


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
        attributes: attributes of each row's tag, such as ``' tabindex="0"'``.
        stacks: whether a narrow page shows the cells of a row below one another, each after its column's title.
        hidden: number of rows that are not shown; a note below the table says how many.
        more: HTML after that number in the note.
    """
    rows = list(rows)
    constant = [column for column in columns if column.if_varied and len(set(map(column.cell, rows))) == 1]
    columns = [column for column in columns if column not in constant]
    head, tags = "", []
    for column in columns:
        classes = f' class="{column.classes}"' if column.classes else ""
        title = html.escape(column.title)
        head += f'<th scope="col"{classes}>{title}</th>' if title else f"<td{classes}></td>"
        tags.append(f'<td{classes} data-of="{title}">' if stacks else f"<td{classes}>")
    body = ""
    for row, attributes_of_row in zip(rows, chain(attributes, repeat("")), strict=False):
        cells = "".join(f"{tag}{column.cell(row)}</td>" for tag, column in zip(tags, columns, strict=True))
        body += f"<tr{attributes_of_row}>{cells}</tr>"
    kind = ' class="bars"' if any("track" in column.classes for column in columns) else ""
    drawn = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    note = html.note(f"… and {hidden:,} {more}") if hidden > 0 else ""
    note += html.note("; ".join(f"{html.escape(column.title)}: {column.cell(rows[0])}" for column in constant))
    return f'<div class="scroll{" stacks" if stacks else ""}" tabindex="0">{drawn}</div>{note}'
