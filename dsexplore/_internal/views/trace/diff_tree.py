"""The joined module tree of two traces, A and B: bars of both on one scale, and the changes from A to B."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dsexplore._internal.analysis.plan_difference import SIZES, PlanDifference, count_text
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.trace.schema import IN_STEPS, NO_AXIS, OUTSIDE_STEPS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import TraceDiff
from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.page.theme import ALARM, GREY, SHADE
from dsexplore._internal.views.trace import outline
from dsexplore._internal.views.trace.byte_sizes import column_of
from dsexplore._internal.views.trace.facets import Facets
from dsexplore._internal.views.trace.folding import Fold, Folds
from dsexplore._internal.views.trace.module_tree import OTHER_AXES, ModuleTree, module_tree
from dsexplore._internal.views.trace.pivot import Sizes
from dsexplore._internal.views.trace.time_columns import seconds_cell, step_seconds

_MOST_ROWS = 16
_DECIMALS = 2
"""Decimals to which sums are rounded, so that means of equal bytes compare equal."""

STYLE = (
    outline.STYLE
    + f"""
.dsx .sign{{display:inline-block;width:15px;text-align:center;border-radius:3px;font-weight:700;line-height:15px}}
.dsx .more{{background:{ALARM};color:#fff}}
.dsx .less{{background:{SHADE};color:#fff}}
.dsx .both{{background:{GREY};color:#fff}}
.dsx .row .c.spine{{flex-basis:160px;align-self:stretch;text-align:center}}
.dsx .sides{{display:grid;grid-template-columns:1fr 1fr;gap:4px;height:100%;
background:linear-gradient(var(--dsx-fg),var(--dsx-fg)) center/2px 100% no-repeat}}
.dsx .sides .thin{{margin:5px 0}}
.dsx .sides .thin:first-child{{flex-direction:row-reverse}}
"""
)

_TIMES = (
    ("time A (pred.)", "predicted seconds of the first trace: compute, idle, and exposed communication", ""),
    ("time B (pred.)", "predicted seconds of the second trace", ""),
    ("± time (pred.)", "predicted seconds of B less those of A", "delta"),
)


class _Change(NamedTuple):
    """The collectives of one op, axis and phase of a module, in both traces, per rank and step."""

    op: str
    axis: str
    phase: str
    calls_before: float
    calls_after: float
    bytes_before: float
    bytes_after: float


@dataclass(frozen=True)
class _Side:
    """What one trace sends per rank and step, by row of the joined tree; includes the modules inside."""

    count: Sizes
    """(modules,) number of collectives in steps."""
    bytes: Sizes
    """(modules,) bytes in steps."""
    axes: Sizes
    """(axes, modules) bytes in steps on each of the tree's axes."""
    apart: Sizes
    """(`OUTSIDE_STEPS`, modules) bytes per rank in each phase outside steps."""


class DiffRows:
    """The rows of the joined tree in which two traces differ, as an `outline.Source`; per rank and step.

    Args:
        diff: the two traces.
        difference: their difference.
        sizes: bytes to show, ``"wire"`` or ``"message"``.
        anchors: {module: id of its row, for links to it}.
        predictions: predictions of both traces, or none.
    """

    def __init__(
        self,
        diff: TraceDiff,
        difference: PlanDifference,
        sizes: str,
        anchors: Mapping[str, str],
        predictions: Sequence[Prediction] = (),
    ) -> None:
        before, after = diff.before.tables, diff.after.tables
        self._kind = sizes
        self.anchors = outline.Anchors(anchors)
        joined = Tables(
            events=pl.concat([before.events, after.events]),
            parameters=pl.concat([before.parameters, after.parameters]),
            modules=diff.modules,
        )
        self.tree = module_tree(joined, Facets(joined.events))
        rows, size = difference.to_frame(unchanged=True), column_of(sizes)
        self._before, self._after = (_side(self.tree, rows, size, when) for when in ("before", "after"))
        self._changes = _by_module(difference.to_frame(), size)
        self._only_in = _only_in(self.tree, before, after)
        row_keys = [(self._changes.get(name, ()), self._only_in[row]) for row, name in enumerate(self.tree.names)]
        self._differs = self.tree.with_children(np.array([any(values) for values in row_keys], np.int64))
        self._folds = Folds(self.tree, row_keys)
        self._seconds = [step_seconds(self.tree, prediction) for prediction in predictions]
        roots = self.tree.roots
        self._top = max(float(side.bytes[roots].sum()) for side in (self._before, self._after)) or 1.0

    def titles(self) -> list[tuple[str, str, str]]:
        """Return (title, explanation, class) of the columns after the module."""
        inside = " per rank and step, with the modules inside"
        axes = [
            (f"± {axis}" if axis in (NO_AXIS, OTHER_AXES) else f"± on {axis}", f"the change on {axis}{inside}", "delta")
            for axis in self.tree.axes
        ]
        return [
            (f"{self._kind} A", f"{self._kind} bytes of the first trace{inside}", ""),
            ("A ┃ B", "both on one scale, by axis: A to the left of the line, B to the right", "spine"),
            (f"{self._kind} B", f"{self._kind} bytes of the second trace{inside}", ""),
            (f"± {self._kind}", f"{self._kind} bytes of B less those of A", "delta"),
            ("count A", f"collectives of the first trace{inside}", ""),
            ("count B", f"collectives of the second trace{inside}", ""),
            ("± count", "count B less count A", "delta"),
            *(_TIMES if self._seconds else ()),
            *axes,
            *((f"± {OUTSIDE_STEPS[phase]}", "the change in this phase per rank", "delta") for phase in self._apart),
        ]

    @property
    def _apart(self) -> list[int]:
        """Indices into `OUTSIDE_STEPS` of the phases in which the traces differ."""
        return [int(place) for place in np.flatnonzero((self._before.apart != self._after.apart).any(axis=1))]

    def roots(self) -> list[Fold]:
        """Return the topmost rows in which something differs."""
        return self._different(self._folds.roots())

    def children(self, row: int) -> list[Fold]:
        """Return the rows inside ``row`` in which something differs."""
        return self._different(self._folds.children(row))

    def _different(self, folds: list[Fold]) -> list[Fold]:
        return [fold for fold in folds if self._differs[fold.first]]

    def line(self, fold: Fold, times: int) -> str:
        """Return the cells of a row: name, both traces' numbers around the bars, and the differences."""
        tree, row = self.tree, fold.first
        a, b = self._before, self._after
        only = self._only_in[row]
        mark = f' <span class="tag">only in {only}</span>' if only else ""
        name = outline.label(fold, tree.names[row], tree.types[row], mark, times, self.anchors.take(tree.names[row]))
        counts = float(a.count[row]) * times, float(b.count[row]) * times
        sizes = float(a.bytes[row]) * times, float(b.bytes[row]) * times
        axes = [(float(x) * times, float(y) * times) for x, y in zip(a.axes[:, row], b.axes[:, row], strict=True)]
        apart = [(float(a.apart[phase, row]) * times, float(b.apart[phase, row]) * times) for phase in self._apart]
        is_sent = any((*counts, *(size for both in apart for size in both)))
        same_totals = is_sent and counts[0] == counts[1] and sizes[0] == sizes[1] and all(x == y for x, y in apart)
        return (
            name
            + outline.number_cell(sizes[0], format_bytes)
            + outline.cell(self._bars(axes), "spine")
            + outline.number_cell(sizes[1], format_bytes)
            + _delta(*sizes, format_bytes, same_totals)
            + "".join(outline.number_cell(count, count_text) for count in counts)
            + _delta(*counts, count_text, same_totals)
            + self._times(fold)
            + "".join(_delta(x, y, format_bytes, False) for x, y in (*axes, *apart))
        )

    def _times(self, fold: Fold) -> str:
        """Return cells with both predicted seconds and their change; empty if nothing is predicted."""
        if not self._seconds:
            return ""
        rows = self._folds.members(fold.first)
        before, after = (float(seconds[rows].sum()) for seconds in self._seconds)
        return seconds_cell(before) + seconds_cell(after) + _delta(before, after, format_seconds, False)

    def _bars(self, axes: list[tuple[float, float]]) -> str:
        """Return A's bar, which grows to the left, and B's, which grows to the right, one segment per axis."""
        bars = (outline.thin_bar(self.tree.axes, sizes, self._top) for sizes in zip(*axes, strict=True))
        return f'<span class="sides">{"".join(bars)}</span>'

    def inside(self, row: int, times: int) -> str:
        """Return a table of the collectives of the module itself that differ."""
        changes = self._changes.get(self.tree.names[row], ())
        if not changes:
            return ""
        per_module = ", each" if times > 1 else ""
        columns = (
            text("", _sign_of),
            text("collective", lambda change: html.name(change.op, longest=60)),
            text("axis", lambda change: html.name(change.axis or "–", longest=60)),
            text("phase", lambda change: html.escape(change.phase)),
            Column(f"count{per_module}", lambda change: _both(change.calls_before, change.calls_after, count_text)),
            Column(f"bytes{per_module}", lambda change: _both(change.bytes_before, change.bytes_after, format_bytes)),
            Column(f"± bytes{per_module}", _more_bytes),
        )
        drawn = table(columns, changes[:_MOST_ROWS], hidden=len(changes) - _MOST_ROWS)
        return outline.of_each(self.tree.names[row], times, drawn)


def _sign_of(change: _Change) -> str:
    """Return the sign of a change of bytes, or, where these are equal, of calls."""
    return _sign((change.bytes_before, change.calls_before), (change.bytes_after, change.calls_after))


def _more_bytes(change: _Change) -> str:
    more = change.bytes_after - change.bytes_before
    return signed_bytes(more) if more else ""


def _side(tree: ModuleTree, rows: pl.DataFrame, size: str, when: str) -> _Side:
    """Return one trace's numbers by row of the tree.

    Args:
        tree: the joined tree.
        rows: `PlanDifference.to_frame`.
        size: column of bytes, without the suffix that names the trace.
        when: suffix of the trace, ``"before"`` or ``"after"``.
    """
    in_steps = rows.select(IN_STEPS.alias("in")).to_series().to_numpy()
    row = np.array([tree.row_of[name] for name in rows["module"]], np.int64)
    axis = tree.columns_of(rows["axis"].to_list())
    count, sizes = (rows[f"{name}_{when}"].to_numpy() for name in (SIZES[0], size))
    first_axis = 2 + len(OUTSIDE_STEPS)
    sums = np.zeros((first_axis + len(tree.axes), len(tree)))
    np.add.at(sums[0], row, count * in_steps)
    np.add.at(sums[1], row, sizes * in_steps)
    for place, phase in enumerate(OUTSIDE_STEPS, 2):
        np.add.at(sums[place], row, sizes * (rows["phase"] == phase).to_numpy())
    if len(row):
        np.add.at(sums[first_axis:], (axis, row), sizes * in_steps)
    below = np.round(tree.with_children(sums), _DECIMALS)
    return _Side(count=below[0], bytes=below[1], axes=below[first_axis:], apart=below[2:first_axis])


def _by_module(changes: pl.DataFrame, size: str) -> dict[str, tuple[_Change, ...]]:
    """Return {module: the changes of its own collectives}; ``size`` is the column of bytes without a suffix."""
    by_module: dict[str, list[_Change]] = {}
    numbers = [f"{name}_{when}" for name in (SIZES[0], size) for when in ("before", "after")]
    for module, *change in changes.select("module", "op", "axis", "phase", *numbers).iter_rows():
        by_module.setdefault(module, []).append(_Change(*change))
    return {module: tuple(rows) for module, rows in by_module.items()}


def _only_in(tree: ModuleTree, before: Tables, after: Tables) -> list[str]:
    """Return ``"A"`` or ``"B"`` per row of the tree if only that trace has the module, else ``""``."""
    has = [
        {*tables.modules["module"], *tables.events["owner"], *tables.parameters["module"]} for tables in (before, after)
    ]
    marks = {(True, False): "A", (False, True): "B"}
    return [marks.get((name in has[0], name in has[1]), "") for name in tree.names]


def key() -> str:
    """Return a paragraph that explains A, B and the signs."""
    meanings = ((0, 1, "more in B"), (1, 0, "less in B"), (0, 0, "the same bytes, other collectives"))
    signs = " ".join(f"{_sign(before, after)} {text}" for before, after, text in meanings)
    return f'<p class="dim">A: the first trace. B: the second. {signs}</p>'


def _sign(before: Any, after: Any) -> str:
    """Return "+", "−" or "±" in the color of more, less, or a change of equal amounts."""
    if after > before:
        return '<span class="sign more">+</span>'
    if after < before:
        return '<span class="sign less">−</span>'
    return '<span class="sign both">±</span>'


def _delta(before: float, after: float, format_value: Callable[[float], str], same_totals: bool) -> str:
    """Return the cell of a change with its sign.

    Args:
        before: number of the first trace.
        after: number of the second trace.
        format_value: writes the amount of the change.
        same_totals: whether both traces send the same amounts in this row, by different collectives.
    """
    if before != after:
        return outline.cell(f"{_sign(before, after)} {format_value(abs(after - before))}", "delta")
    return outline.cell(_sign(0, 0), "delta") if same_totals else outline.cell("–", "delta z")


def _both(before: float, after: float, format_value: Callable[[float], str]) -> str:
    return f"{format_value(before)} → {format_value(after)}" if before != after else format_value(before)


def signed_bytes(size: float) -> str:
    """Return a difference of bytes with its sign: ``+6 KiB``, ``−1 KiB``."""
    return f"{'+' if size >= 0 else '−'}{format_bytes(abs(size))}"
