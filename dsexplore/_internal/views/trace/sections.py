"""Static sections of what was sent: implicit redistributes, then bytes by place, op, order, peer and size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import polars as pl

from dsexplore._internal.analysis.step_timeline import timeline_of
from dsexplore._internal.analysis.uneven_sends import most_sent, uneven_sends
from dsexplore._internal.trace.unknown_sizes import format_sum
from dsexplore._internal.units import format_bytes, format_count
from dsexplore._internal.views.page import html
from dsexplore._internal.views.page.theme import axis_number
from dsexplore._internal.views.timeline import timeline_drawing
from dsexplore._internal.views.trace import drawings, tally
from dsexplore._internal.views.trace.byte_sizes import WIRE, size_text
from dsexplore._internal.views.trace.event_codes import CAUSE, Causes, EventCodes
from dsexplore._internal.views.trace.rank_flows import between_ranks

MOST_CAUSES = 20
_MOST_EXPERTS = 64
_LANES, _COLUMNS = 8, 96
"""Maximal numbers of lanes and columns in the drawing of the sequence."""
_CAUSE_NAME = 90
"""Number of characters of a name in the table of causes, which has four such columns."""


def communication_html(codes: EventCodes, anchors: Mapping[str, str] | None = None) -> str:
    """Return all sections that have something to show.

    Args:
        codes: events of the trace.
        anchors: {kind of figure: id of the section that shows the same}.
    """
    if not len(codes):
        return ""
    of_section = {OF_FIGURE[kind]: anchor for kind, anchor in (anchors or {}).items()}
    return causes_part(codes.causes(codes.every, MOST_CAUSES), False) + "".join(
        drawings.part(*section(codes), anchor=of_section.get(section, ""))
        for section in dict.fromkeys(OF_FIGURE.values())
    )


def still_html(codes: EventCodes, kind: str) -> str:
    """Return the section that shows what the figure of this kind shows, expanded."""
    if not len(codes):
        return ""
    title, body = OF_FIGURE[kind](codes)
    return drawings.part(title, body, True) or f'<p class="dim">{html.escape(title)}: nothing to show.</p>'


def causes_part(causes: Causes, opened: bool, clickable: bool = False) -> str:
    """Return the table of implicit redistributes under its title, or ``""`` if there are none.

    Args:
        causes: rows of the table.
        opened: whether the section is open at first.
        clickable: whether rows can be clicked and reached with Tab.
    """
    title = f"Redistributes that the program did not ask for: {causes.events:,}"
    return drawings.part(title, f"<div>{_causes_html(causes, clickable)}</div>" if causes.lines else "", opened)


def _causes_html(causes: Causes, clickable: bool) -> str:
    rows = []
    for row in causes.shown:
        names = _names_of_cause(*(row[column] for column in CAUSE))
        rows.append((*names[:-1], f"{row['count']:,}", format_bytes(row["bytes"]), names[-1]))
    marks = [f' data-cause="{row["line"]}" tabindex="0"' for row in causes.shown] if clickable else ()
    head = ("module", "cause", "collective", "axis", "phase", "count", "bytes", "source")
    hidden = causes.lines - len(causes.shown)
    more = f'<p class="dim">… and {hidden:,} more.</p>' if hidden > 0 else ""
    return html.table(head, rows, left=(2, 3, 4), wrap=(0, 1, 7), attributes=marks) + more


@lru_cache(maxsize=4096)  # a filter changes the numbers of a line, and its names never
def _names_of_cause(module: str, op: str, axis: str, phase: str, cause: str, source: str) -> tuple[str, ...]:
    """Return the text cells of a row of the table of causes: module, cause, op, axis, phase, source."""
    return (
        html.parted(module, _CAUSE_NAME),
        html.parted(cause or "–", _CAUSE_NAME),
        html.name(op, 40),
        html.name(axis or "–", 40),
        html.escape(phase),
        html.parted(source.partition(" ← ")[0] or "–", _CAUSE_NAME),
    )


def _places(codes: EventCodes) -> tuple[str, str]:
    grid = codes.places(codes.total, unknown=codes.unknown(codes.every))
    return "Bytes by module and axis", f"<div>{drawings.heatmap(grid, size_text, 'module')}</div>"


def _ops(codes: EventCodes) -> tuple[str, str]:
    totals = tally.op_by_phase(codes.tables.events, codes.column)
    phases = codes.facets["phase"].labels
    ops = totals.partition_by("op", as_dict=True, maintain_order=True)
    sums = {op: int(part["bytes"].sum()) for (op,), part in ops.items()}
    missing = {op: int(part["unknown"].sum()) for (op,), part in ops.items()}
    top, rows = max(sums.values()) or 1, []
    for (op,), part in ops.items():
        sizes = dict(part.select("phase", "bytes").iter_rows())
        unknown = dict(part.select("phase", "unknown").iter_rows())
        split = [(phase, sizes[phase]) for phase in phases if phase in sizes]
        spoken = ", ".join(f"{phase} {format_sum(size, unknown[phase])}" for phase, size in split)
        bar, count = drawings.phase_bar(split, top), f"{part['count'].sum():,}"
        rows.append((html.name(op, 40), bar, count, format_sum(sums[op], missing[op]), html.escape(spoken, 0)))
    table = html.table(("op", "bytes", "count", "all phases", "by phase"), rows, bar=1)
    return "Bytes by op and phase", f"<div>{drawings.phase_key(phases)}{table}</div>"


def _sequence(codes: EventCodes) -> tuple[str, str]:
    shown = timeline_of(codes.tables, "collective", "phase", "wire" if codes.kind_of_sizes == WIRE else "message")
    along = "in time" if shown.order == "measured" else f"in {shown.order}"
    return f"Sequence, {along}", f"<div>{timeline_drawing.drawing(shown, _LANES, _COLUMNS)}</div>"


def _peers(codes: EventCodes) -> tuple[str, str]:
    title = "Who talks to whom"
    flows = between_ranks(codes.tables, column=codes.column)
    if not flows.receivers:
        return title, ""
    note = (
        f'<p class="dim">{codes.kind_of_sizes.title()} bytes from each recorded rank in its steps, start-up left out; '
        "a collective's are shared equally among its group's other ranks. "
        "Peers that get the same are one column: what each of them gets.</p>"
    )
    hidden = f'<p class="dim">{flows.hidden:,} more rows and columns are not drawn.</p>' if flows.hidden else ""
    if codes.unsized is not None:
        without = format_count(int(codes.unsized.sum()), "collective")
        hidden += f'<p class="dim">Without {without} of unknown size.</p>'
    return title, f"<div>{note}{drawings.heatmap(flows.grid(), format_bytes, 'to rank')}{hidden}</div>"


def experts_part(codes: EventCodes, opened: bool, anchor: str = "") -> str:
    """Return who is sent most by all_to_alls with uneven splits, or ``""`` if there are none.

    Args:
        codes: events of the trace.
        opened: whether the section is open at first.
        anchor: id of its body.
    """
    uneven = uneven_sends(codes.tables)
    worst = most_sent(uneven)
    if worst is None:
        return ""
    parts = []
    for (axis,), of_axis in uneven.partition_by("axis", as_dict=True, maintain_order=True).items():
        most = of_axis["bytes"][0]
        rows = [
            (str(rank), html.stacked_bar([(f"a{axis_number(axis)}", "", size or 0, "")], most or 1), format_bytes(size))
            for rank, size in of_axis.head(_MOST_EXPERTS).select("rank", "bytes").iter_rows()
        ]
        hidden = of_axis.height - len(rows)
        more = f'<p class="dim">{format_count(hidden, "more rank")}.</p>' if hidden > 0 else ""
        parts.append(f"<p>{html.axis_key(axis)}</p>{html.table(('rank', '', 'received'), rows, bar=1)}{more}")
    note = "Message bytes that the recorded ranks send each rank by all_to_alls with uneven splits, in all their steps."
    body = f'<div>{"".join(parts)}<p class="dim">{note}</p></div>'
    return drawings.part(str(worst), body, opened, anchor)


def _sizes(codes: EventCodes) -> tuple[str, str]:
    messages = tally.message_sizes(codes.tables.events)
    ops = sorted(set(messages["op"]))
    sizes = messages["size"].unique().sort(nulls_last=True).to_list()
    top = max((int(part["count"].sum()) for part in messages.partition_by("size")), default=1)
    rows = []
    for size in sizes:
        part = messages.filter(pl.col("size").eq_missing(pl.lit(size, pl.Int64)))
        count = int(part["count"].sum())
        bar = f'<div class="bar"><span style="background:var(--dsx-dim);width:{100 * count / top:.2f}%"></span></div>'
        by_op = ", ".join(f"{op} {n:,}" for op, n in part.select("op", "count").iter_rows())
        rows.append(
            (
                f"{format_bytes(size)} –" if size else tally.size_range(size),
                f"{count:,}",
                f'<div style="width:160px">{bar}</div>',
                html.escape(by_op),
            )
        )
    return (
        f"Message sizes of {format_count(len(ops), 'op')}",
        f"<div>{html.table(('message', 'count', '', 'ops'), rows, left=(2, 3))}</div>",
    )


def _bandwidth(codes: EventCodes) -> tuple[str, str]:
    title = "Bus bandwidth by message size (median)"
    bandwidths = tally.bus_bandwidth(codes.tables.events)
    if bandwidths.is_empty():
        return title, ""
    rows = [
        (html.name(row["op"]), format_bytes(row["size"]), f"{row['count']:,}", f"{row['gb_per_s']:.3g} GB/s")
        for row in bandwidths.iter_rows(named=True)
    ]
    return title, f"<div>{html.table(('op', 'message from', 'count', 'busbw'), rows)}</div>"


OF_FIGURE: dict[str, Callable[[EventCodes], tuple[str, str]]] = {
    "modules": _places,
    "ops": _ops,
    "sequence": _sequence,
    "ranks": _peers,
    "sankey": _peers,
    "sizes": _sizes,
    "bandwidth": _bandwidth,
}
"""{kind of figure: function that returns title and body of the section that shows the same}, in page order."""
