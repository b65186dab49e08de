"""Two traces, one tree: what the second communicates more and less than the first."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from dsexplore.display import View
from dsexplore.trace.diff import TraceDiff
from dsexplore.units import format_bytes
from dsexplore.views import html
from dsexplore.views.fold import ranges

MOST_ROWS = 200

STYLE = """
.dsx.dsx .diff td,.dsx.dsx .diff th{padding-right:14px}
.dsx .sign{display:inline-block;width:16px;text-align:center;border-radius:3px;font-weight:700}
.dsx .more{background:#d55e00;color:#fff}
.dsx .less{background:#0072b2;color:#fff}
.dsx .both{background:repeating-linear-gradient(45deg,#cc79a7 0 4px,#b86492 4px 6px);color:#000}
"""

_CLASS = {"+": "more", "-": "less", "±": "both"}
_KEYS = ("op", "axis", "phase", "change", "count_before", "count_after", "message_bytes_before", "message_bytes_after")


class TraceDiffView(View):
    """How a `TraceDiff` is shown."""

    title = "Trace diff"

    def __init__(self, diff: TraceDiff) -> None:
        self._diff = diff

    def text(self) -> str:
        """Totals of both, and the ops that differ."""
        rows = self._diff.to_frame()
        lines = [f"TraceDiff: {_totals(self._diff)}"]
        by_op = rows.group_by("op", "axis").agg(pl.col("count_change", "message_bytes_change").sum())
        for op, axis, count, size in by_op.sort("op", "axis").head(8).iter_rows():
            lines.append(
                f"  {html.plain(op, 40):<16} {html.plain(axis, 24) or '–':<10} {count:+9,}  {_signed_bytes(size)}"
            )
        return "\n".join(lines)

    def html(self) -> str:
        """The joined tree, only where it differs, equal layers folded."""
        frame = self._diff.to_frame()
        head = f"<p><b>Trace diff</b> {html.escape(_totals(self._diff), 0)}</p>"
        if frame.is_empty():
            return html.fragment(f'{head}<p class="dim">Both communicate the same.</p>')
        return html.fragment(head + _key() + _table(self._diff, frame), STYLE)


def _totals(diff: TraceDiff) -> str:
    before, after = diff.before.events, diff.after.events
    count = after.height - before.height
    size = int(after["message_bytes"].sum()) - int(before["message_bytes"].sum())
    return f"{before.height:,} → {after.height:,} collectives ({count:+,}), {_signed_bytes(size)} in messages"


def _signed_bytes(size: int) -> str:
    return f"{'+' if size >= 0 else '−'}{format_bytes(abs(size))}"


def _key() -> str:
    meanings = (("+", "only after"), ("-", "only before"), ("±", "more or less of it"))
    return '<p class="dim">' + " ".join(f"{_sign(sign)} {text}" for sign, text in meanings) + "</p>"


def _sign(change: str) -> str:
    return f'<span class="sign {_CLASS.get(change, "")}">{"−" if change == "-" else change}</span>'


def _table(diff: TraceDiff, frame: pl.DataFrame) -> str:
    folded = _fold(diff, frame)
    rows = []
    seen = ""
    for (pattern, *key), modules in list(folded.items())[:MOST_ROWS]:
        op, axis, phase, change = map(str, key[:4])
        count, count_after, size, size_after = (value for value in key[4:] if isinstance(value, int))
        times = len(modules)
        many = f' <span class="dim">×{times}{_numbers(modules)}</span>' if times > 1 else ""
        label = (html.name(pattern or "(outside any module)") + many) if pattern != seen or many else ""
        seen = str(pattern)
        rows.append(
            (
                label,
                _sign(change),
                html.name(op),
                html.name(axis or "–"),
                html.escape(phase),
                _change(count * times, count_after * times, "{:,}".format),
                f"{(count_after - count) * times:+,}",
                _change(size * times, size_after * times, format_bytes),
                _signed_bytes((size_after - size) * times),
            )
        )
    head = ("module", "", "op", "axis", "phase", "count", "Δ", "bytes", "Δ bytes")
    more = f'<p class="dim">… and {len(folded) - MOST_ROWS:,} more.</p>' if len(folded) > MOST_ROWS else ""
    return f'<div class="diff">{html.table(head, rows, left=(1, 2, 3, 4), wrap=(0,))}</div>{more}'


def _change(before: int, after: int, write: Callable[[int], str]) -> str:
    return f"{write(before)} → {write(after)}" if before != after else write(before)


def _fold(diff: TraceDiff, frame: pl.DataFrame) -> dict[tuple[object, ...], list[str]]:
    """(place, what changed) → the modules of that place with that change, in the order of the tree."""
    folded: dict[tuple[object, ...], list[str]] = {}
    for module, *key in frame.select("module", *_KEYS).iter_rows():
        pattern = ".".join("*" if part.isdecimal() else part for part in module.split("."))
        folded.setdefault((pattern, *key), []).append(module)
    order = {name: row for row, name in enumerate(diff.modules["module"])}
    return dict(sorted(folded.items(), key=lambda item: (order.get(item[1][0], -1), str(item[0]))))


def _numbers(modules: list[str]) -> str:
    """`` (1–30)`` where the modules differ in one number, else nothing."""
    split = [[part for part in name.split(".") if part.isdecimal()] for name in modules]
    if any(len(parts) != 1 for parts in split):
        return ""
    return f" ({ranges([int(parts[0]) for parts in split])})"
