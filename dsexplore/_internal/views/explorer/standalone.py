"""A trace's explorer as one HTML file without kernel or network: tree, filters and timeline.

It holds the events as compressed columns of small integers, which ``standalone.js`` filters and sums in the browser.
The static view is below, and is the only visible part where no JavaScript runs.
"""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.analysis.step_timeline import Timeline, timeline_of
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.numbered_modules import OUTSIDE
from dsexplore._internal.trace.schema import OUTSIDE_STEPS
from dsexplore._internal.views.explorer.filters import FACETS, menus
from dsexplore._internal.views.explorer.module_rows import rows_of
from dsexplore._internal.views.page import html
from dsexplore._internal.views.timeline.boxes import MOST_LANES, Coded
from dsexplore._internal.views.timeline.drawn_skew import DrawnSkew
from dsexplore._internal.views.timeline.mark_colors import LATE, WAITS, colors_of
from dsexplore._internal.views.timeline.timeline_text import LEFT_TO_RIGHT, title_text
from dsexplore._internal.views.trace.byte_sizes import WIRE, summed_over
from dsexplore._internal.views.trace.event_codes import SAME_COLLECTIVE, EventCodes
from dsexplore._internal.views.trace.event_lines import EventLines, event_lines
from dsexplore._internal.views.trace.facets import facet
from dsexplore._internal.views.trace.headline_view import live_headline
from dsexplore._internal.views.trace.time_columns import TimeColumn, time_columns
from dsexplore._internal.views.trace.tree_html import tensor_text
from dsexplore._internal.views.widgets import script
from dsexplore._internal.views.widgets.explorer_widget import EXPLORER_SCRIPTS, EXPLORER_STYLE

MOST_EVENTS = 200_000
"""Number of events that a browser can filter and draw within a tenth of a second."""
_TYPES = {"i4": np.int32, "i2": np.uint16, "i1": np.uint8, "f8": np.float64}
"""{name of a type in the page: its numpy type}."""
_START = """
const place = document.getElementById("dsx-explorer");
standalone(document.getElementById("dsx-events").textContent, place).then((model) => {
  globalThis.dsexplore = model;
  document.getElementById("dsx-static").open = false;
}, (error) => { place.textContent = `The explorer cannot run in this browser: ${error}`; });
"""


def standalone_page(headline: Headline, static: str, sizes: str = WIRE, prediction: Prediction | None = None) -> str:
    """Return one HTML document with the explorer, and below it the static view.

    Args:
        headline: headline of the trace.
        static: static view of the trace as HTML.
        sizes: bytes to show, ``"wire"`` or ``"message"``.
        prediction: prediction whose seconds the tree shows too; None for none.

    Raises:
        UsageError: There are more events than a browser can filter, or no such sizes.
    """
    events = headline.tables.events.height
    if events > MOST_EVENTS:
        raise UsageError(
            f"to_html(interactive=True): {events:,} events are too many to filter in a browser; write a part of at "
            f"most {MOST_EVENTS:,}, such as trace.where(step=0), or the static page without interactive=True"
        )
    data = gzip.compress(json.dumps(_content(headline, sizes, prediction), separators=(",", ":")).encode(), 6, mtime=0)
    code = script(*EXPLORER_SCRIPTS, "standalone.js", render="null") + _START
    body = (
        f'<style>{EXPLORER_STYLE}</style><div id="dsx-explorer"></div>'
        f'<details id="dsx-static" class="dsx" open><summary>The static view: text and tables</summary>{static}'
        f'</details><script type="text/plain" id="dsx-events">{base64.b64encode(data).decode()}</script>'
        f'<script type="module">{code}</script>'
    )
    return html.page("Trace", body, scripts=True)


def _content(headline: Headline, sizes: str, prediction: Prediction | None) -> dict[str, Any]:
    """Return the data of the page, which ``standalone.js`` describes."""
    tables = headline.tables
    codes = EventCodes(tables, sizes=sizes)
    timeline = timeline_of(tables)
    kinds = event_lines(tables.events, SAME_COLLECTIVE, ["seq"])
    trigger = facet(tables.events["trigger"])
    predicted = [] if prediction is None else time_columns(codes.tree, prediction)
    rows = rows_of(codes, predicted)
    state = {
        **rows,
        "structure": _packed(np.frombuffer(rows["structure"], np.int32), "i4"),
        "lists": menus(codes),
        "sizes": sizes,
        "height": 420,
        "kinds": [],
        "headline": live_headline(headline, codes.tree.axes, prediction, with_findings=True),
    }
    sentences = [
        {
            "text": html.plain(sentence.text, longest=200),
            "rows": _packed(np.asarray(list(sentence.rows), np.int32), "i4"),
        }
        for sentence in headline.sentences
    ]
    events = {
        **_of_events(codes),
        **_of_spans(timeline),
        **_of_skew(timeline, headline.skew),
        "trigger": _packed(trigger.codes, "i4"),
        "line": _packed(kinds.line, "i4"),
    }
    return {
        "state": state,
        "events": events,
        "lines": _lines(kinds),
        "parameters": _parameters(codes),
        "sentences": sentences,
        "triggers": list(trigger.labels),
        "lanes": {**_lanes(timeline, codes), "columns": _columns(codes, predicted)},
    }


