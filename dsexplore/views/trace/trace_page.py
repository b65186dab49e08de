"""A trace as text and as static HTML: what it is about, its module tree, and what was sent."""

from __future__ import annotations

from dsexplore.trace.tables import Tables
from dsexplore.trace.trace import Trace
from dsexplore.units import format_bytes
from dsexplore.views.page import html
from dsexplore.views.trace import drawings, outline
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.sections import communication_html, still_html
from dsexplore.views.trace.tree_html import tree_html

BUDGET, PAGE_BUDGET, _TWIN_BUDGET = 57_000, 1_500_000, 24_000
"""Bytes of a trace's view in a notebook, on a page of its own, and beside the explorer."""

_NOT_REAL = "Simulated ranks: counts, sizes and placements are real, computed values and times are not."
_PLAYED_ALONE = (
    "The totals above count each rank as often as it stands for others; the tree and the sections below show the "
    "{ranks} ranks in the trace alone, each once."
)


def trace_text(tables: Tables) -> str:
    """Count and bytes by op and axis: a dozen lines at most."""
    lines = [f"Trace: {_summary(tables)}"]
    totals = Trace(tables)._totals("op", "axis").head(8).iter_rows(named=True)
    lines += [
        f"  {html.plain(row['op'], 40):<16} {html.plain(row['axis'], 24) or '–':<10} {row['count']:>9,}  "
        f"{format_bytes(row['message_bytes'])}"
        for row in totals
    ]
    lines += [f"  note: {html.plain(note, 200)}" for note in tables.info.notes[:3]]
    return "\n".join(lines)


def trace_html(tables: Tables, budget: int = BUDGET) -> str:
    """The summary, the module tree, and what was sent; complete in itself.

    Args:
        tables: what was recorded.
        budget: bytes; the tree gets what the other sections leave.
    """
    codes = EventCodes(tables)
    header, sent = _header(tables), communication_html(codes)
    around = html.fragment(header + sent, outline.STYLE + drawings.STYLE)
    tree = tree_html(codes, budget - len(around.encode()))
    return html.fragment(header + tree + sent, outline.STYLE + drawings.STYLE)


def twin_html(codes: EventCodes) -> str:
    """The short static view that stands in the notebook beside the explorer: summary and tree."""
    return html.fragment(_header(codes.tables) + tree_html(codes, _TWIN_BUDGET), outline.STYLE)


def figure_html(tables: Tables, kind: str) -> str:
    """The summary, and the section that shows what the figure of that kind shows."""
    return html.fragment(_header(tables) + still_html(EventCodes(tables), kind), drawings.STYLE)


def _summary(tables: Tables) -> str:
    events, info = tables.events, tables.info
    if events.is_empty():
        return f"no collectives; {_world(tables)}"
    totals = Trace(tables).by_op().sum().row(0, named=True)
    return (
        f"{totals['count']:,} collective{'s' if totals['count'] != 1 else ''}, "
        f"{format_bytes(totals['message_bytes'])} in messages "
        f"({format_bytes(totals['wire_bytes'])} on the wire){_over(tables)}; {_world(tables)}"
        + (", simulated" if info.simulated else "")
    )


def _over(tables: Tables) -> str:
    """What totals are summed over, where a trace's ranks stand for others."""
    info = tables.info
    return f", summed over the {info.ranks_stood_for:,} ranks that are stood for" if info.stands_for else ""


def _world(tables: Tables) -> str:
    info = tables.info
    ranks = f"rank {info.ranks[0]}" if len(info.ranks) == 1 else f"{len(info.ranks)} ranks"
    mesh = f" ({html.plain(info.mesh)})" if info.mesh else ""
    return f"{ranks} of {info.world_size:,}{mesh}"


def _header(tables: Tables) -> str:
    notes = [_NOT_REAL] if tables.info.simulated else []
    if tables.info.stands_for:
        notes.append(_PLAYED_ALONE.format(ranks=len(tables.info.ranks)))
    lines = [f"<p><b>Trace</b> {html.escape(_summary(tables), 0)}</p>"]
    lines += [f'<p class="dim">{html.escape(line, 600)}</p>' for line in (*notes, *tables.info.notes)]
    return "".join(lines)
