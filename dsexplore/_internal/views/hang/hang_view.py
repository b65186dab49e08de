"""A hang report: the sentence, which ranks wait in which call for whom, where calls differ, and the ranks' stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsexplore._internal.analysis.hangs.call_text import short_line
from dsexplore._internal.analysis.hangs.hang_report import HangReport
from dsexplore._internal.units import format_bytes, format_ranks
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.view import View

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
        lines = [html.plain(self._report.verdict(), longest=0)]
        lines += [f"  {_wait_text(ranks, row)}" for ranks, row in self._waits[:_MOST_ROWS]]
        if len(self._waits) > _MOST_ROWS:
            lines.append(f"  … and {len(self._waits) - _MOST_ROWS} more calls: see waiting")
        lines += [f"note: {html.plain(note, longest=0)}" for note in self._report.notes]
        return "\n".join(lines)

    def html(self, most: int = _MOST_ROWS) -> str:
        """Return the content of `text` with tables, plus the ranks' stacks in collapsed sections."""
        report = self._report
        said = report.conclusion[:1].upper() + report.conclusion[1:]
        parts = [f"<p>{_headline(report)}</p>{html.verdict(said, longest=0)}"]
        if self._waits:
            parts.append(_waiting_table(self._waits[:most], report, hidden=len(self._waits) - most))
        parts += _mismatches(report)
        parts += [_stack(rank, stack) for rank, stack in list(report.stacks.items())[:_MOST_STACKS]]
        parts.append(html.notes(report.notes))
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
    return html.plain(
        f"{format_ranks(ranks)} {verb} in {row['op']} ({where}{size}{line}; {row['state']}){whom}", longest=0
    )


def _waiting_table(waits: Sequence[tuple[list[int], Row]], report: HangReport, hidden: int) -> str:
    verb = "waited" if _is_over(report) else "wait"
    columns = (
        text("ranks", lambda wait: html.rank_boxes(wait[0], report.culprits)),
        text("in", lambda wait: html.name(wait[1]["op"])),
        text(f"{verb} for", lambda wait: _awaited(wait[1]["waits_for"])),
        text("group", lambda wait: html.name(wait[1]["group"])),
        Column("number", lambda wait: str(wait[1]["number"])),
        Column("bytes", lambda wait: format_bytes(wait[1]["message_bytes"]) if wait[1]["message_bytes"] else "–"),
        text("state", lambda wait: html.escape(wait[1]["state"])),
        text("line", lambda wait: html.name(wait[1]["source"] or "–")),
    )
    return table(columns, waits, stacks=True, hidden=hidden, more="more calls: <code>waiting</code> has all")


def _awaited(ranks: Sequence[int]) -> str:
    return html.rank_boxes(ranks, ranks) if ranks else "–"


def _stack(rank: int, stack: str) -> str:
    return html.details(f"rank {rank}: where it was", f'<pre class="mono">{html.escape(stack, longest=0)}</pre>')


def _mismatches(report: HangReport) -> list[str]:
    if report.mismatches.is_empty():
        return []
    columns = (
        text("group", lambda row: html.name(row["group"])),
        Column("number", lambda row: str(row["number"])),
        text("differs", _difference),
        text("ranks", lambda row: html.escape(format_ranks(row["ranks"]).partition(" ")[2])),
        text("op", lambda row: html.name(row["op"])),
        Column("bytes", lambda row: format_bytes(row["message_bytes"])),
        text("dtype", lambda row: html.name(row["dtype"] or "–")),
        text("line", lambda row: html.name(row["source"] or "–")),
        text("", lambda row: "" if row["is_harmful"] else "got through"),
    )
    return ["<h2>Called differently</h2>", table(columns, report.mismatches.iter_rows(named=True))]


def _difference(row: Row) -> str:
    return html.escape(f"root: rank {row['root']}" if row["field"] == "root" else row["field"])
