"""Selections in the explorer: a range of the timeline, ranks or a link of the map, a parameter, a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from dsexplore.analysis.parameter_history import parameter_history
from dsexplore.errors import UsageError
from dsexplore.views.explorer import map_panel, timeline_panel
from dsexplore.views.explorer.chosen import Chosen
from dsexplore.views.explorer.clicked_marks import Picked
from dsexplore.views.explorer.map_panel import MapPanel
from dsexplore.views.explorer.timeline_panel import TimelinePanel

PARAMETER = "parameter"
"""Key of the table of a parameter in `Filters.picks`."""
SENTENCE = "sentence"
"""Key of the headline's sentences in `Filters.picks`."""
Pick = tuple[str, Picked | None]
"""(part of the explorer, what is selected in it); None clears the part's selection."""


class Picks:
    """Finds the events of a selection, and highlights it in the part where it was made.

    Args:
        lanes: panel of the timeline.
        world: panel of the map.
        chosen: selection, which stores the followed parameter.
    """

    def __init__(self, lanes: TimelinePanel, world: MapPanel, chosen: Chosen) -> None:
        self._lanes, self._map, self._chosen = lanes, world, chosen

    def between(self, begin: float, end: float) -> Pick:
        """Return the events that overlap a range of the timeline, given in its unit.

        Raises:
            UsageError: the range is empty.
        """
        if not begin < end:
            raise UsageError(f"between({begin!r}, {end!r}): the end must be later than the begin")
        return timeline_panel.PART, self._lanes.range(begin, end)

    def with_ranks(self, ranks: tuple[int, ...]) -> Pick:
        """Return the events in which one of ``ranks`` takes part together with a recorded rank.

        Raises:
            UsageError: no such rank.
        """
        return map_panel.PART, self._map.with_ranks(ranks)

    def parameter(self, name: str) -> Pick:
        """Return the events of one parameter in a step, and list them in order below the tree.

        Raises:
            UsageError: no parameter has this name or ends with it, or several end with it.
        """
        codes = self._chosen.codes
        history = parameter_history(codes.tables, name)
        rows = history.moments["row"].drop_nulls().to_list()
        self._chosen.history = history
        return PARAMETER, Picked.of_rows(len(codes), rows, f"what is sent for {history.name} in a step")

    def drop(self, part: str) -> Pick:
        """Clear the selection of a part."""
        self.forget(part)
        return part, None

    def forget(self, *parts: str) -> None:
        """Stop drawing the selections of ``parts``, or of all parts if none is named."""
        for part in parts or (timeline_panel.PART, map_panel.PART, PARAMETER):
            if part == timeline_panel.PART:
                self._lanes.mark(None)
            elif part == map_panel.PART:
                self._map.mark()
            elif part == PARAMETER:
                self._chosen.history = None

    def asked(self, event: dict[str, Any]) -> Pick:
        """Return what a browser message selects; its ``type`` is one of `ASKED`."""
        return self.ASKED[event["type"]](self, event)

    ASKED: ClassVar[dict[str, Callable[[Picks, dict[str, Any]], Pick]]] = {
        "brush": lambda self, event: self.between(*self._lanes.state.range_of(event)),
        "unbrush": lambda self, _: self.drop(timeline_panel.PART),
        "cell": lambda self, event: self.with_ranks(self._map.cell(str(event["place"]))),
        "link": lambda self, event: (map_panel.PART, self._map.over(*self._map.link(int(event["index"])))),
        "parameter": lambda self, event: self.parameter(str(event["name"])),
        "rank": lambda self, event: self.with_ranks((int(event["rank"]),)),
        "drop": lambda self, event: self.drop(str(event["part"])),
    }
    """{type of a browser message: function that finds what it selects}."""
