"""The selections that were visited in the explorer, for going back and forward among them."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dsexplore.analysis.parameter_history import ParameterHistory
from dsexplore.views.explorer.clicked_marks import Picked
from dsexplore.views.explorer.drawing import Drawing
from dsexplore.views.explorer.filters import Filters, Passed, choices

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
            getattr(self, field.name) == getattr(other, field.name)
            if field.name in by_value
            else getattr(self, field.name) is getattr(other, field.name)
            for field in fields(self)
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


class History:
    """The explorer's way back and forward.

    Args:
        drawing: parts of the explorer, which also hold what is selected in each.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        self._visits = Visits(self._present())

    def _present(self) -> Visit:
        drawing = self._drawing
        chosen, page, (ranks, link) = drawing.chosen, drawing.widget, drawing.map.marked
        return Visit(
            chosen.passed.filters,
            chosen.picked,
            chosen.history,
            page.selected,
            page.folding,
            drawing.lanes.extent,
            ranks,
            link,
        )

    def note(self) -> None:
        """Note the selection, if it has changed, for going back to it."""
        self._visits.note(self._present())
        self._drawing.widget.visits = self._visits.ahead

    def go(self, by: int) -> None:
        """Select again what was selected before (−1), or before going back (1)."""
        visit, drawing = self._visits.move(by), self._drawing
        if visit is None:
            return
        chosen, filters = drawing.chosen, visit.filters
        drawing.quietly(chosen=choices(chosen.codes, filters), pattern=filters.module, implicit=filters.implicit)
        drawing.quietly(selected=visit.selected, folding=visit.folding)
        drawing.lanes.mark(visit.extent)
        drawing.map.mark(visit.ranks, visit.link)
        chosen.history = visit.history
        chosen.passed, chosen.picked = Passed(chosen.codes, filters), visit.picked
        drawing.everything()
