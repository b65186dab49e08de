"""The selections that were visited in the explorer, for going back and forward among them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dsexplore.analysis.parameter_history import ParameterHistory
from dsexplore.views.explorer.clicked_marks import Picked
from dsexplore.views.explorer.filters import Filters

_MOST = 50
"""Selections that are kept: each may hold masks of all events."""


@dataclass(frozen=True, eq=False)
class Visit:
    """One selection, as it can be selected again."""

    filters: Filters
    picked: Picked | None
    history: ParameterHistory | None
    selected: int
    folding: bool
    extent: tuple[float, float] | None
    """Selected range of the timeline."""
    ranks: tuple[int, ...]
    """Ranks selected on the map."""
    link: tuple[str, str] | None
    """Link selected on the map."""

    def is_same(self, other: Visit) -> bool:
        """Return True if both select the same: masks are compared by identity."""
        by_value = ("selected", "folding", "extent", "ranks", "link")
        return all(
            getattr(self, one.name) == getattr(other, one.name)
            if one.name in by_value
            else getattr(self, one.name) is getattr(other, one.name)
            for one in fields(self)
        )


class Visits:
    """Visited selections in order, with the place of the present one.

    Args:
        first: what is selected at first.
    """

    def __init__(self, first: Visit) -> None:
        self._visits, self._at = [first], 0

    def note(self, visit: Visit) -> None:
        """Append a selection behind the present one, and forget those that were ahead; the same again is no visit."""
        if not visit.is_same(self._visits[self._at]):
            self._visits = [*self._visits[: self._at + 1], visit][-_MOST:]
            self._at = len(self._visits) - 1

    def move(self, by: int) -> Visit | None:
        """Go back (−1) or forward (1), and return the selection there; None at an end."""
        if not 0 <= self._at + by < len(self._visits):
            return None
        self._at += by
        return self._visits[self._at]

    @property
    def ahead(self) -> list[int]:
        """Numbers of selections that are behind and ahead: ``[back, forward]``."""
        return [self._at, len(self._visits) - 1 - self._at]
