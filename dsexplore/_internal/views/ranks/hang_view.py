"""The view of a hang report: its verdict, who waits in which call for whom, calls that differ, and stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dsexplore._internal.analysis.hangs.call_text import short_line
from dsexplore._internal.analysis.hangs.hang_report import HangReport
from dsexplore._internal.units import format_bytes, format_ranks
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, table, text
from dsexplore._internal.views.view import ResultView

_MOST_STACKS = 64

_SAME_CALL = ("op", "group", "number", "message_bytes", "state", "source", "ranks", "waits_for")
"""Rows of `HangReport.waiting` that agree in these columns share one line."""

Row = dict[str, Any]


class _Wait(NamedTuple):
    """Ranks that wait in the same call for the same ranks."""

    ranks: list[int]
    call: Row
    """The row of `HangReport.waiting` of one of these ranks."""


class HangView(ResultView[HangReport]):
    """The view of a `HangReport`."""

    title = "Hang"
    STYLE = html.RANKS_STYLE
    MOST_ROWS = 40

    def text(self) -> str:
        """Return the verdict, a line for each call in which ranks wait, and the notes."""
        waits = _waits(self.result)
        lines = [html.plain(self.result.verdict(), longest=0)]
        lines += [f"  {_wait_text(wait)}" for wait in waits[: self.MOST_ROWS]]
        if len(waits) > self.MOST_ROWS:
            lines.append(f"  … and {len(waits) - self.MOST_ROWS} more calls: see waiting")
        lines += [f"note: {html.plain(note, longest=0)}" for note in self.result.notes]
        return "\n".join(lines)

    def head(self) -> str:
        """Return which rank is to blame, and the conclusion, as HTML."""
        conclusion = self.result.conclusion
        sentence = html.verdict(conclusion[:1].upper() + conclusion[1:], longest=0)
        return f"<p>{_headline(self.result)}</p>{sentence}"

    def body(self, most: int) -> str:
        """Return the calls in which ranks wait, the calls that differ, the stacks, and the notes as HTML."""
        report, waits = self.result, _waits(self.result)
        parts = [_waiting_table(waits[:most], report, hidden=len(waits) - most)] if waits else []
        parts += _mismatches(report)
        parts += [_stack(rank, stack) for rank, stack in list(report.stacks.items())[:_MOST_STACKS]]
        return "".join([*parts, html.notes(report.notes)])


def _headline(report: HangReport) -> str:
    """Return whether ranks hang or failed, and which one is to blame: ``Hang: rank 3``."""
    if report.reason == "none":
        return "No hang"
    what = "Failure" if _is_over(report) else "Hang"
    if report.culprits:
        return f"{what}: {format_ranks(report.culprits)}"
    return f"{what}: the evidence does not say which rank is to blame"


def _is_over(report: HangReport) -> bool:
    """Return True if no rank waits any more, because all calls failed."""
    return set(report.waiting["state"]) == {"failed"}


def _waits(report: HangReport) -> list[_Wait]:
    """Return the waiting ranks, grouped by call and awaited ranks."""
    waits: dict[tuple[str, ...], _Wait] = {}
    for row in report.waiting.iter_rows(named=True):
        key = tuple(str(row[name]) for name in _SAME_CALL)
        waits.setdefault(key, _Wait([], row)).ranks.append(row["rank"])
    return list(waits.values())


def _wait_text(wait: _Wait) -> str:
    """Return one line: ``rank 0 waits in all_reduce (collective 2 of group 0, 4 KiB, a.py:3; started) for rank 1``."""
    ranks, call = wait
    line = f", {short_line(call['source'])}" if call["source"] else ""
    size = f", {format_bytes(call['message_bytes'])}" if call["message_bytes"] else ""
    awaited = f" for {format_ranks(call['waits_for'])}" if call["waits_for"] else ""
    present = "waits" if len(ranks) == 1 else "wait"
    verb = "waited" if call["state"] == "failed" else present
    where = f"collective {call['number']} of group {call['group']}{size}{line}; {call['state']}"
    return html.plain(f"{format_ranks(ranks)} {verb} in {call['op']} ({where}){awaited}", longest=0)


def _waiting_table(waits: Sequence[_Wait], report: HangReport, hidden: int) -> str:
    """Return a row per call in which ranks wait; ``hidden`` is the number of further calls."""
    verb = "waited" if _is_over(report) else "wait"
    columns = (
        text("ranks", lambda wait: html.rank_boxes(wait.ranks, report.culprits)),
        text("in", lambda wait: html.name(wait.call["op"])),
        text(f"{verb} for", lambda wait: _awaited(wait.call["waits_for"])),
        text("group", lambda wait: html.name(wait.call["group"])),
        Column("number", lambda wait: str(wait.call["number"])),
        Column("bytes", lambda wait: format_bytes(wait.call["message_bytes"]) if wait.call["message_bytes"] else "–"),
        text("state", lambda wait: html.escape(wait.call["state"])),
        text("line", lambda wait: html.name(wait.call["source"] or "–")),
    )
    return table(columns, waits, stacks=True, hidden=hidden, more="more calls: <code>waiting</code> has all")


def _awaited(ranks: Sequence[int]) -> str:
    return html.rank_boxes(ranks, ranks) if ranks else "–"


def _stack(rank: int, stack: str) -> str:
    return html.details(f"rank {rank}: where it was", f'<pre class="mono">{html.escape(stack, longest=0)}</pre>')


def _mismatches(report: HangReport) -> list[str]:
    """Return a title and a table of the calls that differ between ranks; empty if none do."""
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
    """Return the field in which a call differs, with the rank if it is the root."""
    return html.escape(f"root: rank {row['root']}" if row["field"] == "root" else row["field"])
