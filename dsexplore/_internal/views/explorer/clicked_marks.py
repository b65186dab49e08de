"""Find the events behind a clicked mark of a figure, or a clicked row of the table of causes, and their title."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.views.explorer.selection import Pick
from dsexplore._internal.views.trace import tally
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figure_spec import Spec
from dsexplore._internal.views.trace.figures import Ends, cell_ends, flow_ends
from dsexplore._internal.views.trace.pivot import Mask
from dsexplore._internal.views.trace.tally import OTHERS


@dataclass(frozen=True)
class ClickedFigure:
    """The figure that was clicked, and the events that it was drawn from."""

    codes: EventCodes
    spec: Spec
    mask: Mask
    """Events that the figure shows."""


def pick_at(shown: ClickedFigure, click: dict[str, Any]) -> Pick | None:
    """Return the events of a clicked mark, or None if no event belongs to it."""
    find = _FINDERS.get(str(click.get("kind")))
    named = click.get("customdata") or find not in (_place, _op, _size)
    selection = find(shown, click) if find and named else None
    return selection if selection is not None and selection.mask.any() else None


def _place(shown: ClickedFigure, click: dict[str, Any]) -> Pick | None:
    place, axis = (str(name) for name in click["customdata"])
    drawn = [cell for row in shown.spec["data"][0]["customdata"] for cell in row]
    others = {row for row, _ in drawn}, {column for _, column in drawn}
    named = [None if name == OTHERS else name for name in (place, axis)]
    at = shown.codes.at_place(named[0], named[1], others)
    return Pick(shown.mask & at, f"{place} on {axis}")


def _op(shown: ClickedFigure, click: dict[str, Any]) -> Pick | None:
    op, phase = (str(name) for name in click["customdata"])
    return Pick(shown.mask & shown.codes.mask({"op": op, "phase": phase}), f"{op}, {phase}")


def _size(shown: ClickedFigure, click: dict[str, Any]) -> Pick | None:
    op, low = click["customdata"]
    sizes = shown.codes.tables.events["message_bytes"]
    nbytes = sizes.fill_null(-1).to_numpy()
    within = nbytes < 0 if low is None else (nbytes >= int(low)) & (nbytes < max(2 * int(low), 1))
    return Pick(shown.mask & within & shown.codes.mask({"op": str(op)}), f"{op}, {tally.size_range(low)}")


def _cell(shown: ClickedFigure, click: dict[str, Any]) -> Pick | None:
    """Return the events sent from the rank of a matrix row to the ranks of a column."""
    row, column = (int(number) for number in click["index"])
    return _between(shown, cell_ends(_drawn(shown), row, column, shown.codes.column))


def _flow(shown: ClickedFigure, click: dict[str, Any]) -> Pick | None:
    """Return the events of a link or a node of the Sankey diagram."""
    return _between(shown, flow_ends(_drawn(shown), int(click["index"][0]), shown.codes.column))


def _drawn(shown: ClickedFigure) -> Tables:
    """Return the trace's tables with only the events that the figure was drawn from."""
    tables = shown.codes.tables
    return replace(tables, events=tables.events.filter(pl.Series(shown.mask)))


def _between(shown: ClickedFigure, ends: Ends | None) -> Pick | None:
    if ends is None:
        return None
    tables = shown.codes.tables
    sent = tables.events.select(tally.sent_between(tables, ends.senders, ends.receivers).fill_null(False).alias("sent"))
    return Pick(shown.mask & sent["sent"].to_numpy(), ends.title)


def _cause(shown: ClickedFigure, click: dict[str, Any]) -> Pick | None:
    mask, title = shown.codes.cause(int(click["index"][0]))
    return Pick(shown.mask & mask, title)


_FINDERS: dict[str, Callable[[ClickedFigure, dict[str, Any]], Pick | None]] = {
    "module_axis": _place,
    "op_phase": _op,
    "size": _size,
    "rank_peer": _cell,
    "flow": _flow,
    "cause": _cause,
}
