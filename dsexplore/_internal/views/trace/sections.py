"""Static sections of a trace: implicit redistributes, then bytes by module, op, order, peer and message size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import polars as pl

from dsexplore._internal.analysis.step_timeline import timeline_of
from dsexplore._internal.analysis.uneven_sends import most_sent, uneven_sends
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.html_table import Column, bar, prose, table, text
from dsexplore._internal.views.page.theme import axis_number
from dsexplore._internal.views.timeline import timeline_drawing
from dsexplore._internal.views.trace import drawings, tally
from dsexplore._internal.views.trace.byte_sizes import WIRE, size_text
from dsexplore._internal.views.trace.event_codes import Causes, EventCodes
from dsexplore._internal.views.trace.rank_flows import between_ranks

MOST_CAUSES = 20
_MOST_EXPERTS = 64
_LANES, _COLUMNS = 8, 96
"""Maximal numbers of lanes and columns in the drawing of the sequence."""
_CAUSE_NAME = 90
"""Number of characters of a name in the table of causes, which has four such columns."""


def communication_html(codes: EventCodes, anchors: Mapping[str, str] | None = None) -> str:
    """Return all sections that have something to show; ``anchors``: {kind of figure: id of its section}."""
    if not len(codes):
        return ""
    anchor_of = {OF_FIGURE[kind]: anchor for kind, anchor in (anchors or {}).items()}
    causes = causes_part(codes.causes(codes.every, MOST_CAUSES), opened=False)
    sections = dict.fromkeys(OF_FIGURE.values())
    return causes + "".join(drawings.part(*section(codes), anchor=anchor_of.get(section, "")) for section in sections)


def still_html(codes: EventCodes, kind: str) -> str:
    """Return the section that shows what the figure of this kind shows, expanded."""
    if not len(codes):
        return ""
    title, body = OF_FIGURE[kind](codes)
    return drawings.part(title, body, opened=True) or f'<p class="dim">{html.escape(title)}: nothing to show.</p>'


def causes_part(causes: Causes, opened: bool, clickable: bool = False) -> str:
    """Return the section of implicit redistributes, or ``""`` if there are none.

    Args:
        causes: rows of its table.
        opened: whether the section is open at first.
        clickable: whether rows can be clicked, and reached with Tab.
    """
    title = f"Redistributes that the program did not ask for: {causes.events:,}"
    return drawings.part(title, f"<div>{_causes_html(causes, clickable)}</div>" if causes.lines else "", opened)


def _causes_html(causes: Causes, clickable: bool) -> str:
    """Return the table of implicit redistributes."""
    columns = (
        prose("module", lambda row: _parted(row["module"])),
        prose("cause", lambda row: _parted(row["cause"])),
        text("collective", lambda row: html.name(row["op"], longest=40)),
        text("axis", lambda row: html.name(row["axis"] or "–", longest=40)),
        text("phase", lambda row: html.escape(row["phase"])),
        Column("count", lambda row: f"{row['count']:,}"),
        Column("bytes", lambda row: format_bytes(row["bytes"])),
        prose("source", lambda row: _parted(row["source"].partition(" ← ")[0])),
    )
    marks = [f' data-cause="{row["line"]}" tabindex="0"' for row in causes.shown] if clickable else ()
    return table(columns, causes.shown, attributes=marks, hidden=causes.lines - len(causes.shown))


@lru_cache(maxsize=4096)  # a filter changes the numbers of a row, but never its names
def _parted(name: str) -> str:
    return html.parted(name or "–", longest=_CAUSE_NAME)


# Each of these returns the title and the body of a section; the body is empty if there is nothing to show.


def _places(codes: EventCodes) -> tuple[str, str]:
    grid = codes.places(codes.total, unknown=codes.unknown(codes.every))
    return "Bytes by module and axis", f"<div>{drawings.heatmap(grid, size_text, 'module')}</div>"


def _ops(codes: EventCodes) -> tuple[str, str]:
    """Return a bar per op, split by phase."""
    totals = tally.op_by_phase(codes.tables.events, codes.column)
    phases = codes.facets["phase"].labels
    parts = {op: part for (op,), part in totals.partition_by("op", as_dict=True, maintain_order=True).items()}
    sums = {op: int(part["bytes"].sum()) for op, part in parts.items()}
    missing = {op: int(part["unknown"].sum()) for op, part in parts.items()}
    top = max(sums.values()) or 1

    def split(op: str, column: str) -> list[tuple[str, int]]:
        numbers = dict(parts[op].select("phase", column).iter_rows())
        return [(phase, numbers[phase]) for phase in phases if phase in numbers]

    def spoken(op: str) -> str:
        unknown = dict(split(op, "unknown"))
        return ", ".join(f"{phase} {format_sum(size, unknown[phase])}" for phase, size in split(op, "bytes"))

    columns = (
        text("op", lambda op: html.name(op, longest=40)),
        bar("bytes", lambda op: drawings.phase_bar(split(op, "bytes"), top)),
        Column("count", lambda op: f"{parts[op]['count'].sum():,}"),
        Column("all phases", lambda op: format_sum(sums[op], missing[op])),
        Column("by phase", lambda op: html.escape(spoken(op), longest=0)),
    )
    return "Bytes by op and phase", f"<div>{drawings.phase_key(phases)}{table(columns, parts)}</div>"


def _sequence(codes: EventCodes) -> tuple[str, str]:
    shown = timeline_of(codes.tables, "collective", "phase", "wire" if codes.kind_of_sizes == WIRE else "message")
    along = "in time" if shown.order == "measured" else f"in {shown.order}"
    return f"Sequence, {along}", f"<div>{timeline_drawing.drawing(shown, _LANES, _COLUMNS)}</div>"


def _peers(codes: EventCodes) -> tuple[str, str]:
    """Return a matrix of bytes from recorded ranks to their peers."""
    title = "Who talks to whom"
    flows = between_ranks(codes.tables, column=codes.column)
    if not flows.receivers:
        return title, ""
    note = (
        f"{codes.kind_of_sizes.title()} bytes from each recorded rank in its steps, without start-up. The other ranks "
        "of a group get equal parts of a collective. Peers that get the same share a column, which shows the bytes of "
        "each."
    )
    hidden = html.note(f"{flows.hidden:,} more rows and columns are not drawn." if flows.hidden else "")
    if codes.unsized is not None:
        count = int(codes.unsized.sum())
        without, verb = format_count(count, "collective"), "is" if count == 1 else "are"
        hidden += html.note(f"{without} of unknown size {verb} not counted.")
    return title, f"<div>{html.note(note)}{drawings.heatmap(flows.grid(), format_bytes, 'to rank')}{hidden}</div>"


def experts_part(codes: EventCodes, opened: bool, anchor: str = "") -> str:
    """Return the section of the bytes that ranks receive by all_to_alls with uneven splits; ``""`` without any."""
    uneven = uneven_sends(codes.tables)
    worst = most_sent(uneven)
    if worst is None:
        return ""
    parts = []
    for (axis,), ranks in uneven.partition_by("axis", as_dict=True, maintain_order=True).items():
        parts.append(f"<p>{html.axis_key(axis)}</p>{_received_table(axis, ranks)}")
    note = "Message bytes that the recorded ranks send each rank by all_to_alls with uneven splits, in all their steps."
    return drawings.part(str(worst), f"<div>{''.join(parts)}{html.note(note)}</div>", opened, anchor)


def _received_table(axis: str, ranks: pl.DataFrame) -> str:
    """Return a row per rank with the bytes that it receives; ``ranks``: those of an axis, most bytes first."""
    most, axis_class = ranks["bytes"][0] or 1, f"a{axis_number(axis)}"
    columns = (
        text("rank", lambda row: str(row["rank"])),
        bar("", lambda row: html.stacked_bar([(axis_class, "", row["bytes"] or 0, "")], most)),
        Column("received", lambda row: format_bytes(row["bytes"])),
    )
    hidden = ranks.height - _MOST_EXPERTS
    more = html.note(f"{format_count(hidden, 'more rank')}." if hidden > 0 else "")
    return table(columns, ranks.head(_MOST_EXPERTS).iter_rows(named=True)) + more


def _sizes(codes: EventCodes) -> tuple[str, str]:
    """Return a bar per power of two with the number of messages of that size."""
    messages = tally.message_sizes(codes.tables.events)
    ops = sorted(set(messages["op"]))
    by_size = {size: part for (size,), part in messages.partition_by("size", as_dict=True, maintain_order=True).items()}
    counts = {size: int(part["count"].sum()) for size, part in by_size.items()}
    top = max(counts.values(), default=1)

    def drawn(size: int | None) -> str:
        look = f"background:var(--dsx-dim);width:{100 * counts[size] / top:.2f}%"
        return f'<div style="width:160px"><div class="bar"><span style="{look}"></span></div></div>'

    def ops_of(size: int | None) -> str:
        counts_of_ops = by_size[size].select("op", "count").iter_rows()
        return html.escape(", ".join(f"{op} {count:,}" for op, count in counts_of_ops))

    columns = (
        Column("message", lambda size: f"{format_bytes(size)} –" if size else tally.size_range(size)),
        Column("count", lambda size: f"{counts[size]:,}"),
        text("", drawn),
        text("ops", ops_of),
    )
    return f"Message sizes of {format_count(len(ops), 'op')}", f"<div>{table(columns, by_size)}</div>"


def _bandwidth(codes: EventCodes) -> tuple[str, str]:
    """Return the median bus bandwidth by op and message size, if times were measured."""
    title = "Bus bandwidth by message size (median)"
    bandwidths = tally.bus_bandwidth(codes.tables.events)
    if bandwidths.is_empty():
        return title, ""
    columns = (
        text("op", lambda row: html.name(row["op"])),
        Column("message from", lambda row: format_bytes(row["size"])),
        Column("count", lambda row: f"{row['count']:,}"),
        Column("busbw", lambda row: f"{row['gb_per_s']:.3g} GB/s"),
    )
    return title, f"<div>{table(columns, bandwidths.iter_rows(named=True))}</div>"


OF_FIGURE: dict[str, Callable[[EventCodes], tuple[str, str]]] = {
    "modules": _places,
    "ops": _ops,
    "sequence": _sequence,
    "ranks": _peers,
    "sankey": _peers,
    "sizes": _sizes,
    "bandwidth": _bandwidth,
}
"""{kind of figure: function that returns the section with the same content}, in the order of the page."""
