"""The static module tree of a trace: one line per module; opening it shows its collectives and parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from dsexplore._internal.trace.schema import NO_AXIS, OUTSIDE_STEPS
from dsexplore._internal.units import format_bytes, format_ranges
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, prose, table, text
from dsexplore._internal.views.trace import outline
from dsexplore._internal.views.trace.byte_sizes import Sizes, is_partial, signed, size_text, summed_over
from dsexplore._internal.views.trace.event_codes import Columns, EventCodes
from dsexplore._internal.views.trace.folding import Fold
from dsexplore._internal.views.trace.module_tree import OTHER_AXES
from dsexplore._internal.views.trace.time_columns import TimeColumn

LEAST = 12_000
"""Bytes that the tree may use even if the budget is smaller."""
MOST_TABLE_ROWS = 12
MOST_PLACEMENTS = 2
"""Maximal number of placements in a row of the tree."""
_SAME_PARAMETER = (
    "name", "global_shape", "local_shape", "dtype", "placements", "mesh", "local_bytes", "shared_with", "requires_grad",
)  # fmt: skip
"""Parameters that agree in these columns, on several ranks, share one row."""


def tree_html(
    codes: EventCodes, budget: int, anchors: Mapping[str, str] | None = None, times: Sequence[TimeColumn] = ()
) -> str:
    """Return the tree of a trace, drawn from the top until about ``budget`` bytes are used, with a note if it is cut.

    Args:
        codes: events of the trace.
        budget: approximate size in bytes.
        anchors: {module: id of its row, for links to it}; None for none.
        times: columns of seconds.
    """
    if not len(codes.tree):
        return '<p class="dim">No modules ran and nothing was sent.</p>'
    source = _TraceSource(codes, outline.Anchors(anchors or {}), times)
    drawn = outline.outline(source, source.titles(), max(budget, LEAST), "module tree")
    if not drawn.hidden and not drawn.closed:
        return drawn.html
    cut = "Modules further inside are not drawn" if drawn.hidden else "Some modules are drawn without their collectives"
    return (
        f'{drawn.html}<p class="dim">{cut}, of {len(codes.tree):,} in all: <code>explore()</code> and '
        "<code>by_module()</code> have every one, <code>to_html(path)</code> draws more, and "
        '<code>where(module="…")</code> shows a part.</p>'
    )


class _TraceSource:
    """Rows of a trace's tree, as an `outline.Source`."""

    def __init__(self, codes: EventCodes, anchors: outline.Anchors, times: Sequence[TimeColumn]) -> None:
        self._codes, self._anchors, self._times = codes, anchors, times
        self.roots, self.children = codes.folds.roots, codes.folds.children
        self._tree = codes.tree
        self._sent = codes.columns(codes.total)
        self._whole = float(self._sent.alone.sum()) or 1.0
        unknown = codes.unknown(codes.every)
        self._unknown = None if unknown is None else codes.columns(unknown)
        self._repeats = self._same_as_bytes()
        self._parameters = codes.tables.parameters
        self._placements = {
            str(module): list(dict.fromkeys(placements))
            for module, placements in self._parameters.group_by("module", maintain_order=True)
            .agg(pl.col("placements"))
            .iter_rows()
        }

    def _same_as_bytes(self) -> list[bool]:
        """Return, for the columns [alone, *axes, *phases], whether all rows equal those of the column of bytes."""
        tables = [self._sent] if self._unknown is None else [self._sent, self._unknown]
        return [
            all(np.array_equal(columns[place], columns[0]) for columns in map(_all_sizes, tables))
            for place in range(1, len(_all_sizes(self._sent)))
        ]

    def _kept(self, columns: Iterable[Any]) -> list[Any]:
        """Return those of [alone, *axes, *phases] that do not repeat the column of bytes."""
        return [column for column, repeats in zip(columns, self._repeats, strict=True) if not repeats]

    def titles(self) -> list[tuple[str, str, str]]:
        """Return (title, explanation, class) of the columns after the module."""
        kind = f"{self._codes.kind_of_sizes} bytes"
        inside = f"with the modules inside, {summed_over(self._codes.tables)}"
        axes = [
            (axis, f"{kind} on groups like these, {inside}", "")
            if axis in (NO_AXIS, OTHER_AXES)
            else (f"on {axis}", f"{kind} on the mesh axis {axis}, {inside}", "")
            for axis in self._tree.axes
        ]
        apart = dict.fromkeys(OUTSIDE_STEPS, ", in no other column")
        phases = [
            (str(phase), f"{kind} in this phase, {inside}{apart.get(phase, '')}", "")
            for phase in self._codes.facets["phase"].labels
        ]
        alone = ("self", f"{kind} of the module itself, without the modules inside", "")
        return [
            ("count", f"collectives, {inside}", ""),
            ("bytes", f"{kind} in steps, {inside}", ""),
            ("share", "share of all bytes in steps, by axis in the colors of the headline", "thinbar"),
            *(column.head for column in self._times),
            *self._kept([alone, *axes, *phases]),
            ("all params", "bytes of all its parameters on all ranks together, with the modules inside", ""),
            ("per rank", "bytes of its parameters that one rank holds", ""),
            ("placements", "placements of the module's own parameters; its table lists all of them", "wide"),
        ]

    def line(self, fold: Fold, times: int) -> str:
        """Return the cells of a row: name and numbers of a module, or sums over folded modules."""
        tree, row = self._tree, fold.first
        count = int(self._sent.count[row]) * times
        unknown = None if self._unknown is None else _sizes_of(self._unknown, row)
        sizes = [size * times for size in signed(_sizes_of(self._sent, row), unknown).tolist()]
        sizes += [float(held[row]) * times for held in (tree.global_bytes, tree.local_bytes)]
        thin = outline.thin_bar(tree.axes, times * self._sent.axes[:, row], self._whole)
        return (
            outline.label(
                fold, tree.names[row], tree.types[row], times=times, anchor=self._anchors.take(tree.names[row])
            )
            + outline.number_cell(count, "{:,}".format)
            + _size(sizes[0])
            + outline.cell(thin if sizes[0] else "", "thinbar")
            + "".join(column.cell(self._codes.folds.members(row)) for column in self._times)
            + "".join(map(_size, [*self._kept(sizes[1:-2]), *sizes[-2:]]))
            + self._placements_cell(tree.names[row])
        )

    def _placements_cell(self, module: str) -> str:
        """Return the distinct placements of a module's own parameters."""
        placements = [text or "plain tensor" for text in self._placements.get(module, [])]
        if not placements:
            return outline.cell("", "wide")
        more = ["…"] if len(placements) > MOST_PLACEMENTS else []
        return outline.cell(html.name(" | ".join([*placements[:MOST_PLACEMENTS], *more]), longest=40), "wide")

    def inside(self, row: int, times: int) -> str:
        """Return the tables of a module's own collectives and parameters."""
        module = self._tree.names[row]
        kinds, every = self._codes.collectives(self._codes.owner == row, MOST_TABLE_ROWS)
        body = collectives_html(kinds, every, self._codes.column, times) if every else ""
        if module in self._placements:
            body += parameters_html(module, self._parameters.filter(pl.col("module") == module))
        return outline.of_each(module, times, body)


