"""The view of a `TraceDiff`: one tree of two traces, with what the second sends more and less, module by module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from dsexplore.trace.tables import Tables
from dsexplore.trace.trace import TraceDiff
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.page.theme import BLUE, PURPLE, VERMILION
from dsexplore.views.trace import outline
from dsexplore.views.trace.byte_sizes import WIRE, WORDS, column_of, summed_over
from dsexplore.views.trace.event_codes import START_UP, Columns, EventCodes
from dsexplore.views.trace.facets import Facets
from dsexplore.views.trace.folding import Fold, Folds, signatures
from dsexplore.views.trace.module_tree import NO_AXIS, OTHER_AXES, ModuleTree, module_tree
from dsexplore.views.trace.pivot import Sizes
from dsexplore.views.view import View

_BUDGET, _PAGE_BUDGET = 50_000, 1_500_000
_MOST_ROWS = 16
_SMALL = 16
_CHANGE = ("op", "axis", "phase", "count_before", "count_after")
"""The columns of the diff that a row's table shows, before those of the bytes."""

STYLE = (
    outline.STYLE
    + f"""
.dsx .sign{{display:inline-block;width:15px;text-align:center;border-radius:3px;font-weight:700;line-height:15px}}
.dsx .more{{background:{VERMILION};color:#fff}}
.dsx .less{{background:{BLUE};color:#fff}}
.dsx .both{{background:repeating-linear-gradient(45deg,{PURPLE} 0 4px,#b86492 4px 6px);color:#000}}
"""
)

_Change = tuple[Any, ...]
"""The values of `_CHANGE`, and the bytes before and after, in one row of the diff."""


class TraceDiffView(View):
    """The view of a `TraceDiff`."""

    title = "Trace diff"

    def __init__(self, diff: TraceDiff) -> None:
        self._diff = diff

    def text(self) -> str:
        """Totals of both, and the ops that differ."""
        rows = self._diff.to_frame()
        lines = [f"TraceDiff: {_totals(self._diff)}"]
        steps = rows.filter(pl.col("phase") != START_UP)
        by_op = steps.group_by("op", "axis").agg(pl.col("count_change", "wire_bytes_change").sum())
        if by_op.height:
            lines.append("  Changes of steps, in collectives and wire bytes:")
        for op, axis, count, size in by_op.sort("op", "axis").head(8).iter_rows():
            lines.append(
                f"  {html.plain(op, 40):<16} {html.plain(axis, 24) or '–':<10} {count:+9,}  {_signed_bytes(size)}"
            )
        return "\n".join(lines)

    def html(self, budget: int = _BUDGET, sizes: str = WIRE) -> str:
        """The joined tree, only where it differs, equal layers folded.

        Args:
            budget: bytes for the tree, about.
            sizes: which bytes it shows, ``"wire"`` or ``"message"``.
        """
        head = f"<p><b>Trace diff</b> {html.escape(_totals(self._diff), 0)}</p>"
        source = _DiffSource(self._diff, sizes)
        if not source.roots():
            return html.fragment(f'{head}<p class="dim">Both communicate the same.</p>')
        drawn = outline.outline(source, source.titles(), budget, "module tree of the differences", _SMALL)
        cut = (
            "Not everything is drawn: <code>to_frame()</code> has every row, <code>to_html(path)</code> draws more."
            if drawn.hidden or drawn.closed
            else "Modules that are the same in both are left out."
        )
        said = f'<p class="dim">Sizes are {WORDS[sizes]}; those of start-up are in their own column only.</p>'
        return html.fragment(f'{head}{_key()}{said}{drawn.html}<p class="dim">{cut}</p>', STYLE)

    def page(self, sizes: str = WIRE, **options: Any) -> str:
        """A document with many more modules than a notebook's output holds.

        Args:
            sizes: which bytes it shows, ``"wire"`` or ``"message"``.
            options: none.
        """
        self.refuse("to_html", options, "sizes")
        return html.page(self.title, self.html(_PAGE_BUDGET, sizes))