def _of_events(codes: EventCodes) -> dict[str, Any]:
    """Return the columns of events that sums and filters need."""
    events, axis = codes.tables.events, codes.facets["axis"]
    return {
        "owner": _packed(codes.owner, "i4"),
        "axis": _packed(codes.tree.columns_of(axis.labels)[axis.codes], "i1"),
        "phase": _packed(codes.facets["phase"].codes, "i1"),
        "implicit": _packed(codes.implicit, "i1"),
        **{
            name: _packed(events[f"{name}_bytes"].cast(pl.Float64).fill_null(np.nan).to_numpy(), "f8")
            for name in ("wire", "message")
        },
        "facets": {name: _packed(codes.facets[name].codes, "i4") for name in FACETS},
    }


def _of_spans(timeline: Timeline) -> dict[str, Any]:
    """Return begin, end, lane and mark of each event in the timeline, in the order of the events."""
    spans = Coded(timeline)
    order = np.argsort(spans.row, kind="stable")  # the spans are in the order of their begin
    return {
        **{name: _packed(getattr(spans, name)[order], "f8") for name in ("begin", "end")},
        "lane": _packed(np.minimum(spans.lane, MOST_LANES - 1)[order], "i2"),
        "mark": _packed(spans.mark[order], "i1"),
    }


def _of_skew(timeline: Timeline, skew: Skew) -> dict[str, Any]:
    """Return the seconds that each event waits and is late, in the order of the events; empty without times."""
    if timeline.order != "measured" or skew.arrivals.is_empty():
        return {}
    drawn = DrawnSkew(skew, Coded(timeline))
    return {"waiting": _packed(drawn.waiting[:-1], "f8"), "late_by": _packed(drawn.late_by[:-1], "f8")}


def _lanes(timeline: Timeline, codes: EventCodes) -> dict[str, Any]:
    """Return names, colors and texts of the timeline."""
    apart = f", {codes.apart} included" if codes.apart else ""
    return {
        "names": [html.plain(lane, longest=80) for lane in timeline.lanes[:MOST_LANES]],
        "marks": [color.listed for color in colors_of(timeline)],
        "skew": [color.listed for color in (WAITS, LATE)],
        "timed": timeline.order == "measured",
        "axis": f"left to right: {LEFT_TO_RIGHT[timeline.order]}",
        "title": title_text(timeline),
        "over": summed_over(codes.tables) + apart,
        "outside": OUTSIDE,
        "ties": _ties(timeline),
    }


def _packed(values: npt.NDArray[Any], kind: str) -> dict[str, str]:
    """Return an array as base64 of its bytes, with the name of its type, a key of `_TYPES`."""
    return {"type": kind, "packed": base64.b64encode(np.ascontiguousarray(values, _TYPES[kind]).tobytes()).decode()}


def _ties(timeline: Timeline) -> dict[str, dict[str, str]]:
    """Return the rows of the events that lines join: those that send, and those that receive."""
    lanes = timeline.lanes[:MOST_LANES]
    drawn = timeline.ties.filter(pl.all_horizontal(pl.col(end).is_in(lanes) for end in ("from_lane", "to_lane")))
    return {end: _packed(drawn[end].to_numpy(), "i4") for end in ("send", "receive")}


def _columns(codes: EventCodes, predicted: list[TimeColumn]) -> dict[str, Any]:
    """Return the number of columns of each kind in the tree, and the values that no filter changes."""
    phases = codes.facets["phase"].labels
    return {
        "axes": len(codes.tree.axes),
        "phases": len(phases),
        "apart": [place for place, phase in enumerate(phases) if phase in OUTSIDE_STEPS],
        "predicted": [_packed(column.seconds, "f8") for column in predicted],
        "held": [_packed(held, "f8") for held in (codes.tree.global_bytes, codes.tree.local_bytes)],
    }


def _lines(kinds: EventLines) -> list[list[Any]]:
    """Return the rows of the table of collectives, one per kind; message and wire bytes come last."""
    return [
        [
            html.printable(row["op"]),
            html.plain(row["axis"], longest=40),
            row["phase"],
            html.plain(tensor_text(row), longest=48),
            html.plain(row["cause"]),
            html.plain(row["source"].partition(" ← ")[0]),
            bool(row["implicit"]),
            row["message_bytes"],
            row["wire_bytes"],
        ]
        for row in kinds.rows.iter_rows(named=True)
    ]


def _parameters(codes: EventCodes) -> dict[str, list[list[Any]]]:
    """Return {row of the tree: the module's own parameters, each as on the first recorded rank that holds it}."""
    by_row: dict[str, list[list[Any]]] = {}
    first = codes.tables.parameters.unique("name", keep="first", maintain_order=True)
    for row in first.iter_rows(named=True):
        at = codes.tree.row_of.get(row["module"])
        cells = [
            html.plain(row["name"].removeprefix(f"{row['module']}.")),
            str(list(row["global_shape"] or ())),
            str(list(row["local_shape"] or ())),
            row["dtype"],
            html.plain(row["placements"] or "plain tensor", longest=60),
            html.plain(row["mesh"] or "–", longest=40),
            row["local_bytes"],
        ]
        by_row.setdefault(str(at), []).append(cells)
    return by_row
