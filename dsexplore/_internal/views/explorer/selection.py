"""`Selection`: all that is selected in the explorer, as one value that can be selected again.

`Filters` holds the conditions of the controls and the picks of other parts (a range of the timeline, ranks of the map,
a parameter, a finding). A `Selection` adds the selected row of the tree and the clicked mark. `Visits` keeps the
selections before and after the present one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsexplore._internal.analysis.parameter_history import ParameterHistory
from dsexplore._internal.views.trace.pivot import Mask

_MOST_VISITS = 50
"""Selections that are kept: each may hold masks of all events."""


@dataclass(frozen=True, eq=False)
class Pick:
    """The events of a clicked mark, or of a pick in one part of the explorer, with a title.

    The other fields say what was picked, because that part draws it as selected.
    """

    mask: Mask
    title: str
    extent: tuple[float, float] | None = None
    """Range of the timeline, in its unit."""
    ranks: tuple[int, ...] = ()
    """Ranks of the map."""
    link: tuple[str, str] | None = None
    """(axis, level) of a link of the map."""
    history: ParameterHistory | None = None
    """Parameter that is followed through a step."""

    @classmethod
    def of_rows(cls, events: int, rows: Any, title: str, history: ParameterHistory | None = None) -> Pick:
        """Build a pick of the events at positions ``rows``, out of ``events`` in all."""
        mask: Mask = np.zeros(events, bool)
        mask[rows] = True
        return cls(mask, title, history=history)


@dataclass(frozen=True)
class Filters:
    """Conditions that events must meet to be shown."""

    facets: Mapping[str, Any] = field(default_factory=dict)
    """{phase, op, axis, group, step or rank: one value or several}."""
    module: str = ""
    """Shell pattern of module names, as in `Trace.where`; empty for every module."""
    implicit: bool = False
    """True to show only redistributes that the program did not ask for."""
    picks: Mapping[str, Pick] = field(default_factory=dict)
    """{part of the explorer (timeline, map, parameters, …): its pick}."""


@dataclass(frozen=True, eq=False)
class Selection:
    """Filters, narrowed to the selected row of the tree or to the clicked mark."""

    filters: Filters = field(default_factory=Filters)
    row: int = -1
    """Selected row of the module tree, −1 for none."""
    folding: bool = True
    """True if the tree shows repeated modules as one row."""
    mark: Pick | None = None
    """Clicked mark, whose events are then selected instead of those of the row; None for none."""

    def is_same(self, other: Selection) -> bool:
        """Return True if both select the same. Filters and marks hold masks, so they are compared by identity."""
        same_events = self.filters is other.filters and self.mark is other.mark
        return same_events and (self.row, self.folding) == (other.row, other.folding)


class Visits:
    """The visited selections in order, and the present one among them."""

    def __init__(self, first: Selection) -> None:
        self._visits, self._at = [first], 0

    def note(self, selection: Selection) -> None:
        """Add a selection after the present one, instead of those that followed it; the same again is no new visit."""
        if not selection.is_same(self._visits[self._at]):
            self._visits = [*self._visits[: self._at + 1], selection][-_MOST_VISITS:]
            self._at = len(self._visits) - 1

    def move(self, by: int) -> Selection | None:
        """Go back (−1) or forward (1), and return the selection there; None at an end."""
        if not 0 <= self._at + by < len(self._visits):
            return None
        self._at += by
        return self._visits[self._at]

    @property
    def ahead(self) -> list[int]:
        """[number of selections before the present one, number after it]."""
        return [self._at, len(self._visits) - 1 - self._at]