class _DiffSource:
    """The rows of two traces' joined tree that differ, as `outline.Source`."""

    def __init__(self, diff: TraceDiff, sizes: str) -> None:
        before, after = diff.before.tables, diff.after.tables
        self._kind = sizes
        joined = Tables(
            events=pl.concat([before.events, after.events]),
            parameters=pl.concat([before.parameters, after.parameters]),
            modules=diff.modules,
        )
        self._tree = module_tree(joined, Facets(joined.events))
        sides = [EventCodes(tables, self._tree, sizes) for tables in (before, after)]
        self._before, self._after = (codes.columns(codes.total) for codes in sides)
        self._start_up = [
            _start_up(codes, sent) for codes, sent in zip(sides, (self._before, self._after), strict=True)
        ]
        self._changes = _by_module(diff.to_frame(), column_of(sizes))
        self._only = _only(self._tree, before, after)
        own = [(self._changes.get(name, ()), self._only[row]) for row, name in enumerate(self._tree.names)]
        self._differs = self._tree.with_children(np.array([any(each) for each in own], np.int64))
        self._folds = Folds(self._tree, signatures(self._tree, own))

    def titles(self) -> list[tuple[str, str, str]]:
        """The columns after the module."""
        inside = ", with the modules inside, summed over all recorded ranks"
        axes = [
            (f"± {axis}" if axis in (NO_AXIS, OTHER_AXES) else f"± on {axis}", f"the change on {axis}{inside}", "delta")
            for axis in self._tree.axes
        ]
        return [
            (f"{self._kind} A", f"{self._kind} bytes of the first trace{inside}", ""),
            (f"{self._kind} B", f"{self._kind} bytes of the second trace{inside}", ""),
            (f"± {self._kind}", f"{self._kind} bytes of B less those of A", "delta"),
            ("count A", f"collectives of the first trace{inside}", ""),
            ("count B", f"collectives of the second trace{inside}", ""),
            ("± count", "count B less count A", "delta"),
            *axes,
            *([("± start-up", f"the change at start-up{inside}", "delta")] if self._has_start_up else []),
        ]

    @property
    def _has_start_up(self) -> bool:
        return bool((self._start_up[0] != self._start_up[1]).any())

    def roots(self) -> list[Fold]:
        """The topmost rows in which something differs."""
        return self._different(self._folds.roots())

    def children(self, row: int) -> list[Fold]:
        """The rows inside a row in which something differs."""
        return self._different(self._folds.children(row))

    def _different(self, folds: list[Fold]) -> list[Fold]:
        return [fold for fold in folds if self._differs[fold.first]]

    def line(self, fold: Fold, times: int) -> str:
        """Name, both traces' numbers, and the differences."""
        tree, row = self._tree, fold.first
        a, b = self._before, self._after
        only = self._only[row]
        mark = f' <span class="tag">only in {only}</span>' if only else ""
        name = outline.label(fold, tree.names[row], tree.types[row], mark, times)
        counts = int(a.count[row]) * times, int(b.count[row]) * times
        sizes = int(a.bytes[row]) * times, int(b.bytes[row]) * times
        axes = [(int(x) * times, int(y) * times) for x, y in zip(a.axes[:, row], b.axes[:, row], strict=True)]
        started = int(self._start_up[0][row]) * times, int(self._start_up[1][row]) * times
        moved = counts[0] == counts[1] and sizes[0] == sizes[1] and started[0] == started[1]
        return (
            name
            + "".join(_number(size, format_bytes) for size in sizes)
            + _delta(*sizes, format_bytes, moved)
            + "".join(_number(count, "{:,}".format) for count in counts)
            + _delta(*counts, "{:,}".format, moved)
            + "".join(_delta(x, y, format_bytes, False) for x, y in axes)
            + (_delta(*started, format_bytes, False) if self._has_start_up else "")
        )

    def inside(self, row: int, times: int) -> str:
        """A table of the module's own collectives that differ."""
        changes = self._changes.get(self._tree.names[row], ())
        if not changes:
            return ""
        rows = [
            (
                _sign((size, count), (size_after, count_after)),
                html.name(op, 60),
                html.name(axis or "–", 60),
                html.escape(phase),
                _both(count, count_after, "{:,}".format),
                _both(size, size_after, format_bytes),
                _signed_bytes(size_after - size) if size != size_after else "",
            )
            for op, axis, phase, count, count_after, size, size_after in changes[:_MOST_ROWS]
        ]
        of_each = ", each" if times > 1 else ""
        head = ("", "collective", "axis", "phase", f"count{of_each}", f"bytes{of_each}", f"± bytes{of_each}")
        more = f'<p class="dim">… and {len(changes) - _MOST_ROWS:,} more.</p>' if len(changes) > _MOST_ROWS else ""
        named = html.name(self._tree.names[row])
        each = (
            f'<p class="dim">Each of the {times:,} has this, and their sum stands in the row; named here: {named}</p>'
            if times > 1
            else ""
        )
        return each + html.table(head, rows, left=(0, 1, 2, 3)) + more


