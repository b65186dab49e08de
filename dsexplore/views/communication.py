"""What was sent, at rest: implicit redistributes first, then bytes by place, op, order, peer and size."""

from __future__ import annotations

import polars as pl

from dsexplore.trace.model import Tables
from dsexplore.units import format_bytes, format_seconds
from dsexplore.views import draw, html, tally
from dsexplore.views.palette import PHASES

MOST_CAUSES = 20
_CAUSE_NAME = 90
"""Characters of a name in the table of causes, which has four of them side by side."""


def communication_html(tables: Tables) -> str:
    """All sections for which the trace holds something."""
    events = tables.events
    if events.is_empty():
        return ""
    return "".join(
        (
            _causes(events),
            _places(events),
            _ops(events),
            _sequence(events),
            _peers(tables),
            _sizes(events),
            _bandwidth(events),
        )
    )


def causes_html(events: pl.DataFrame) -> str:
    """The table of implicit redistributes; empty where there is none."""
    found = tally.implicit(events)
    if found.is_empty():
        return ""
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
    more = f'<p class="dim">… and {found.height - MOST_CAUSES:,} more.</p>' if found.height > MOST_CAUSES else ""
    return html.table(head, rows, left=(2, 3, 4), wrap=(0, 1, 7)) + more


def _causes(events: pl.DataFrame) -> str:
    count = int(events["implicit"].sum())
    body = causes_html(events)
    return draw.part(
        f"Redistributes that the program did not ask for: {count:,}", f"<div>{body}</div>" if body else "", True
    )


def _places(events: pl.DataFrame) -> str:
    grid = tally.module_by_axis(events)
    return draw.part("Bytes by module and axis", f"<div>{draw.heatmap(grid, format_bytes, 'module')}</div>")


def _ops(events: pl.DataFrame) -> str:
    totals = tally.op_by_phase(events)
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
    return draw.part(
        "Bytes by op and phase",
        f"<div>{draw.phase_key(phases)}{draw.stacked_bars(rows, ('op', 'bytes', 'count', 'sum', 'by phase'))}</div>",
    )


def _sequence(events: pl.DataFrame) -> str:
    found = tally.lanes(events)
    span = (
        format_seconds((found.last - found.first) / 1e9)
        if found.unit == "ns"
        else f"{int(found.last - found.first) + 1:,} collectives"
    )
    along = "in time" if found.unit == "ns" else "in program order"
    phases = [phase for phase in PHASES if any(phase in row for row in found.phases)]
    note = f'<p class="dim">{span}, left to right {along}; taller is more bytes.</p>'
    body = note + draw.phase_key(phases) + draw.phase_strip(found) + draw.lanes_html(found)
    return draw.part(f"Sequence, {along}", f"<div>{body}</div>")


def _peers(tables: Tables) -> str:
    grid = tally.between_ranks(tables)
    if not grid.columns:
        return ""
    note = (
        '<p class="dim">The least on the wire from each recorded rank; '
        "a group's traffic is shared equally among its other ranks. Peers that get the same, each, are one column.</p>"
    )
    return draw.part("Who talks to whom", f"<div>{note}{draw.heatmap(grid, format_bytes, 'to rank')}</div>")


def _sizes(events: pl.DataFrame) -> str:
    found = tally.message_sizes(events)
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
    return draw.part(
        f"Message sizes of {len(ops)} op{'s' if len(ops) != 1 else ''}",
        f"<div>{html.table(('message', 'count', '', 'ops'), rows, left=(2, 3))}</div>",
    )


def _bandwidth(events: pl.DataFrame) -> str:
    found = tally.bus_bandwidth(events)
    if found.is_empty():
        return ""
    rows = [
        (html.name(row["op"]), format_bytes(row["size"]), f"{row['count']:,}", f"{row['gb_per_s']:.3g} GB/s")
        for row in found.iter_rows(named=True)
    ]
    return draw.part(
        "Bus bandwidth by message size (median)",
        f"<div>{html.table(('op', 'message from', 'count', 'busbw'), rows)}</div>",
    )
