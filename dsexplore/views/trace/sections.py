"""What was sent, at rest: implicit redistributes first, then bytes by place, op, order, peer and size."""

from __future__ import annotations

import polars as pl

from dsexplore.trace.trace import Tables
from dsexplore.units import format_bytes, format_seconds
from dsexplore.views.page import html
from dsexplore.views.page.theme import PHASES
from dsexplore.views.trace import drawings, tally
from dsexplore.views.trace.lanes import lanes

MOST_CAUSES = 20
_CAUSE_NAME = 90
"""Characters of a name in the table of causes, which has four of them side by side."""


def communication_html(tables: Tables) -> str:
    """All sections for which the trace holds something; the first one is open."""
    if tables.events.is_empty():
        return ""
    return _causes(tables) + "".join(drawings.part(*section(tables)) for section in _SECTIONS)


def still_html(tables: Tables, kind: str) -> str:
    """The section that shows what the figure of that kind shows, open."""
    if tables.events.is_empty():
        return ""
    title, body = _OF_FIGURE[kind](tables)
    return drawings.part(title, body, True) or f'<p class="dim">{html.escape(title)}: nothing to show.</p>'


def causes_html(found: pl.DataFrame, every: int = 0) -> str:
    """The table of implicit redistributes, given as `tally.implicit` counts them; empty where there is none.

    Where they have a ``line`` too, a row can be clicked and is reached with Tab.

    Args:
        found: all of them, or the first.
        every: how many there are, where that is more.
    """
    if found.is_empty():
        return ""
    marks = [f' data-cause="{line}" tabindex="0"' for line in found["line"]] if "line" in found.columns else ()
    rows = [
        (
            html.name(row["module"], _CAUSE_NAME),
            html.name(row["cause"] or "–", _CAUSE_NAME),
            html.name(row["op"], 40),
            html.name(row["axis"] or "–", 40),
            html.escape(row["phase"]),
            f"{row['count']:,}",
            format_bytes(row["message_bytes"]),
            html.name(row["source"].partition(" ← ")[0] or "–", _CAUSE_NAME),
        )
        for row in found.head(MOST_CAUSES).iter_rows(named=True)
    ]
    head = ("module", "cause", "collective", "axis", "phase", "count", "bytes", "source")
    hidden = max(found.height, every) - MOST_CAUSES
    more = f'<p class="dim">… and {hidden:,} more.</p>' if hidden > 0 else ""
    return html.table(head, rows, left=(2, 3, 4), wrap=(0, 1, 7), attributes=marks) + more


def _causes(tables: Tables) -> str:
    events = tables.events
    count = int(events["implicit"].sum())
    body = causes_html(tally.implicit(events))
    return drawings.part(
        f"Redistributes that the program did not ask for: {count:,}", f"<div>{body}</div>" if body else "", True
    )


def _places(tables: Tables) -> tuple[str, str]:
    grid = tally.module_by_axis(tables.events)
    return "Bytes by module and axis", f"<div>{drawings.heatmap(grid, format_bytes, 'module')}</div>"


def _ops(tables: Tables) -> tuple[str, str]:
    totals = tally.op_by_phase(tables.events)
    order = {phase: i for i, phase in enumerate(PHASES)}
    rows = []
    for (op,), part in totals.partition_by("op", as_dict=True, maintain_order=True).items():
        split = sorted(
            ((str(p), float(b)) for p, b in part.select("phase", "message_bytes").iter_rows()),
            key=lambda x: order.get(x[0], 9),
        )
        spoken = ", ".join(f"{phase} {format_bytes(size)}" for phase, size in split)
        rows.append(
            (
                str(op),
                split,
                [f"{part['count'].sum():,}", format_bytes(int(part["message_bytes"].sum())), html.escape(spoken, 0)],
            )
        )
    phases = [phase for phase in PHASES if phase in set(totals["phase"])]
    bars = drawings.stacked_bars(rows, ("op", "bytes", "count", "sum", "by phase"))
    return "Bytes by op and phase", f"<div>{drawings.phase_key(phases)}{bars}</div>"


def _sequence(tables: Tables) -> tuple[str, str]:
    found = lanes(tables.events)
    span = (
        format_seconds((found.last - found.first) / 1e9)
        if found.unit == "ns"
        else f"{int(found.last - found.first) + 1:,} collectives"
    )
    along = "in time" if found.unit == "ns" else "in program order"
    phases = [phase for phase in PHASES if any(phase in row for row in found.phases)]
    note = f'<p class="dim">{span}, left to right {along}; taller is more bytes.</p>'
    body = note + drawings.phase_key(phases) + drawings.phase_strip(found) + drawings.lanes_html(found)
    return f"Sequence, {along}", f"<div>{body}</div>"


def _peers(tables: Tables) -> tuple[str, str]:
    title = "Who talks to whom"
    found = tally.between_ranks(tables)
    if not found.receivers:
        return title, ""
    note = (
        '<p class="dim">The least on the wire from each recorded rank; '
        "a group's traffic is shared equally among its other ranks. Peers that get the same, each, are one column.</p>"
    )
    hidden = f'<p class="dim">{found.hidden:,} more rows and columns are not drawn.</p>' if found.hidden else ""
    return title, f"<div>{note}{drawings.heatmap(found.grid(), format_bytes, 'to rank')}{hidden}</div>"


def _sizes(tables: Tables) -> tuple[str, str]:
    found = tally.message_sizes(tables.events)
    ops = sorted(set(found["op"]))
    sizes = sorted(set(found["size"]))
    top = max((int(part["count"].sum()) for part in found.partition_by("size")), default=1)
    rows = []
    for size in sizes:
        part = found.filter(pl.col("size") == size)
        count = int(part["count"].sum())
        bar = f'<div class="bar"><span class="p0" style="width:{100 * count / top:.2f}%"></span></div>'
        by_op = ", ".join(f"{op} {n:,}" for op, n in part.select("op", "count").iter_rows())
        rows.append(
            (
                f"{format_bytes(size)} –" if size else "empty",
                f"{count:,}",
                f'<div style="width:160px">{bar}</div>',
                html.escape(by_op),
            )
        )
    return (
        f"Message sizes of {len(ops)} op{'s' if len(ops) != 1 else ''}",
        f"<div>{html.table(('message', 'count', '', 'ops'), rows, left=(2, 3))}</div>",
    )


def _bandwidth(tables: Tables) -> tuple[str, str]:
    title = "Bus bandwidth by message size (median)"
    found = tally.bus_bandwidth(tables.events)
    if found.is_empty():
        return title, ""
    rows = [
        (html.name(row["op"]), format_bytes(row["size"]), f"{row['count']:,}", f"{row['gb_per_s']:.3g} GB/s")
        for row in found.iter_rows(named=True)
    ]
    return title, f"<div>{html.table(('op', 'message from', 'count', 'busbw'), rows)}</div>"


_SECTIONS = (_places, _ops, _sequence, _peers, _sizes, _bandwidth)
_OF_FIGURE = {
    "modules": _places,
    "ops": _ops,
    "sequence": _sequence,
    "ranks": _peers,
    "sankey": _peers,
    "sizes": _sizes,
    "bandwidth": _bandwidth,
}
