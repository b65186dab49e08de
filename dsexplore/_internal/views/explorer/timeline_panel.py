"""The explorer's timeline of the filtered events; a range of it can be selected as a filter."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.analysis.step_timeline import LaneKind, Timeline, timeline_of, with_sizes
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.views.explorer.selection import Pick
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.trace.pivot import Mask

PART = "timeline"
"""Key of this part in `Filters.picks`."""
_COLUMNS, _MOST = 480, 800
"""Number of columns into which many spans are summed, and of spans that are drawn individually."""
LANE_KINDS: tuple[str, ...] = get_args(LaneKind)
"""Values of ``lanes`` that a user can choose."""


class TimelinePanel:
    """The timeline of a trace in one window.

    Args:
        tables: tables of the trace.
        sizes: bytes to show, ``"wire"`` or ``"message"``.
        kind: (events,) Kind of each event, see `EventCodes.kind`; None for no kinds.
        skew: skew of the trace; None to draw neither waiting nor late ranks.
    """

    def __init__(
        self, tables: Tables, sizes: str, kind: npt.NDArray[np.int32] | None = None, skew: Skew | None = None
    ) -> None:
        self._tables, self._sizes, self._kind, self._skew = tables, sizes, kind, skew
        self._made: TimelineState | None = None
        self._lanes: str | None = None

    @property
    def state(self) -> TimelineState:
        """State of the drawing, built when first needed."""
        if self._made is None:
            made = timeline_of(self._tables, self._lanes, None, self._sizes)  # type: ignore[arg-type]  # of get_args
            self._made = self._state_of(made)
        return self._made

    def use(self, sizes: str) -> None:
        """Show ``"wire"`` or ``"message"`` bytes from now on."""
        self._sizes = sizes
        if self._made is not None:
            self._remake(with_sizes(self._made.timeline, sizes))  # type: ignore[arg-type]  # checked by the widget's list

    def arrange(self, lanes: str) -> None:
        """Use one lane per phase, axis, module, op or rank, as ``lanes`` says."""
        if lanes in LANE_KINDS:
            self._lanes = lanes
            self._remake(timeline_of(self._tables, lanes, None, self._sizes))  # type: ignore[arg-type]  # of get_args

    def _remake(self, timeline: Timeline) -> None:
        """Draw another timeline in the same window."""
        before = self.state
        self._made = self._state_of(timeline)
        self._made.window = before.window

    def _state_of(self, timeline: Timeline) -> TimelineState:
        return TimelineState(timeline, _COLUMNS, _MOST, self._kind, skew=self._skew)

    def prepare(self) -> None:
        """Compute in advance what the first filter would wait for."""
        self.state.prepare()

    def drawn(self, mask: Mask, kinds: Mask | None = None) -> dict[str, Any]:
        """Return what the browser draws for the events in the mask; ``kinds``: see `TimelineState.show_events`."""
        self.state.show_events(None if mask.all() else mask, kinds)
        return {**self.state.drawn(), "kinds": list(LANE_KINDS), "kind": self._lanes or self._first_kind}

    @property
    def _first_kind(self) -> str:
        """What the lanes are if no kind was chosen."""
        return "rank" if self.state.timeline.lanes[:1] and self.state.timeline.lanes[0].startswith("rank ") else "phase"

    def range(self, begin: float, end: float) -> Pick:
        """Pick the events of a range, given in the unit of the timeline."""
        title = f"{self.state.range_text(begin, end)} of the timeline"
        return Pick(self.state.events_between(begin, end), title, extent=(begin, end))

    def brushed(self, mask: Mask, pick: Pick | None) -> dict[str, Any]:
        """Return the value of the trait ``brushed`` for the picked range; ``mask``: mask of the selected events."""
        state = self.state
        state.chosen = None if pick is None else pick.extent
        return {"brush": state.brush(), "status": state.describe(mask) if state.chosen is not None else ""}