def _sizes_of(sent: Columns, row: int) -> Sizes:
    """Return the bytes of one row of the tree, in the order of `_all_sizes`."""
    return _all_sizes(sent)[:, row]


def _all_sizes(sent: Columns) -> Sizes:
    """Return the columns of bytes: with the modules inside, without them, on each axis, in each phase."""
    return np.concatenate([[sent.bytes, sent.alone], sent.axes, sent.phases])


def _size(size: float) -> str:
    return outline.cell(size_text(size)) if size or is_partial(size) else outline.cell("–", "z")


def collectives_html(kinds: Iterable[Mapping[str, Any]], every: int, size: str = "wire_bytes", times: int = 1) -> str:
    """Return a table of kinds of collective.

    Args:
        kinds: the first kinds, with the columns of `event_codes.SAME_COLLECTIVE` and count.
        every: number of all kinds.
        size: column of bytes to show.
        times: number of modules that each send these.
    """
    per_module = ", each" if times > 1 else ""
    columns = (
        text("collective", _op_cell),
        text("axis", lambda kind: html.name(kind["axis"] or "–", longest=40)),
        text("phase", lambda kind: html.escape(kind["phase"])),
        Column(f"count{per_module}", lambda kind: f"{kind['count']:,}"),
        Column(f"bytes{per_module}", lambda kind: format_bytes(kind[size] and kind[size] * kind["count"])),
        text("tensor", lambda kind: html.escape(tensor_text(kind), longest=48)),
        prose("cause", lambda kind: html.parted(kind["cause"] or "–")),
        prose("source", lambda kind: html.parted(kind["source"].partition(" ← ")[0] or "–")),
    )
    return table(columns, kinds, hidden=every - MOST_TABLE_ROWS, more="more kinds of collective.")


