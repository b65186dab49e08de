"""The views of a headline (a bar of the bytes of a step by axis, and sentences) and of findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import polars as pl

from dsexplore._internal.analysis.findings.finding import NO_FINDING, Finding, Findings
from dsexplore._internal.analysis.headline import Headline, Sentence
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.trace.schema import NO_AXIS
from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, prose, table
from dsexplore._internal.views.page.style import AXIS_STYLE
from dsexplore._internal.views.page.theme import axis_mark, axis_number
from dsexplore._internal.views.trace import drawings
from dsexplore._internal.views.trace.module_tree import OTHER_AXES, drawn_axes
from dsexplore._internal.views.view import View

MOST_FINDINGS = 30
PER = "; wire bytes per rank and step"
"""Text after the number of findings."""


class FindingsView(View):
    """The view of `Findings`."""

    title = "Findings"

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def text(self) -> str:
        """Return two or three lines per finding: what, where, and what to try."""
        findings = self._findings
        lines = [f"Findings: {len(findings)}" if len(findings) else f"Findings: none. {NO_FINDING}"]
        for finding in findings[:MOST_FINDINGS]:
            where = ", ".join(html.plain(part, longest=80) for part in (finding.module, finding.source) if part)
            lines += [
                f"  {html.plain(finding.why, longest=300)}",
                f"    {where}; {sizes(finding)}",
                f"    try: {html.plain(finding.change, longest=400)}",
            ]
        return "\n".join(
            [*lines, *([f"  … and {len(findings) - MOST_FINDINGS:,} more"] if len(findings) > MOST_FINDINGS else [])]
        )

    def html(self) -> str:
        """Return a table of the findings, largest saving first."""
        count, verdict = f"{len(self._findings):,}", ""
        if len(self._findings):
            count, verdict = f"{count}{PER}", html.verdict(self._findings.verdict())
        return html.fragment(f"<p><b>Findings</b> {count}</p>{verdict}{findings_table(self._findings)}")


def sizes(finding: Finding) -> str:
    """Return the bytes of a finding, and how many the change would save: ``4 KiB on the wire per rank``."""
    saved = f"; the change would save {format_bytes(finding.spare_bytes)}" if finding.spare_bytes else ""
    return f"{format_bytes(finding.wire_bytes)} on the wire per {finding.per}{saved}"


def findings_part(findings: Findings, most: int = MOST_FINDINGS, opened: bool = False, anchor: str = "") -> str:
    """Return the first findings as a collapsible section, empty if there are none; ``anchor``: id of the table."""
    body = f"<div>{findings_table(findings, most)}</div>" if len(findings) else ""
    return drawings.part(f"Findings: {len(findings):,}{PER}", body, opened, anchor)


def findings_table(findings: Findings, most: int = MOST_FINDINGS, attributes: Iterable[str] = ()) -> str:
    """Return a table of the first ``most`` findings; ``attributes``: attributes of each row's tag."""
    if not len(findings):
        return html.note(NO_FINDING)
    columns = (
        prose("finding", lambda finding: html.prose(finding.why, longest=260)),
        prose("module", lambda finding: html.parted(finding.module, longest=90)),
        prose("source", lambda finding: html.parted(finding.source or "–", longest=90)),
        Column("wire bytes", _wire_cell),
        Column("saves", lambda finding: format_bytes(finding.spare_bytes) if finding.spare_bytes else "–"),
        prose("try", lambda finding: html.prose(finding.change, longest=400).replace("; or, ", ";<br>or, ")),
    )
    hidden, more = len(findings) - most, "more: <code>findings()</code> has all."
    return table(columns, findings[:most], attributes=attributes, stacks=True, hidden=hidden, more=more)


def _wire_cell(finding: Finding) -> str:
    """Return the bytes of a finding; a dash for one about wrong results."""
    if finding.is_wrong:
        return "–"
    return format_bytes(finding.wire_bytes) + (" once" if finding.per == "rank" else "")


STYLE = (
    """
.dsx .headline{margin:2px 0 8px;max-width:1000px}
.dsx .headline .bar{height:18px;border:1px solid var(--dsx-line)}
.dsx .headline .bar span{line-height:17px}
.dsx .headline p{font-size:calc(var(--dsx-size)*14/13);margin:.25em 0;overflow-wrap:anywhere}
.dsx .headline .named{display:inline-block}
.dsx.dsx .headline .key{font-size:var(--dsx-tiny)}
.dsx .answers{max-width:1000px;margin-bottom:8px;container-type:inline-size}
@container (max-width:520px){.dsx.dsx .answers tr>*{display:block;white-space:normal;border:0}
.dsx.dsx .answers td.l:first-child{font-weight:600}}
.dsx .headline .to{font-size:var(--dsx-small);color:var(--dsx-link);background:none;border:0;padding:0;
white-space:nowrap;text-decoration:underline;cursor:pointer;font-family:inherit}
"""
    + AXIS_STYLE
)

_LINK_TEXTS = {
    "skew": "who waits",
    "axes": "by module and axis",
    "experts": "by rank",
    "module": "in the tree",
    "finding": "findings",
    "time": "in time",
}


