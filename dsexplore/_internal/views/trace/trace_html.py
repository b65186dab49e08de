"""A trace as text and as static HTML: headline, timeline, module tree, findings, and sections of what was sent."""

from __future__ import annotations

from dataclasses import replace

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.headline_report import report
from dsexplore._internal.analysis.step_timeline import timeline_of
from dsexplore._internal.analysis.traffic import listed
from dsexplore._internal.analysis.unnamed_axes import naming_notes
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.trace.analyses import totals
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import prose, table, text
from dsexplore._internal.views.timeline import skew_view, timeline_drawing
from dsexplore._internal.views.timeline.timeline_text import title_text
from dsexplore._internal.views.trace import drawings, headline_view, outline
from dsexplore._internal.views.trace.byte_sizes import MESSAGE, WIRE, WORDS, summed_over
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.headline_view import findings_part, headline_html
from dsexplore._internal.views.trace.sections import communication_html, experts_part, still_html
from dsexplore._internal.views.trace.time_columns import TimeColumn, measured_columns, time_columns
from dsexplore._internal.views.trace.tree_html import tree_html

BUDGET, PAGE_BUDGET, _TWIN_BUDGET = 64_000, 1_500_000, 26_000
"""Bytes of a trace's view in a notebook, as a page, and as the explorer's static twin."""

LONGEST_NOTE = 600
"""Number of characters of a note that are shown; it may contain a long path."""
_ROWS, _NOTES = 8, 3
"""Numbers of (op, axis) lines and of notes in a trace's text."""
_TIMELINE_LANES, _TIMELINE_COLUMNS = 6, 96
_SKEW_COLLECTIVES, _SKEW_LANES = 24, 6
_ROUNDED = 1e-9
"""Tolerance within which two sums of bytes are equal."""
_TWIN_STYLE = headline_view.STYLE + outline.STYLE + timeline_drawing.STYLE + skew_view.STYLE
_STYLE = _TWIN_STYLE + drawings.STYLE
_NOT_REAL = "Simulated ranks: counts, sizes and placements are real, computed values and times are not."
_REPRESENTATIVES = (
    "The totals above count each rank once for every rank that it represents; the tree and the sections below count "
    "the {ranks} ranks in the trace, each once."
)


def trace_text(headline: Headline) -> str:
    """Return the headline, and count and wire bytes by op and axis, in about a dozen lines."""
    tables = headline.tables
    lines = [f"Trace: {_summary(tables)}"]
    lines += [f"  {html.plain(sentence.text, longest=400)}" for sentence in headline.sentences]
    counted = replace(tables, events=in_steps(tables.events))
    sent = totals(counted, "op", "axis").sort(
        "wire_bytes", "op", "axis", descending=[True, False, False], nulls_last=True
    )
    unknown = {
        key: part["wire_bytes"].null_count()
        for key, part in counted.events.partition_by("op", "axis", as_dict=True).items()
    }
    if sent.height:
        steps = counted.events["step"].n_unique()
        over = f" {summed_over(tables)}"
        if tables.info.stands_for:
            over = f"{_represented_text(counted)}{f' and {steps:,} steps' if steps > 1 else ''}"
        lines.append(f"  Wire bytes{over}:")
    lines += [
        f"  {html.plain(row['op'], longest=40):<16} {html.plain(row['axis'], longest=24) or '–':<10} "
        f"{row['count']:>9,}  {format_sum(row['wire_bytes'] or 0, unknown[row['op'], row['axis']])}"
        for row in sent.head(_ROWS).iter_rows(named=True)
    ]
    if sent.height > _ROWS:
        lines.append(f"  and {sent.height - _ROWS} more: trace.by_op(), trace.by_axis()")
    lines += [
        f"  note: {html.plain(note, longest=LONGEST_NOTE)}"
        for note in (*tables.info.notes[:_NOTES], *naming_notes(tables))
    ]
    if len(tables.info.notes) > _NOTES:
        lines.append(f"  {format_count(len(tables.info.notes) - _NOTES, 'more note')}: trace.info.notes")
    return "\n".join(lines)


