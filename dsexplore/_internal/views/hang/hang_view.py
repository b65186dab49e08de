"""A hang report: the sentence, which ranks wait in which call for whom, where calls differ, and the ranks' stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsexplore._internal.analysis.hangs.call_text import short_line
from dsexplore._internal.analysis.hangs.hang_report import HangReport
from dsexplore._internal.units import format_bytes, format_ranks
from dsexplore._internal.views.page import html
from dsexplore._internal.views.view import View

HEAD = ("ranks", "in", "{} for", "group", "number", "bytes", "state", "line")
_MOST_ROWS, _MOST_ROWS_OF_PAGE = 40, 2_000
_MOST_STACKS = 64

Row = dict[str, Any]


class HangView(View):
    """The view of a `HangReport`."""

    title = "Hang"

    def __init__(self, report: HangReport) -> None:
        self._report = report
        self._waits = _grouped(report.waiting.to_dicts())

    def text(self) -> str:
        """Return the sentence, a line for each call in which ranks wait, and the notes."""
        lines = [html.plain(self._report.verdict(), 0)]
        lines += [f"  {_wait_text(ranks, row)}" for ranks, row in self._waits[:_MOST_ROWS]]
        if len(self._waits) > _MOST_ROWS:
            lines.append(f"  … and {len(self._waits) - _MOST_ROWS} more calls: see waiting")
        lines += [f"note: {html.plain(note, 0)}" for note in self._report.notes]
        return "\n".join(lines)

    def html(self, most: int = _MOST_ROWS) -> str:
        """Return the content of `text` with tables, plus the ranks' stacks in collapsed sections.

        Args:
            most: maximal number of rows in the table.
        """
        report = self._report
        said = report.conclusion[:1].upper() + report.conclusion[1:]
        parts = [f"<p>{_headline(report)}</p>{html.verdict(said, 0)}"]
        if self._waits:
            rows = [_cells(ranks, row, report) for ranks, row in self._waits[:most]]
            verb = "waited" if _is_over(report) else "wait"
            parts.append(html.table([title.format(verb) for title in HEAD], rows, left=(0, 1, 2, 3, 6, 7), stacks=True))
        if len(self._waits) > most:
            parts.append(
                f'<p class="dim">… and {len(self._waits) - most:,} more calls: <code>waiting</code> has all</p>'
            )
        parts += _mismatches(report)
        parts += [_stack(rank, stack) for rank, stack in list(report.stacks.items())[:_MOST_STACKS]]
        parts += [f'<p class="dim">{html.escape(note, 0)}</p>' for note in report.notes]
        return html.fragment("".join(parts), html.RANKS_STYLE)

    def page(self) -> str:
        """Return a document with many more rows than a notebook's output holds."""
        return html.page(self.title, self.html(_MOST_ROWS_OF_PAGE))


def _headline(report: HangReport) -> str:
    if report.reason == "none":
        return "No hang"
    what = "Failure" if _is_over(report) else "Hang"
    if report.culprits:
        return f"{what}: {format_ranks(report.culprits)}"
    return f"{what}: the evidence does not say which rank is to blame"


def _is_over(report: HangReport) -> bool:
    """Return True if no rank waits any more, as all calls failed."""
    return set(report.waiting["state"]) == {"failed"}


def _grouped(rows: Sequence[Row]) -> list[tuple[list[int], Row]]:
    """Group rows by call and awaited ranks; return (ranks that wait, one of their rows) per group."""
    groups: dict[tuple[Any, ...], tuple[list[int], Row]] = {}
    for row in rows:
        key = (
            *(row[name] for name in ("op", "group", "number", "message_bytes", "state", "source")),
            str(row["ranks"]),
        )
        groups.setdefault((*key, str(row["waits_for"])), ([], row))[0].append(row["rank"])
    return list(groups.values())


def _wait_text(ranks: Sequence[int], row: Row) -> str:
    line = f", {short_line(row['source'])}" if row["source"] else ""
    size = f", {format_bytes(row['message_bytes'])}" if row["message_bytes"] else ""
    whom = f" for {format_ranks(row['waits_for'])}" if row["waits_for"] else ""
    verb = "waited" if row["state"] == "failed" else "waits" if len(ranks) == 1 else "wait"
    where = f"collective {row['number']} of group {row['group']}"
    return html.plain(f"{format_ranks(ranks)} {verb} in {row['op']} ({where}{size}{line}; {row['state']}){whom}", 0)


def _cells(ranks: Sequence[int], row: Row, report: HangReport) -> list[str]:
    return [
        html.rank_boxes(ranks, report.culprits),
        html.name(row["op"]),
        html.rank_boxes(row["waits_for"], row["waits_for"]) if row["waits_for"] else "–",
        html.name(row["group"]),
        str(row["number"]),
        format_bytes(row["message_bytes"]) if row["message_bytes"] else "–",
        html.escape(row["state"]),
        html.name(row["source"] or "–"),
    ]


def _stack(rank: int, stack: str) -> str:
    shown = f'<pre class="mono">{html.escape(stack, 0)}</pre>'
    return f"<details><summary>rank {rank}: where it was</summary>{shown}</details>"


def _mismatches(report: HangReport) -> list[str]:
    rows = [
        [
            html.name(row["group"]),
            str(row["number"]),
            html.escape(row["field"] if row["field"] != "root" else f"root: rank {row['root']}"),
            html.escape(format_ranks(row["ranks"]).partition(" ")[2]),
            html.name(row["op"]),
            format_bytes(row["message_bytes"]),
            html.name(row["dtype"] or "–"),
            html.name(row["source"] or "–"),
            "" if row["is_harmful"] else "got through",
        ]
        for row in report.mismatches.to_dicts()
    ]
    if not rows:
        return []
    head = ("group", "number", "differs", "ranks", "op", "bytes", "dtype", "line", "")
    return ["<h2>Called differently</h2>", html.table(head, rows, left=(0, 2, 3, 4, 6, 7, 8))]
