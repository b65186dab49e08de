"""The view of `Findings`: what a program sends unnecessarily, where, and what to try."""

from __future__ import annotations

from dsexplore.analysis.findings.finding import Finding, Findings
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.trace import drawings
from dsexplore.views.view import View

MOST_FINDINGS = 30
PER = "; sizes are wire bytes, in the columns per rank and step"
NOTHING = "No rule found anything: see dsexplore.analysis.findings for what they look for."


class FindingsView(View):
    """The view of `Findings`."""

    title = "Findings"

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def text(self) -> str:
        """Return two or three lines per finding: what, where, and what to try."""
        found = self._findings
        lines = [f"Findings: {len(found)}" if len(found) else f"Findings: none. {NOTHING}"]
        for one in found[:MOST_FINDINGS]:
            where = ", ".join(html.plain(part, 80) for part in (one.module, one.source) if part)
            lines += [
                f"  {html.plain(one.why, 300)}",
                f"    {where}; {sizes(one)}",
                f"    try: {html.plain(one.change, 300)}",
            ]
        return "\n".join(
            [*lines, *([f"  … and {len(found) - MOST_FINDINGS:,} more"] if len(found) > MOST_FINDINGS else [])]
        )

    def html(self) -> str:
        """Return a table of the findings, largest saving first."""
        count = f"{len(self._findings):,}{PER if len(self._findings) else ''}"
        return html.fragment(f"<p><b>Findings</b> {count}</p>{findings_table(self._findings)}")


def sizes(one: Finding) -> str:
    """Return the bytes of a finding, per what, and how many the change would save."""
    spared = f", of which the change would spare {format_bytes(one.spare_bytes)}" if one.spare_bytes else ""
    return f"{format_bytes(one.wire_bytes)} on the wire per {one.per}{spared}"


def findings_part(found: Findings, most: int = MOST_FINDINGS, opened: bool = False, anchor: str = "") -> str:
    """Return the findings as a collapsible section; empty if there are none.

    Args:
        found: the findings.
        most: of them that are shown.
        opened: whether they are in sight at first.
        anchor: the id of the table.
    """
    table = f"<div>{findings_table(found, most)}</div>" if len(found) else ""
    return drawings.part(f"Findings: {len(found):,}{PER}", table, opened, anchor)


def findings_table(findings: Findings, most: int = MOST_FINDINGS) -> str:
    """Return a table of the first findings: why, module, line, wire bytes and what to try."""
    if not len(findings):
        return f'<p class="dim">{NOTHING}</p>'
    rows = [
        (
            html.prose(one.why, 260),
            html.parted(one.module, 90),
            html.parted(one.source or "–", 90),
            f"{format_bytes(one.wire_bytes)}" + (" once" if one.per == "rank" else ""),
            format_bytes(one.spare_bytes) if one.spare_bytes else "–",
            html.prose(one.change, 320),
        )
        for one in findings[:most]
    ]
    head = ("finding", "module", "source", "wire bytes", "to spare", "try")
    hidden = len(findings) - len(rows)
    more = f'<p class="dim">… and {hidden:,} more: <code>findings()</code> has all.</p>' if hidden else ""
    return html.table(head, rows, left=(), wrap=(0, 1, 2, 5)) + more