class HeadlineView(View):
    """The view of a `Headline`."""

    title = "Headline"

    def __init__(self, headline: Headline) -> None:
        self._headline = headline

    def text(self) -> str:
        """Return the lines of the headline."""
        return "\n".join(html.plain(line, longest=500) for line in self._headline.lines())

    def html(self) -> str:
        """Return the bar and the sentences."""
        return html.fragment(headline_html(self._headline, lambda _: ""), STYLE)


def headline_html(
    headline: Headline, link: Callable[[int], str], axes: Sequence[str] = (), prediction: Prediction | None = None
) -> str:
    """Return the bar and the sentences; only a verdict if the program sends nothing.

    Args:
        headline: headline of a trace.
        link: returns, for the index of a sentence, the HTML of a link to its rows.
        axes: axes in the order of their columns in the tree next to it; by default most bytes first.
        prediction: prediction whose seconds are shown next to the bytes; None for none.
    """
    if not headline.sentences:
        return html.verdict(headline.verdict())
    first, *others = [(sentence.text, link(i)) for i, sentence in enumerate(headline.sentences)]
    verdict = html.verdict(first[0], longest=400, more=first[1])
    more = "".join(f"<p>{html.prose(text, longest=400)}{link_html}</p>" for text, link_html in others)
    return f'<div class="headline">{verdict}{_bar(headline, axes, prediction)}{more}{_predicted(prediction)}</div>'


def anchors(headline: Headline) -> list[str]:
    """Return the id of the element that each sentence links to."""
    return [html.content_id("sentence", i, sentence.text) for i, sentence in enumerate(headline.sentences)]


def link_to(anchor: str, sentence: Sentence) -> str:
    """Return a link to an element of the same page; empty for a sentence about nothing that has an element."""
    if sentence.about not in _LINK_TEXTS:
        return ""
    return f' <a class="to" href="#{anchor}">{_LINK_TEXTS[sentence.about]}</a>'


def live_headline(
    headline: Headline, axes: Sequence[str], prediction: Prediction | None, *, with_findings: bool
) -> str:
    """Return the bar and the sentences, each with a button that filters by its events, and optionally all findings."""

    def button(i: int) -> str:
        return f' <button class="to" data-sentence="{i}">show</button>' if len(headline.sentences[i].rows) else ""

    findings = findings_part(headline.findings) if with_findings else ""
    return f'<div class="dsx">{headline_html(headline, button, axes, prediction)}{findings}</div>'


def _predicted(prediction: Prediction | None) -> str:
    """Return a sentence on the predicted step time and its exposed part; empty without a prediction."""
    if prediction is None:
        return ""
    exposed = prediction.by_axis().group_by("axis").agg(pl.col("exposed").sum()).sort("exposed", "axis")
    most = f", most of it on {exposed['axis'][-1] or NO_AXIS}" if exposed["exposed"].sum() > 0 else ""
    sentence = (
        f"A step takes {prediction.step} on {prediction.cluster.title} (rank {prediction.rank}); for "
        f"{prediction.exposed} of it compute waits for collectives{most}. All times here are predicted, not measured."
    )
    return f'<p><span class="tag">predicted</span> {html.escape(sentence, longest=400)}</p>'


def _times(headline: Headline, prediction: Prediction | None) -> tuple[str, dict[str, str]]:
    """Return the label of the times shown next to the bytes, and {axis: time}; both empty if no times are known."""
    if prediction is not None:
        sums = prediction.by_axis().group_by("axis").agg(pl.col("communication", "exposed").sum())
        predicted = {
            axis or NO_AXIS: f"{format_seconds(communication)} ({format_seconds(exposed)})"
            for axis, communication, exposed in sums.iter_rows()
        }
        return " and predicted time (exposed part)", predicted
    rows = headline.to_frame().filter(pl.col("ms") > 0).select("axis", "ms")
    measured = {axis or NO_AXIS: format_seconds(ms / 1e3) for axis, ms in rows.iter_rows()}
    return " and measured time" if measured else "", measured


def _bar(headline: Headline, axes: Sequence[str], prediction: Prediction | None) -> str:
    """Return a bar of wire bytes per rank and step, a segment per axis, above its numbers and times if known."""
    rows = headline.to_frame().select("axis", "wire_bytes").filter(pl.col("wire_bytes") > 0).rows()
    if not rows:
        return ""
    shown = dict.fromkeys([*axes] or drawn_axes([axis or NO_AXIS for axis, _ in rows]), 0.0)
    for axis, size in rows:
        name = axis or NO_AXIS
        shown[name if name in shown else OTHER_AXES] += size
    parts, texts, (label, times) = [], [], _times(headline, prediction)
    for axis, size in shown.items():
        if size:
            time = f", {times[axis]}" if axis in times else ""
            parts.append((f"a{axis_number(axis)}", html.escape(axis_mark(axis).letter), size, ""))
            texts.append(f'<span class="named">{html.axis_key(axis, longest=40)} {format_bytes(size)}{time}</span>')
    bar = html.stacked_bar(parts, sum(shown.values()))
    return (
        f'<div role="img" aria-label="wire bytes of a rank in a step, by axis">{bar}</div>'
        '<p class="dim" style="font-size:var(--dsx-small)">'
        f"Wire bytes{label} per rank and step: {' · '.join(texts)}</p>"
    )