def _op_cell(kind: Mapping[str, Any]) -> str:
    return html.name(kind["op"]) + (' <span class="tag">implicit</span>' if kind["implicit"] else "")


def tensor_text(event: Mapping[str, Any]) -> str:
    """Return dtype and shape of the tensor that an event sends: ``float32[8, 4]``; only the dtype if unknown."""
    shape = list(event["shape"] or ())
    return f"{event['dtype']}{shape}" if shape or event["message_bytes"] is not None else event["dtype"]


def parameters_html(module: str, parameters: pl.DataFrame, clickable: bool = False) -> str:
    """Return a table of parameters and their placements.

    Args:
        module: module whose name is omitted from those of the parameters.
        parameters: rows of `Trace.parameters`.
        clickable: whether each row has a button that follows the parameter through a step.
    """
    if parameters.is_empty():
        return ""
    distinct = parameters.group_by(*_SAME_PARAMETER, maintain_order=True).agg(pl.col("rank"))
    several, shown = parameters["rank"].n_unique() > 1, distinct.head(MOST_TABLE_ROWS)

    def name_cell(row: dict[str, Any]) -> str:
        follow = _follow(row["name"]) if clickable else ""
        frozen = "" if row["requires_grad"] else ' <span class="dim">frozen</span>'
        return html.name(row["name"].removeprefix(f"{module}.")) + follow + frozen

    def local_cell(row: dict[str, Any]) -> str:
        return html.escape(list(row["local_shape"] or ())) + (_of_ranks(row["rank"]) if several else "")

    columns = [
        text("parameter", name_cell),
        text("global shape", lambda row: html.escape(list(row["global_shape"] or ()))),
        text("local shape", local_cell),
        text("dtype", lambda row: html.escape(row["dtype"])),
        text("placements", lambda row: html.name(row["placements"] or "plain tensor", longest=60)),
        text("mesh", lambda row: html.name(row["mesh"] or "–", longest=40)),
        Column("bytes/rank", lambda row: format_bytes(row["local_bytes"])),
    ]
    if any(shown["shared_with"]):
        columns.append(text("shared", lambda row: row["shared_with"] and f"same as {html.name(row['shared_with'])}"))
    hidden = distinct.height - MOST_TABLE_ROWS
    return table(columns, shown.iter_rows(named=True), hidden=hidden, more="more parameters.")


def _follow(name: str) -> str:
    return f' <button class="to" data-parameter="{html.escape(name, longest=0)}">its step</button>'


def _of_ranks(ranks: list[int]) -> str:
    return f' <span class="dim">rank {format_ranges(ranks)}</span>'
