"""Tables of static views: what stands in each column, how it is aligned, and how many rows are not shown."""

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
    look: str = ""
    """Classes of its cells."""
    if_varied: bool = False
    """Whether it is hidden where all its cells are equal; a note below the table says what they are."""


def text(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of names, aligned left."""
    return Column(title, cell, "l")


def prose(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of texts that may break into lines, aligned left."""
    return Column(title, cell, "l w")


def bar(title: str, cell: Callable[[Any], str]) -> Column:
    """Return a column of `html.stacked_bar`, which takes the remaining width."""
    return Column(title, cell, "l track")


def of_cells(titles: Iterable[str], left: Collection[int] = (0,)) -> list[Column]:
    """Return the columns of rows that are sequences of cells; ``left``: numbers of the columns aligned left."""
    return [Column(title, itemgetter(number), "l" * (number in left)) for number, title in enumerate(titles)]


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
        columns: what it shows of each row.
        rows: what the columns' cells are made of.
        attributes: attributes of each row's tag, such as ``' tabindex="0"'``.
        stacks: whether a narrow page shows the cells of a row below one another, each after its column's title.
        hidden: number of rows that are not shown, which a note below says.
        more: what follows that number in the note, as HTML.
    """
    rows = list(rows)
    constant = [column for column in columns if column.if_varied and len(set(map(column.cell, rows))) == 1]
    columns = [column for column in columns if column not in constant]
    looks = [f' class="{column.look}"' if column.look else "" for column in columns]
    titles = [html.escape(column.title) for column in columns]
    head = "".join(
        f'<th scope="col"{look}>{title}</th>' if title else f"<td{look}></td>"
        for look, title in zip(looks, titles, strict=True)
    )
    tags = [
        f'<td{look} data-of="{title}">' if stacks else f"<td{look}>" for look, title in zip(looks, titles, strict=True)
    ]
    body = "".join(
        f"<tr{marks}>{''.join(f'{tag}{column.cell(row)}</td>' for tag, column in zip(tags, columns, strict=True))}</tr>"
        for row, marks in zip(rows, chain(attributes, repeat("")), strict=False)
    )
    kind = ' class="bars"' if any("track" in column.look for column in columns) else ""
    drawn = f"<table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    note = html.note(f"… and {hidden:,} {more}") if hidden > 0 else ""
    note += html.note("; ".join(f"{html.escape(column.title)}: {column.cell(rows[0])}" for column in constant))
    return f'<div class="scroll{" stacks" if stacks else ""}" tabindex="0">{drawn}</div>{note}'
