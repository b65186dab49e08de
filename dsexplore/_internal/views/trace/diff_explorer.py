"""`DiffExplorer`: a step of two traces on one time scale; what is selected of each is a `Trace`."""

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

    See `TimelineExplorer` for its keys. `selection` has the selected events of both traces; `before` and `after`
    have those of each, and `chosen` is their diff.
    """

    def __init__(self, diff: TraceDiff, lanes: str | None = None, color_by: str | None = None) -> None:
        self.diff = diff
        super().__init__(diff.timeline(lanes, color_by))
        rows = self.timeline.spans.filter(side="A")["row"].drop_nulls()
        self._of_before: Mask = np.zeros(self.timeline.tables.events.height, bool)
        self._of_before[rows.to_list()] = True

    @property
    def before(self) -> Trace:
        """Selected events of the first trace, A."""
        return self._side(self.diff.before, self._of_before)

    @property
    def after(self) -> Trace:
        """Selected events of the second trace, B."""
        return self._side(self.diff.after, ~self._of_before)

    @property
    def chosen(self) -> TraceDiff:
        """Difference between the selected events of A and those of B."""
        return self.before.diff(self.after)

    def _side(self, whole: Trace, side_mask: Mask) -> Trace:
        mask = self._mask()
        kept = side_mask if mask is None else side_mask & mask
        return Trace(replace(whole.tables, events=self.timeline.tables.events.filter(pl.Series(kept))))

    def _ipython_display_(self) -> None:
        display(self.diff)
        super()._ipython_display_()
