"""The figure of the sequence: bytes in program order or in time, a lane per rank, group and op, the phases on top."""

from __future__ import annotations

import numpy as np

from dsexplore.trace.tables import Tables
from dsexplore.units import format_bytes
from dsexplore.views.page.theme import BLUE, PHASES, SKY, phase_mark, tint
from dsexplore.views.trace.figure_labels import unique
from dsexplore.views.trace.figure_spec import EMPTY, Spec, byte_colours, json_numbers, shades
from dsexplore.views.trace.lanes import Lanes, lane_names, lanes, phase_runs

SEQUENCE_BINS, SEQUENCE_LANES = 160, 24

_BLUES = [[0.0, tint(SKY, 0.4)], [1.0, BLUE]]
"""From few bytes to many: the least is visible, and the most stands out, on white and on black."""
_STRIP: Spec = {"type": "category", "anchor": "x", "automargin": True, "showgrid": False, "zeroline": False}
_MOST_LETTERS = 40


def sequence(
    tables: Tables, window: tuple[float, float] | None = None, size: str = "wire_bytes", top: float = 0.0
) -> Spec:
    """Bytes in program order (or in time where measured): a lane per rank, group and op, binned, phases on top."""
    found = lanes(tables.events, SEQUENCE_BINS, SEQUENCE_LANES, window, size)
    if not found.labels:
        return EMPTY
    scale = 1e6 if found.unit == "ns" else 1.0
    places = ((found.first + (np.arange(found.bytes.shape[1]) + 0.5) * found.width) / scale).tolist()
    names = unique(lane_names(found))
    values = np.where(found.counts > 0, shades(found.bytes.astype(np.float64)), np.nan)
    marks = {
        "type": "heatmap",
        "x": places,
        "y": names,
        "z": json_numbers(values),
        "text": _hover_texts(found),
        "colorscale": _BLUES,
        **byte_colours(max(top, float(found.bytes.max(initial=0)))),
        "ygap": 2,
        "meta": {"kind": "sequence"},
        "hovertemplate": "%{y}<br>%{text}<extra></extra>",
        "hoverongaps": False,
    }
    room = 1 / (len(names) + 3)
    strip, letters = _phase_strip(found, places)
    title = "ms since the first" if found.unit == "ns" else "program order (seq)"
    more = f", {found.hidden:,} more lanes not drawn" if found.hidden else ""
    layout = {
        "annotations": letters,
        "xaxis": {"title": {"text": f"{title}{more}"}},
        "yaxis": {"autorange": "reversed", "type": "category", "domain": [0, 1 - 1.4 * room]},
        "yaxis2": {**_STRIP, "domain": [1 - room, 1]},
    }
    return {"data": [strip, marks], "layout": layout}


def _hover_texts(found: Lanes) -> list[list[str]]:
    """The text of each bin, lane by lane: its phase, how many collectives and how many bytes; empty where none is."""
    rows = zip(found.phases, found.counts.tolist(), found.bytes.tolist(), strict=True)
    return [
        [
            f"{phase} · {count:,} × · {format_bytes(size)}" if count else ""
            for phase, count, size in zip(*row, strict=True)
        ]
        for row in rows
    ]


def _phase_strip(found: Lanes, places: list[float]) -> tuple[Spec, list[Spec]]:
    """The lane of phases and its labels: each bin in the colour of its phase, and the phase's letter on stretches of
    three bins or more."""
    order = list(PHASES)
    runs = phase_runs(found)
    codes = [order.index(phase) if phase in order else len(order) - 1 if phase else None for phase, _, _ in runs]
    z = [code for code, (_, first, end) in zip(codes, runs, strict=True) for _ in range(first, end)]
    strip = {
        "type": "heatmap",
        "x": places,
        "y": ["phase"],
        "yaxis": "y2",
        "z": [z],
        "text": [[phase for phase, first, end in runs for _ in range(first, end)]],
        "zmin": 0,
        "zmax": len(order) - 1,
        "colorscale": [[i / (len(order) - 1), phase_mark(phase).colour] for i, phase in enumerate(order)],
        "showscale": False,
        "ygap": 2,
        "meta": {"kind": "phases"},
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
    }
    wide = sorted((run for run in runs if run[0] and run[2] - run[1] >= 3), key=lambda run: run[1] - run[2])
    letters = [
        {
            "x": (places[first] + places[end - 1]) / 2,
            "y": "phase",
            "yref": "y2",
            "text": f"<b>{phase_mark(phase).letter}</b>",
            "showarrow": False,
            "font": {"color": phase_mark(phase).ink, "size": 11},
        }
        for phase, first, end in sorted(wide[:_MOST_LETTERS], key=lambda run: run[1])
    ]
    return strip, letters
