"""`Drawing`: puts the figure, the tree, the tab, and the texts about the selection into the explorer's widget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsexplore.views.explorer import map_panel, timeline_panel
from dsexplore.views.explorer.chosen import Chosen
from dsexplore.views.explorer.figure_panel import FigurePanel
from dsexplore.views.explorer.map_panel import MapPanel
from dsexplore.views.explorer.module_rows import ModuleRows
from dsexplore.views.explorer.tab_panels import TabPanels
from dsexplore.views.explorer.timeline_panel import TimelinePanel
from dsexplore.views.trace.pivot import Mask
from dsexplore.views.widgets.explorer_widget import ExplorerWidget


@dataclass
class Drawing:
    """The parts of the explorer. Only the visible figure and the tab that is shown are computed."""

    widget: ExplorerWidget
    chosen: Chosen
    rows: ModuleRows
    figure: FigurePanel
    lanes: TimelinePanel
    map: MapPanel
    panels: TabPanels
    line: Callable[[], str]
    """Returns the line of Python that finds the selected events."""
    is_quiet: bool = field(default=False, init=False)
    """True while the widget's traits are set without a reaction."""

    def quietly(self, **traits: Any) -> None:
        """Set traits of the widget without reacting to the change."""
        self.is_quiet = True
        try:
            for name, value in traits.items():
                setattr(self.widget, name, value)
        finally:
            self.is_quiet = False

    def everything(self) -> None:
        """Draw all parts, as after a change of the filters."""
        self.of_rows()
        self.rows.fill(self.chosen.passed)
        self.tab()
        self.describe()

    def of_rows(self) -> None:
        """Draw the figure of the selected module, or of everything."""
        self.figure.begin(self.rows.chosen)
        self.again()

    def again(self) -> None:
        """Redraw the figure of the same events after a change of kind or range."""
        self.widget.show(*self.figure.drawn(self.chosen, str(self.widget.kind)))

    def tab(self) -> None:
        """Draw the tab that is shown."""
        tab = self.widget.tab
        if tab == timeline_panel.PART:
            self.timeline()
        elif tab == map_panel.PART:
            axis = self.chosen.passed.filters.facets.get("axis")
            outlined = axis if isinstance(axis, str) and axis else None
            whole = self.chosen.whole(self.figure.rows)
            self.widget.panel = self.map.html(self._around(map_panel.PART), outlined, whole)
        else:
            self.widget.panel = self.panels.html(tab)

    def timeline(self) -> None:
        """Draw the window of the timeline."""
        kinds = None if self.figure.rows else self.chosen.passed.kinds
        self.widget.timeline = self.lanes.drawn(self._around(timeline_panel.PART), kinds)
        self._describe_range()

    def describe(self) -> None:
        """Update the line above the tree, the tables below it, and the summary of the timeline's range."""
        self.widget.status, self.widget.details = self.chosen.status, self.chosen.details
        self.widget.line = self.line()
        self._describe_range()

    def _describe_range(self) -> None:
        if self.widget.tab == timeline_panel.PART:
            self.widget.brushed = self.lanes.brushed(self.chosen.mask)

    def _around(self, part: str) -> Mask:
        """Return the mask of events that a part shows: of the figure's modules, whatever row a clicked mark selects."""
        return self.chosen.around(part, self.figure.rows)