def trace_html(
    headline: Headline,
    budget: int = BUDGET,
    sizes: str = WIRE,
    *,
    with_answers: bool = False,
    prediction: Prediction | None = None,
) -> str:
    """Return the headline, the timeline, the module tree, the findings, and what was sent.

    Args:
        headline: headline of the trace.
        budget: size in bytes; the tree gets what the other sections leave.
        sizes: bytes to show below the headline, ``"wire"`` or ``"message"``.
        with_answers: whether to add the questions and answers of `headline_report`.
        prediction: prediction whose seconds the tree shows too; None for none.
    """
    tables = headline.tables
    codes = EventCodes(tables, sizes=sizes)
    names = dict(zip((sentence.about for sentence in headline.sentences), headline_view.anchors(headline), strict=True))
    modules = {sentence.module: names[sentence.about] for sentence in headline.sentences if sentence.about == "module"}
    figures = {kind: names[about] for about, kind in (("axes", "modules"), ("time", "sequence")) if about in names}
    sent = (
        experts_part(codes, "experts" in names, names.get("experts", ""))
        + findings_part(headline.findings, 8, True, names.get("finding", ""))
        + communication_html(codes, figures)
    )
    answers = _answers(headline) if with_answers and len(codes) else ""
    head = (
        _header(tables)
        + _headline(headline, names, codes.tree.axes, prediction)
        + answers
        + _in_time(codes, headline, names.get("skew", ""))
        + _sizes_note(codes, headline)
    )
    around = html.fragment(head + sent, _STYLE)
    tree = tree_html(codes, budget - len(around.encode()), modules, _times(codes, prediction))
    return html.with_unique_ids(html.fragment(head + tree + sent, _STYLE), names.values())


def _times(codes: EventCodes, prediction: Prediction | None) -> list[TimeColumn]:
    """Return the tree's columns of seconds."""
    return measured_columns(codes) + ([] if prediction is None else time_columns(codes.tree, prediction))


def twin_html(codes: EventCodes, headline: Headline, prediction: Prediction | None = None) -> str:
    """Return the short static view that a notebook stores next to the explorer: headline, timeline and tree."""
    summary = headline_html(headline, lambda _: "", codes.tree.axes, prediction)
    head = _header(codes.tables) + summary + _in_time(codes, headline) + _sizes_note(codes, headline)
    return html.fragment(head + tree_html(codes, _TWIN_BUDGET, None, _times(codes, prediction)), _TWIN_STYLE)


def figure_html(headline: Headline, kind: str, sizes: str = WIRE) -> str:
    """Return the headline, and the section that shows what the figure of this kind shows."""
    codes = EventCodes(headline.tables, sizes=sizes)
    head = _header(codes.tables) + headline_html(headline, lambda _: "", codes.tree.axes) + _sizes_note(codes, headline)
    return html.fragment(head + still_html(codes, kind), headline_view.STYLE + drawings.STYLE)


def _headline(headline: Headline, names: dict[str, str], axes: list[str], prediction: Prediction | None) -> str:
    """Return the headline with links; ``names``: {subject of a sentence: id of the element to link to}."""

    def link(i: int) -> str:
        sentence = headline.sentences[i]
        return headline_view.link_to(names[sentence.about], sentence)

    return headline_html(headline, link, axes, prediction)


def _in_time(codes: EventCodes, headline: Headline, anchor: str = "") -> str:
    """Return the sections of the timeline and of who waits for whom; the one that shows the verdict is open."""
    if headline.skew.late_ranks:
        return _skew(headline, anchor, opened=True) + _timeline(codes, opened=False)
    return _timeline(codes, opened=True) + _skew(headline, anchor, opened=False)


def _timeline(codes: EventCodes, opened: bool) -> str:
    """Return the section of the timeline, or ``""`` if nothing was sent."""
    if not len(codes):
        return ""
    shown = timeline_of(codes.tables, sizes="wire" if codes.kind_of_sizes == WIRE else "message")
    drawn = timeline_drawing.drawing(shown, _TIMELINE_LANES, _TIMELINE_COLUMNS)
    tag = '<details class="tl-part" open>' if opened else '<details class="tl-part">'
    return f"{tag}<summary>{html.escape(title_text(shown))}</summary>{drawn}</details>"


