"""`Drawing`: draws a selection in the explorer's widget: controls, figure, tree, tab, and texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dsexplore._internal.views.explorer import map_panel, timeline_panel
from dsexplore._internal.views.explorer.figure_panel import FigurePanel
from dsexplore._internal.views.explorer.map_panel import MapPanel
from dsexplore._internal.views.explorer.module_rows import ModuleRows
from dsexplore._internal.views.explorer.selected_events import SelectedEvents
from dsexplore._internal.views.explorer.selection import Selection
from dsexplore._internal.views.explorer.tab_panels import TabPanels
from dsexplore._internal.views.explorer.timeline_panel import TimelinePanel
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.pivot import Mask
from dsexplore._internal.views.widgets.explorer_widget import ExplorerWidget


@dataclass
class Drawing:
    """The parts of the explorer. Only the visible figure and the visible tab are computed."""

    codes: EventCodes
    widget: ExplorerWidget
    tree: ModuleRows
    figure: FigurePanel
    lanes: TimelinePanel
    map: MapPanel
    panels: TabPanels
    line: Callable[[], str]
    """Returns the line of Python that finds the selected events."""
    selected: SelectedEvents = field(init=False)
    """Events of the selection that is drawn."""
    is_quiet: bool = field(default=False, init=False)
    """True while the explorer itself sets traits of the widget, to which it must not react."""

    def __post_init__(self) -> None:
        self.selected = SelectedEvents(self.codes, self.tree, Selection())

    @property
    def selection(self) -> Selection:
        """Selection that is drawn."""
        return self.selected.selection

    def quietly(self, **traits: Any) -> None:
        """Set traits of the widget without reacting to the change."""
        self.is_quiet = True
        try:
            for name, value in traits.items():
                setattr(self.widget, name, value)
        finally:
            self.is_quiet = False

    def show(self, selection: Selection, keep_figure: bool = False) -> None:
        """Draw a selection in all parts that it changes; ``keep_figure``: except the figure and the tab."""
        before = self.selected
        same_filters = selection.filters is before.selection.filters
        self.quietly(selected=selection.row, folding=selection.folding)
        self.selected = SelectedEvents(self.codes, self.tree, selection, before.filtered if same_filters else None)
        if not same_filters or selection.folding != before.selection.folding:
            self.tree.fill(self.selected.filtered)
        if not keep_figure:
            self.figure.begin(self.selected.rows)
            self.again()
            self.tab()
        self.describe()

    def everything(self, selection: Selection) -> None:
        """Draw a selection in all parts, also those that it does not change, because other bytes are shown."""
        self.selected = SelectedEvents(self.codes, self.tree, selection)
        self.tree.fill(self.selected.filtered)
        self.show(selection)

    def again(self) -> None:
        """Redraw the figure of the same events after a change of kind or range."""
        self.widget.show(*self.figure.drawn(self.selected, str(self.widget.kind)))

    def tab(self) -> None:
        """Draw the visible tab."""
        tab, filters = self.widget.tab, self.selection.filters
        if tab == timeline_panel.PART:
            self.timeline()
        elif tab == map_panel.PART:
            axis = filters.facets.get("axis")
            outlined = axis if isinstance(axis, str) and axis else None
            self.widget.panel = self.map.html(
                self._around(map_panel.PART),
                outlined,
                whole=self.selected.filtered.whole(self.figure.rows),
                pick=filters.picks.get(map_panel.PART),
            )
        else:
            self.widget.panel = self.panels.html(tab, self.selected)

    def timeline(self) -> None:
        """Draw the window of the timeline."""
        kinds = None if self.figure.rows else self.selected.filtered.kinds
        self.widget.timeline = self.lanes.drawn(self._around(timeline_panel.PART), kinds)
        self._describe_range()

    def describe(self) -> None:
        """Update the line above the tree, the tables below it, and the summary of the timeline's range."""
        self.widget.status, self.widget.details = self.selected.status, self.selected.details
        self.widget.line = self.line()
        self._describe_range()

    def _describe_range(self) -> None:
        if self.widget.tab == timeline_panel.PART:
            pick = self.selection.filters.picks.get(timeline_panel.PART)
            self.widget.brushed = self.lanes.brushed(self.selected.mask, pick)

    def _around(self, part: str) -> Mask:
        """Return the mask of events that a part shows: those of the figure's modules, even if a mark is selected."""
        return self.selected.filtered.around(part, self.figure.rows)