def _start_up(codes: EventCodes, sent: Columns) -> Sizes:
    """(modules,) bytes at start-up, with the modules inside."""
    labels = codes.facets["phase"].labels
    return sent.phases[labels.index(START_UP)] if START_UP in labels else np.zeros(len(codes.tree))


def _by_module(changes: pl.DataFrame, size: str) -> dict[str, tuple[_Change, ...]]:
    found: dict[str, list[_Change]] = {}
    for module, *change in changes.select("module", *_CHANGE, f"{size}_before", f"{size}_after").iter_rows():
        found.setdefault(module, []).append(tuple(change))
    return {module: tuple(rows) for module, rows in found.items()}


def _only(tree: ModuleTree, before: Tables, after: Tables) -> list[str]:
    """``A`` or ``B`` where only that trace has the module, else empty."""
    has = [
        {*tables.modules["module"], *tables.events["owner"], *tables.parameters["module"]} for tables in (before, after)
    ]
    marks = {(True, False): "A", (False, True): "B"}
    return [marks.get((name in has[0], name in has[1]), "") for name in tree.names]


def _totals(diff: TraceDiff) -> str:
    sides = diff.before.events, diff.after.events
    before, after = (events.filter(pl.col("phase") != START_UP) for events in sides)
    wire, message = (int(after[name].sum()) - int(before[name].sum()) for name in ("wire_bytes", "message_bytes"))
    started = [int(events.filter(pl.col("phase") == START_UP)["wire_bytes"].sum()) for events in sides]
    at_start = f"; start-up: {_signed_bytes(started[1] - started[0])} on the wire" if started[0] != started[1] else ""
    return (
        f"{before.height:,} → {after.height:,} collectives ({after.height - before.height:+,}), "
        f"{_signed_bytes(wire)} on the wire ({_signed_bytes(message)} in messages), {_over(diff)}{at_start}"
    )


def _over(diff: TraceDiff) -> str:
    """Over what both sides are summed, in words."""
    before, after = (summed_over(trace.tables) for trace in (diff.before, diff.after))
    return before if before == after else f"A {before}, B {after}"


def _key() -> str:
    meanings = ((0, 1, "more in B"), (1, 0, "less in B"), (0, 0, "as much in sum, of other collectives"))
    signs = " ".join(f"{_sign(before, after)} {text}" for before, after, text in meanings)
    return f'<p class="dim">A: the first trace. B: the second. {signs}</p>'


def _sign(before: Any, after: Any) -> str:
    kind, shown = ("more", "+") if after > before else ("less", "−") if after < before else ("both", "±")
    return f'<span class="sign {kind}">{shown}</span>'


def _number(value: int, write: Callable[[int], str]) -> str:
    return outline.cell(write(value)) if value else outline.cell("–", "z")


def _delta(before: int, after: int, write: Callable[[int], str], moved: bool) -> str:
    """The change with its sign; ``moved``: no change in sum, but in what makes it up."""
    if before == after:
        return outline.cell(_sign(0, 0) if moved else "–", "delta" if moved else "delta z")
    return outline.cell(f"{_sign(before, after)} {write(abs(after - before))}", "delta")


def _both(before: int, after: int, write: Callable[[int], str]) -> str:
    return f"{write(before)} → {write(after)}" if before != after else write(before)


def _signed_bytes(size: int) -> str:
    return f"{'+' if size >= 0 else '−'}{format_bytes(abs(size))}"