def _skew(headline: Headline, anchor: str, opened: bool) -> str:
    """Return the section of who waits for whom, or ``""`` if fewer than two ranks were measured."""
    drawn = skew_view.drawing(headline.skew, _SKEW_COLLECTIVES, _SKEW_LANES)
    return drawings.part("Who waits for whom", f"<div>{drawn}</div>" if drawn else "", opened, anchor)


def _answers(headline: Headline) -> str:
    """Return a table of the report's questions and answers."""
    columns = (
        text("Questions", lambda row: html.escape(row[0])),
        prose("", lambda row: html.prose(row[1], longest=1200)),
    )
    return f'<div class="answers">{table(columns, report(headline))}</div>'


_APART = {"no-grad forward": "forwards without gradients", "between steps": "what is sent between steps"}
"""{phase outside steps that few traces have: its name in sentences}."""


def _sizes_note(codes: EventCodes, headline: Headline) -> str:
    """Return the sentence on the kind of all sizes below it, and on what they are summed over."""
    if not len(codes):
        return ""
    other = MESSAGE if codes.kind_of_sizes == WIRE else WIRE
    labels = codes.facets["phase"].labels
    parts = ["start-up", *(words for phase, words in _APART.items() if phase in labels)]
    apart = f"{listed(parts)} are each in their own" if len(parts) > 1 else "start-up is in its own"
    over = f"{summed_over(codes.tables)}{_product(codes, headline)}"
    return (
        f'<p class="dim">Sizes are {WORDS[codes.kind_of_sizes]}, {over}; {apart} '
        f'column only. <code>to_html(path, sizes="{other}")</code> and <code>figure(sizes="{other}")</code> show the '
        "others.</p>"
    )


def _product(codes: EventCodes, headline: Headline) -> str:
    """Return the sum below the headline as a product of its bytes per rank and step; empty if they are not equal."""
    per_rank, many = float(headline.to_frame()["wire_bytes"].sum()), headline.ranks * headline.steps
    whole = float(in_steps(codes.tables.events)["wire_bytes"].sum())
    if codes.kind_of_sizes != WIRE or many < 2 or not whole or abs(per_rank * many - whole) > _ROUNDED * whole:
        return ""
    return f": {many:,} × {format_bytes(per_rank)} = {format_bytes(whole)}"


def _summary(tables: Tables) -> str:
    """Return number of collectives, ranks, mesh and steps, in one line."""
    events, info = tables.events, tables.info
    if events.is_empty():
        return f"no collectives; {_world(tables)}"
    totals = Trace(tables).by_op().sum().row(0, named=True)
    steps = in_steps(events)["step"].n_unique()
    return (
        format_count(totals["count"], "collective")
        + (f"{_represented_text(tables)}; " if info.stands_for else " of ")
        + _world(tables)
        + (f", {steps:,} steps" if steps > 1 else "")
        + (", simulated" if info.simulated else "")
    )


def _represented_text(tables: Tables) -> str:
    """Return the ranks that totals are summed over if the trace's ranks represent others, else ``""``."""
    info = tables.info
    return f", summed over all {info.ranks_stood_for:,} ranks" if info.stands_for else ""


def _world(tables: Tables) -> str:
    """Return the recorded ranks, the size of the world, and the mesh: ``rank 0 of 8 (dp=8)``."""
    info = tables.info
    ranks = f"rank {info.ranks[0]}" if len(info.ranks) == 1 else f"{len(info.ranks)} ranks"
    mesh = f" ({html.plain(info.mesh)})" if info.mesh else ""
    return f"{ranks} of {info.world_size:,}{mesh}"


def _header(tables: Tables) -> str:
    """Return the summary of the trace, and its notes."""
    notes = [_NOT_REAL] if tables.info.simulated else []
    if tables.info.stands_for:
        notes.append(_REPRESENTATIVES.format(ranks=len(tables.info.ranks)))
    notes += [*tables.info.notes, *naming_notes(tables)]
    return f"<p><b>Trace</b> {html.prose(_summary(tables), longest=0)}</p>{html.notes(notes, longest=LONGEST_NOTE)}"
