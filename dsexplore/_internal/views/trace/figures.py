"""The plotly figures of a trace. Events are summed before, so a figure has hundreds of marks, not millions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsexplore._internal.analysis.step_timeline import timeline_of
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.numbered_modules import OUTSIDE
from dsexplore._internal.trace.steps import in_steps
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.views.timeline.timeline_figure import FIGURE_LANES, columns_of, timeline_spec
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.trace.byte_sizes import WIRE, bytes_summed, column_of
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figure_spec import Spec, finished, heatmap_spec, shared_prefix
from dsexplore._internal.views.trace.op_figures import bandwidth, bytes_by_op, message_sizes
from dsexplore._internal.views.trace.rank_figures import rank_matrix, sankey
from dsexplore._internal.views.trace.tally import OTHERS, Grid


@dataclass(frozen=True)
class FigureKind:
    """A kind of figure of a trace."""

    title: str
    """Its name in the explorer's list of figures."""
    spec: Callable[[Tables, str], Spec]
    """Draws the events of some tables, in ``"wire"`` or ``"message"`` bytes."""
    caption: Callable[[Tables, str], str] | None = None
    """Returns what the bytes are summed over; None if the title of an axis says so."""
    empty: str = "nothing of this kind in the trace"
    """Text in place of a figure without data."""


def trace_figure(
    tables: Tables, kind: str = "modules", window: tuple[float, float] | None = None, sizes: str = WIRE
) -> Any:
    """Return a figure of a trace as a ``plotly.graph_objects.Figure``; see `TraceView.figure` for the arguments.

    Raises:
        UsageError: No such kind or sizes.
    """
    if kind not in FIGURES:
        raise UsageError(f"figure(kind={kind!r}): no such figure; kinds are {', '.join(FIGURES)}")
    column_of(sizes)
    import plotly.graph_objects as go  # takes long to import

    chosen = FIGURES[kind]
    spec = sequence(tables, sizes, window) if kind == "sequence" else chosen.spec(tables, sizes)
    figure = go.Figure(finished(spec, chosen.empty))
    if spec["data"] and chosen.caption is not None:
        place = {"x": 1, "xref": "paper", "xanchor": "right", "y": 1, "yanchor": "top", "pad": {"t": 8}}
        figure.update_layout(title={"text": chosen.caption(tables, sizes), "font": {"size": 12}, **place})
    return figure


def modules(tables: Tables, sizes: str) -> Spec:
    """Return a heatmap of bytes: place in the model × mesh axis."""
    codes = EventCodes(tables, sizes=sizes)
    return module_heatmap(codes.places(codes.total, unknown=codes.unknown(codes.every)))


def module_heatmap(grid: Grid) -> Spec:
    """Return a heatmap of places in the model, with the prefix that all names share removed from labels."""
    shared = shared_prefix([row for row in grid.rows if row not in (OUTSIDE, OTHERS)])
    return heatmap_spec(grid, "module_axis", [row.removeprefix(shared) for row in grid.rows], grid.columns)


def sequence(tables: Tables, sizes: str, window: tuple[float, float] | None = None) -> Spec:
    """Return collectives over time, or in program order if no times were measured, in a window of the axis."""
    state = sequence_state(tables, sizes)
    if window is not None:
        state.zoom(*window)
    return timeline_spec(state)


def sequence_state(tables: Tables, sizes: str) -> TimelineState:
    """Return the timeline with a lane for each rank, group and op, of at most `FIGURE_LANES` lanes."""
    timeline = timeline_of(tables, "collective", "phase", "wire" if sizes == WIRE else "message")
    return TimelineState(timeline, columns_of(len(timeline.lanes)), most_lanes=FIGURE_LANES)


def _bytes_per_rank(tables: Tables, sizes: str) -> str:
    """Return the caption of figures with a row for each recorded rank."""
    steps = in_steps(tables.events)["step"].n_unique()
    over = f"summed over its {steps:,} steps" if steps > 1 else "in one step"
    return f"{sizes} bytes from each recorded rank {over}, without start-up"


FIGURES: dict[str, FigureKind] = {
    "modules": FigureKind("module × axis", modules, bytes_summed),
    "ops": FigureKind("op × phase", bytes_by_op),
    "sequence": FigureKind("sequence", sequence, bytes_summed),
    "ranks": FigureKind("who talks to whom", rank_matrix, _bytes_per_rank),
    "sankey": FigureKind("sankey", sankey, _bytes_per_rank),
    "sizes": FigureKind("message sizes", message_sizes),
    "bandwidth": FigureKind("bandwidth", bandwidth, empty="no durations were measured"),
}
"""{value of ``kind``: the figure}."""
