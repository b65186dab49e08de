"""The tables of a prediction: parts of the step, time by module and by axis, causes of its range, and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from dsexplore._internal.cost.step.beside_measured import beside
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.trace.numbered_modules import OUTSIDE
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes, format_count, format_seconds, format_share
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, prose, table, text
from dsexplore._internal.views.page.theme import ALARM, SERIES, WAITING
from dsexplore._internal.views.trace import outline
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.folding import Fold
from dsexplore._internal.views.trace.time_columns import with_inside

PART_COLORS = {"compute": SERIES[2], "exposed": ALARM, "idle": WAITING}
"""{part of a step: its color}."""
SECONDS = ("compute", "communication", "exposed", "idle")
"""Kinds of seconds in a row of the table of modules."""
_MOST_BESIDE = 40

STYLE = """
.dsx .prediction .sum{color:var(--dsx-dim);font-size:var(--dsx-tiny)}
.dsx .prediction td{vertical-align:middle}
.dsx .prediction .named{display:inline-block;margin-right:14px}
.dsx .prediction .bar{width:min(220px,15vw);display:flex;height:14px}
.dsx .prediction .bar span{display:block;height:14px}
.dsx .prediction .part{display:inline-block;width:14px;height:11px;margin-right:5px;vertical-align:-1px}
"""


def bar(parts: Mapping[str, float], whole: float) -> str:
    """Return a bar of compute, exposed and idle seconds; ``whole`` is the seconds of a bar of full length."""
    spans = "".join(
        f'<span style="width:{100 * parts[name] / whole:.2f}%;background:{color}" '
        f'title="{name} {format_seconds(parts[name])}"></span>'
        for name, color in PART_COLORS.items()
        if parts[name] > 0
    )
    return f'<div class="bar">{spans}</div>' if whole > 0 else ""


def _named(name: str, format_value: Callable[[Any], str], title: str = "") -> Column:
    """Return a column of the entry ``name`` of each row, whose title is ``name`` by default."""
    return Column(title or name, lambda row: format_value(row[name]))


def _seconds(*names: str) -> list[Column]:
    """Return a column of seconds for each of these entries of a row."""
    return [_named(name, format_seconds) for name in names]


def parts_table(prediction: Prediction) -> str:
    """Return a bar of the step, and a table of its parts with their ranges."""
    step = prediction.step
    rows = [
        {"part": name, "expected": part.expected, "low": part.low, "high": part.high}
        for name, part in {"step": step, **{field: getattr(prediction, field) for field in PART_COLORS}}.items()
    ]
    columns = [
        text("", lambda row: _key(row["part"]) + row["part"]),
        *_seconds("expected", "low", "high"),
        _named("expected", lambda part: html.prose(_share(part, step.expected), longest=0), "of the step"),
    ]
    parts = {name: getattr(prediction, name).expected for name in PART_COLORS}
    return bar(parts, sum(parts.values())) + table(columns, rows)


def _key(part: str) -> str:
    """Return a swatch with the color of a part; empty for the whole step."""
    return f'<span class="part" style="background:{PART_COLORS[part]}"></span>' if part in PART_COLORS else ""


def parts_key() -> str:
    """Return the colors and names of the parts of `bar`."""
    return html.note(" ".join(f'<span class="named">{_key(part)}{part}</span>' for part in PART_COLORS))


def _share(part: float, whole: float) -> str:
    return format_share(part, whole) if whole else ""


def modules_table(prediction: Prediction, most: int) -> str:
    """Return a row per module, with identical modules folded as in a trace's tree; numbers are sums over these.

    Only the ``most`` rows that take longest are shown, in the order of the tree.
    """
    rows = module_rows(prediction)
    by_length = sorted(rows, key=lambda row: -_length(row))
    longest = {row.place for row in by_length[:most]}
    whole = max(map(_length, by_length[:1]), default=0.0)
    columns = [
        text("module", _module_name),
        text("", lambda row: bar(row.parts, whole)),
        *map(_part_column, SECONDS),
    ]
    hidden, more = len(rows) - len(longest), "shorter rows: <code>by_module()</code> has all modules"
    return parts_key() + table(columns, [row for row in rows if row.place in longest], hidden=hidden, more=more)


def _part_column(part: str) -> Column:
    return Column(part, lambda row: format_seconds(row.parts[part]))


@dataclass(frozen=True)
class ModuleRow:
    """One module, or several identical ones."""

    place: int
    """Index among all rows."""
    fold: Fold
    depth: int
    times: int
    """Number of modules that it stands for, including folds above it."""
    parts: dict[str, float]
    """{kind of `SECONDS`: seconds}, summed over all modules of the row and those inside them."""


def module_rows(prediction: Prediction) -> list[ModuleRow]:
    """Return the rows with any time, parents before children; what runs outside all modules is last."""
    codes, frame = EventCodes(prediction.tables), prediction.by_module()
    seconds = {name: with_inside(codes.tree, frame, name) for name in SECONDS}

    rows: list[ModuleRow] = []

    def add(folds: list[Fold], depth: int, times: int) -> None:
        for fold in folds:
            modules = codes.folds.members(fold.first)
            parts = {name: float(of_modules[modules].sum()) for name, of_modules in seconds.items()}
            if any(parts.values()):
                count = times * len(fold.rows)
                rows.append(ModuleRow(len(rows), fold, depth=depth, times=count, parts=parts))
                add(codes.folds.children(fold.first), depth + 1, count)

    add(codes.folds.roots(), depth=0, times=1)
    roots = codes.tree.roots
    outside = {name: float(frame[name].sum() - seconds[name][roots].sum()) for name in SECONDS}
    if max(outside.values()) > 1e-9 * max(1e-9, float(frame["compute"].sum())):
        parts = {name: max(0.0, value) for name, value in outside.items()}
        rows.append(ModuleRow(len(rows), Fold((-1,), ""), depth=0, times=1, parts=parts))
    return rows


def _length(row: ModuleRow) -> float:
    """Return the seconds of a row's bar."""
    return sum(row.parts[part] for part in PART_COLORS)


