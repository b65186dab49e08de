"""The explorer's filter bar: controls on one side, which events they let through on the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ipywidgets as widgets

from dsexplore.views import html
from dsexplore.views.cells import Mask
from dsexplore.views.codes import FACETS, EventCodes

_MOST_OPTIONS = 500


@dataclass(frozen=True)
class Filters:
    """Which events are looked at."""

    facets: Mapping[str, Any] = field(default_factory=dict)
    """phase, op, axis, group, step or rank → a value or several."""
    module: str = ""
    """A shell pattern, as in `Trace.where`; empty for every module."""
    implicit: bool = False
    """Only redistributes that the program did not ask for."""

    def mask(self, codes: EventCodes) -> Mask:
        """The events that pass."""
        mask = codes.mask(self.facets, self.implicit)
        return mask & codes.in_module(self.module) if self.module else mask


class FilterBar:
    """Drop-down lists of what the trace holds, a pattern, a check box; a facet with one value only needs no list."""

    def __init__(self, codes: EventCodes, on_change: Callable[[Filters], None], on_clear: Callable[[], None]) -> None:
        self._codes, self._on_change, self._quiet = codes, on_change, False
        self.lists = {name: self._list(name) for name in FACETS}
        self.pattern = widgets.Text(
            placeholder="module pattern, *.mlp", continuous_update=False, layout={"width": "170px"}
        )
        self.implicit = widgets.Checkbox(description="implicit only", indent=False, layout={"width": "115px"})
        clear = widgets.Button(description="clear", layout={"width": "64px"}, tooltip="clear filters and selection")
        clear.on_click(lambda _: on_clear())
        for control in (*self.lists.values(), self.pattern, self.implicit):
            control.observe(self._changed, "value")
        shown = [control for control in self.lists.values() if len(control.options) > 2]
        wrap = {"flex_flow": "row wrap", "align_items": "center"}
        self.box = widgets.HBox([*shown, self.pattern, self.implicit, clear], layout=wrap)

    def show(self, filters: Filters) -> None:
        """Set the controls to these filters, without saying so."""
        self._quiet = True
        try:
            for name, control in self.lists.items():
                labels, wanted = self._codes.facets[name].labels[:_MOST_OPTIONS], filters.facets.get(name)
                one = name in filters.facets and not isinstance(wanted, (list, tuple, set)) and wanted in labels
                control.value = labels.index(wanted) + 1 if one else 0
            self.pattern.value, self.implicit.value = filters.module, filters.implicit
        finally:
            self._quiet = False

    def _list(self, name: str) -> widgets.Dropdown:
        """The first option lets everything through; the others are the facet's labels, in order."""
        labels = self._codes.facets[name].labels[:_MOST_OPTIONS]
        texts = ["all", *(html.plain("none" if value == "" else value, 40) for value in labels)]
        options = [(f"{name}: {text}", index) for index, text in enumerate(texts)]
        return widgets.Dropdown(options=options, value=0, layout={"width": "135px"})

    def _changed(self, _change: Any) -> None:
        if self._quiet:
            return
        facets = {name: self._codes.facets[name].labels[c.value - 1] for name, c in self.lists.items() if c.value}
        self._on_change(Filters(facets, self.pattern.value.strip(), self.implicit.value))
