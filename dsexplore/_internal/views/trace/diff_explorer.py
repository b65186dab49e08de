"""`DiffExplorer`: a step of two traces on one time scale; the selected events of each are a `Trace`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from IPython.display import display

from dsexplore._internal.trace.trace import Trace, TraceDiff
from dsexplore._internal.views.timeline.boxes import Mask
from dsexplore._internal.views.timeline.timeline_explorer import TimelineExplorer


class DiffExplorer(TimelineExplorer):
    """The live timeline of both traces, below the static view of their difference.

    `TimelineExplorer` describes its keys. `selection` holds the selected events of both traces, `before` and `after`
    those of one trace each, and `chosen` is the difference of these two.
    """

    def __init__(self, diff: TraceDiff, lanes: str | None = None, color_by: str | None = None) -> None:
        self.diff = diff
        super().__init__(diff.timeline(lanes, color_by))
        rows = self.timeline.spans.filter(side="A")["row"].drop_nulls()
        self._is_before: Mask = np.zeros(self.timeline.tables.events.height, bool)
        """(events,) mask of the events of the first trace."""
        self._is_before[rows.to_list()] = True

    @property
    def before(self) -> Trace:
        """Selected events of the first trace, A."""
        return self._selected_of(self.diff.before, self._is_before)

    @property
    def after(self) -> Trace:
        """Selected events of the second trace, B."""
        return self._selected_of(self.diff.after, ~self._is_before)

    @property
    def chosen(self) -> TraceDiff:
        """Difference between the selected events of A and those of B."""
        return self.before.diff(self.after)

    def _selected_of(self, trace: Trace, is_of_trace: Mask) -> Trace:
        """Return the selected events of one trace; ``is_of_trace``: (events,) mask of its events."""
        selected = self._mask()
        mask = is_of_trace if selected is None else is_of_trace & selected
        return Trace(replace(trace.tables, events=self.timeline.tables.events.filter(pl.Series(mask))))

    def _ipython_display_(self) -> None:
        display(self.diff)
        super()._ipython_display_()