def _module_name(row: ModuleRow) -> str:
    indent = "&nbsp;" * 2 * row.depth
    return f"{indent}{html.name(row.fold.label or OUTSIDE)}{outline.multiplicity(row.fold, row.times)}"


def axes_table(prediction: Prediction) -> str:
    """Return the seconds of communication by mesh axis and op."""
    columns = [
        text("axis", lambda row: html.name(row["axis"] or "–")),
        text("op", lambda row: html.escape(row["op"])),
        _named("count", "{:,}".format),
        _named("communication", format_seconds, "time"),
        *_seconds("exposed"),
    ]
    return _frame_table(columns, prediction.by_axis(), "none")


def causes_table(prediction: Prediction) -> str:
    """Return the causes of the step's range, each with the reason for its uncertainty."""
    columns = [
        text("what", lambda row: html.escape(row["what"])),
        *_seconds("low", "expected", "high"),
        _named("share", lambda share: format_share(share, 1.0), "of the range"),
        prose("reason", lambda row: html.escape(row["why"])),
    ]
    return _frame_table(columns, prediction.by_cause(), "The step has no range.")


def _frame_table(columns: Sequence[Column], frame: pl.DataFrame, empty: str) -> str:
    return table(columns, frame.iter_rows(named=True)) if frame.height else f"<p>{empty}</p>"


def memory_table(prediction: Prediction) -> str:
    """Return the bytes at the peak by use, and changes that would save memory."""
    uses = [
        *((html.escape(use), size) for use, size in prediction.peak.parts.items()),
        ("tensors together", prediction.peak.tensors),
        ("held by the allocator", prediction.memory),
        ("outside the allocator", prediction.memory.outside),
    ]
    savings = [
        text("to need less", lambda saving: html.escape(saving.what, longest=120)),
        Column("frees up to", lambda saving: format_bytes(saving.frees)),
        Column("a step longer by up to", lambda saving: format_seconds(saving.seconds)),
    ]
    by_use = table([text("", lambda use: use[0]), Column("bytes", lambda use: format_bytes(use[1]))], uses)
    return by_use + (table(savings, prediction.memory.savings) if prediction.memory.savings else "")


def beside_table(prediction: Prediction, measured: Trace) -> str:
    """Return the modules and phases in which prediction and measurement differ most, with a note on the times."""
    columns = pl.col("communication_measured", "exposed_measured", "between_measured")
    is_measured = pl.any_horizontal(columns > 0).fill_null(False)
    differences = beside(prediction, measured)
    rows = differences.filter(is_measured).head(_MOST_BESIDE)
    columns_shown = [
        text("module", lambda row: html.name(row["module"] or "(outside modules)")),
        text("phase", lambda row: html.escape(row["phase"])),
        _named("exposed", _seconds_or_unknown, "exposed, predicted"),
        _named("exposed_measured", _seconds_or_unknown, "exposed, measured"),
        _named("compute", _seconds_or_unknown, "compute, predicted"),
        _named("between_measured", _seconds_or_unknown, "compute, measured"),
        _named("communication", _seconds_or_unknown, "communication, predicted"),
        _named("communication_measured", _seconds_or_unknown, "communication, measured"),
        _named("off", _difference, "predicted − measured"),
    ]
    waits = (
        " Unknown: the trace has no waits for these collectives, so their exposed time counts as compute of the next "
        "module."
        if rows["exposed_measured"].null_count()
        else ""
    )
    count = differences.filter(~is_measured).height
    hidden = f" {format_count(count, 'row')} of modules without collectives are not shown." if count else ""
    return (
        f"{table(columns_shown, rows.iter_rows(named=True))}"
        '<p class="dim">Times are measured at collectives: compute between two of them counts for the module that '
        f"calls the second one.{waits}{hidden}</p>"
    )


def _seconds_or_unknown(seconds: float | None) -> str:
    return "unknown" if seconds is None else format_seconds(seconds)


def _difference(seconds: float | None) -> str:
    """Return seconds with their sign; a dash for None."""
    return "–" if seconds is None else f"{'+' if seconds >= 0 else '−'}{format_seconds(abs(seconds))}"
