"""`Explorer`: linked module tree, figure, timeline, world map and tables of one trace.

A control or a click makes a new selection (`selecting`), which is one value (`selection`), and all parts that depend on
it are redrawn in one message (`drawing`). Only the visible figure and the visible tab are computed.
`Explorer.selection` is the selected part of the trace, and `Explorer.line` the line of Python that finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import polars as pl

from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.cost.cluster import HardwareLike
from dsexplore._internal.errors import UsageError
from dsexplore._internal.near_names import did_you_mean
from dsexplore._internal.signatures import with_options
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer import map_panel, timeline_panel
from dsexplore._internal.views.explorer.drawing import Drawing
from dsexplore._internal.views.explorer.figure_panel import FigurePanel
from dsexplore._internal.views.explorer.filters import FACETS, check_filters, known_names, menus
from dsexplore._internal.views.explorer.map_panel import MapPanel
from dsexplore._internal.views.explorer.module_rows import ModuleRows, rows_of
from dsexplore._internal.views.explorer.name_search import NameSearch
from dsexplore._internal.views.explorer.python_line import python_line, variable_of
from dsexplore._internal.views.explorer.selected_events import SelectedEvents
from dsexplore._internal.views.explorer.selecting import Selecting
from dsexplore._internal.views.explorer.selection import Filters, Visits
from dsexplore._internal.views.explorer.tab_panels import FINDINGS, PARAMETERS, PREDICTION, TabPanels
from dsexplore._internal.views.explorer.timeline_panel import TimelinePanel
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.byte_sizes import WIRE
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figures import FIGURES
from dsexplore._internal.views.trace.headline_view import live_headline
from dsexplore._internal.views.trace.pivot import Mask
from dsexplore._internal.views.trace.time_columns import time_columns
from dsexplore._internal.views.trace.trace_html import trace_text, twin_html
from dsexplore._internal.views.widgets.explorer_widget import ExplorerWidget
from dsexplore._internal.views.widgets.live import LiveView

Change = TypeVar("Change", bound=Callable[..., None])
TABS = {
    timeline_panel.PART: "Timeline",
    map_panel.PART: "World map",
    FINDINGS: "Findings",
    PARAMETERS: "Parameters",
    PREDICTION: "Prediction",
}
"""{tab below the tree: its title}."""


def _in_single_message(change: Change) -> Change:
    """Send all traits that a method changes in one message, and add the new selection to the visited ones."""

    @wraps(change)
    def changed(self: Explorer, *args: Any, **options: Any) -> None:
        with self.widget.hold_sync():
            self._depth += 1
            try:
                change(self, *args, **options)
            finally:
                self._depth -= 1
            if not self._depth:
                self._visits.note(self._selecting.present)
                self.widget.visits = self._visits.ahead

    return cast("Change", changed)


def _check_options(figure: str, height: int, tab: str) -> None:
    """Raise UsageError if there is no such figure or tab, or if the height is no positive number."""
    if figure not in FIGURES:
        raise UsageError(f"explore(figure={figure!r}): no such figure; kinds are {', '.join(FIGURES)}")
    if not isinstance(height, int) or height < 1:
        raise UsageError(f"explore(height={height!r}): give the height of the tree in pixels, such as 420")
    if tab not in TABS:
        raise UsageError(f"explore(tab={tab!r}): no such tab; tabs are {', '.join(TABS)}{did_you_mean(str(tab), TABS)}")


class Explorer(LiveView):
    """The interactive view of one trace; show it as the last expression of a cell.

    `TraceView.explore` describes the arguments.
    """

    def __init__(
        self,
        trace: Trace,
        figure: str = "modules",
        height: int = 420,
        sizes: str = WIRE,
        tab: str = timeline_panel.PART,
        hardware: HardwareLike | None = None,
    ) -> None:
        _check_options(figure, height, tab)
        self._explored = trace
        self._trace = Trace(trace.tables)
        self._codes = EventCodes(self._trace.tables, sizes=sizes)
        self._headline = Headline(self._trace.tables)
        self._prediction = self._trace.predict(hardware) if hardware is not None else None
        predicted = [] if self._prediction is None else time_columns(self._codes.tree, self._prediction)
        lanes = TimelinePanel(self._trace.tables, sizes, self._codes.kind, self._headline.skew)
        world_map, figures = MapPanel(self._codes, self._prediction), FigurePanel(self._codes)
        self._depth = 0
        """Number of methods running inside one another that change the selection."""
        self.widget = ExplorerWidget(
            on_event=self._on_event,
            lists=menus(self._codes),
            kinds=[[kind, figure_kind.title] for kind, figure_kind in FIGURES.items()],
            kind=figure,
            sizes=sizes,
            height=height,
            shades=world_map.shades,
            tabs=[[key, title] for key, title in TABS.items()],
            tab=tab,
            headline=live_headline(self._headline, self._codes.tree.axes, self._prediction, with_findings=False),
            **rows_of(self._codes, predicted),
        )
        tree = ModuleRows(self._codes, self.widget, predicted)
        panels = TabPanels(self._codes, self._headline.findings, self._prediction)
        self._drawing = Drawing(
            self._codes,
            self.widget,
            tree,
            figure=figures,
            lanes=lanes,
            map=world_map,
            panels=panels,
            line=lambda: self.line,
        )
        self._search = NameSearch(self._codes)
        self._selecting = Selecting(self._codes, self._headline, self._search, self._drawing)
        self._drawing.everything(self._selecting.present)
        self._visits = Visits(self._selecting.present)
        self._follow()
        self._codes.prepare()
        if tab == timeline_panel.PART:
            lanes.prepare()

    def __repr__(self) -> str:
        title = self._selected.title
        return f"<Explorer: {self._selected.summary}{f' in {title}' if title else ''}>"

    @property
    def selection(self) -> Trace:
        """Selected events as a `Trace`.

        These are the events of the clicked mark, if there is one. Otherwise they are the events of the selected row
        (all modules that it stands for) that pass the filters and the selections in other parts: the range of the
        timeline, the ranks or the link of the map, and the parameter.
        """
        tables = self._trace.tables
        return Trace(replace(tables, events=self._events(self._selected.mask)))

    @property
    def line(self) -> str:
        """Line of Python that finds the selected events: ``trace.where(phase="backward")``.

        Empty for scattered events that only a very long line would find; use `selection` instead.
        """
        return python_line(self._selected, variable_of(self._explored))

    @_in_single_message
    def select(self, module: str | None) -> None:
        """Select a module by its fully qualified name, or clear the selection with None.

        Raises:
            UsageError: No such module.
        """
        row = -1 if module is None else self._drawing.tree.row(module)
        if row is None:
            raise UsageError(
                f"select({html.plain(module)!r}): no such module; names are those of trace.modules['module']"
            )
        self._selecting.row(row)

    @with_options(FACETS)
    @_in_single_message
    def filter(self, *, module: str = "", implicit: bool = False, **facets: Any) -> None:
        """Show only the events that match; replaces earlier filters and selections.

        Args:
            module: shell pattern of module names, as in `Trace.where`.
            implicit: whether to show only redistributes that the program did not ask for.
            facets: phase, op, axis, group, step or rank, each one value or a list of values.

        Raises:
            UsageError: No such facet, or a phase, op, axis, group or module that does not occur in the trace.
        """
        check_filters(self._names, module, facets)
        self._selecting.filters(Filters(dict(facets), module, implicit))

    @_in_single_message
    def between(self, begin: float, end: float) -> None:
        """Show only the events that overlap a range of the timeline.

        Args:
            begin: begin in the unit of the timeline: seconds, rounds or positions in program order.
            end: end in the same unit, later than ``begin``.

        Raises:
            UsageError: The range is empty.
        """
        if not begin < end:
            raise UsageError(f"between({begin!r}, {end!r}): the end must be later than the begin")
        self._selecting.pick(timeline_panel.PART, self._drawing.lanes.range(begin, end))

    @_in_single_message
    def talks_to(self, *ranks: int) -> None:
        """Show only the events in which one of ``ranks`` takes part together with a recorded rank.

        Raises:
            UsageError: No rank is given, or a rank does not exist.
        """
        if not ranks:
            raise UsageError("talks_to(): give one rank or several")
        self._selecting.pick(map_panel.PART, self._drawing.map.with_ranks(ranks))

    @_in_single_message
    def parameter(self, name: str) -> None:
        """Show only what is sent for one parameter in a step, and list it in order; see `Trace.parameter_history`.

        Raises:
            UsageError: No parameter has this name or ends with it, or several end with it.
        """
        self._selecting.parameter(name)

    @_in_single_message
    def search(self, text: str) -> None:
        """Select by name: a parameter or source line, a value to filter by, or modules by shell pattern.

        If nothing has this name, the first name that contains the text is selected.

        Args:
            text: text as in the explorer's search box; empty for all modules.
        """
        self._selecting.named(text)

    @_in_single_message
    def back(self) -> None:
        """Go back to the selection before this one."""
        self._go(-1)

    @_in_single_message
    def forward(self) -> None:
        """Go forward to the selection that `back` left."""
        self._go(1)

    def _go(self, by: int) -> None:
        """Select what was selected before (−1) or after (1) the present selection; nothing at an end."""
        selection = self._visits.move(by)
        if selection is not None:
            self._selecting.again(selection)

    # Reactions to the browser

    def _follow(self) -> None:
        """Observe the traits that the browser, or the user's own code, sets in the widget."""
        for trait, change in {
            "chosen": self._selecting.controls,
            "pattern": self._selecting.controls,
            "implicit": self._selecting.controls,
            "selected": lambda: self._selecting.row(int(self.widget.selected)),
            "folding": lambda: self._selecting.fold(bool(self.widget.folding)),
            "kind": self._drawing.again,
            "sizes": lambda: self._selecting.sizes(str(self.widget.sizes)),
            "tab": self._on_tab,
            "shade": self._on_shade,
        }.items():
            self.widget.observe(lambda _, change=change: self._on_trait(change), trait)

    def _on_trait(self, change: Callable[[], None]) -> None:
        if not self._drawing.is_quiet:
            self._react(change)

    @_in_single_message
    def _react(self, change: Callable[[], None]) -> None:
        change()

    def _on_tab(self) -> None:
        """Draw the tab that is visible now."""
        if self.widget.tab not in TABS:
            raise UsageError(f"tab={self.widget.tab!r}: no such tab; tabs are {', '.join(TABS)}")
        self._drawing.tab()

    def _on_shade(self) -> None:
        """Apply the map's new shading (bytes or seconds), keeping the selection."""
        self._drawing.map.use(str(self.widget.shade))
        self._drawing.tab()

    @_in_single_message
    def _on_event(self, event: dict[str, Any]) -> None:
        react = _REACTIONS.get(event["type"])
        if react is not None:
            react(self, event)
        elif self.widget.tab == timeline_panel.PART and self._drawing.lanes.state.react(event):
            self._drawing.timeline()

    def _on_zoom(self, event: dict[str, Any]) -> None:
        self._drawing.figure.zoom(event.get("range"))
        self._drawing.again()

    def _on_click(self, event: dict[str, Any]) -> None:
        mark = self._drawing.figure.pick_at(self._selected, event)
        if mark is not None:
            self._selecting.mark(mark)

    def _on_typed(self, event: dict[str, Any]) -> None:
        """Offer the names that contain the text typed into the search box."""
        self.widget.hits = [[hit.kind, hit.text, hit.name] for hit in self._search.complete(str(event["text"]))]

    def _on_hit(self, event: dict[str, Any]) -> None:
        hit = self._search.hit(str(event["kind"]), str(event["name"]))
        if hit is not None:
            self._selecting.hit(hit)

    def _on_hardware(self, event: dict[str, Any]) -> None:
        self._drawing.panels.hardware = str(event["name"])
        self._drawing.tab()

    def _on_lanes(self, event: dict[str, Any]) -> None:
        self._drawing.lanes.arrange(str(event["kind"]))
        self._drawing.timeline()

    def _on_link(self, event: dict[str, Any]) -> None:
        world = self._drawing.map
        self._selecting.pick(map_panel.PART, world.over(*world.link(int(event["index"]))))

    @property
    def _selected(self) -> SelectedEvents:
        return self._drawing.selected

    @cached_property
    def _names(self) -> Tables:
        """Distinct names of the trace, by which filters are checked."""
        return known_names(self._trace.tables)

    def _events(self, mask: Mask) -> pl.DataFrame:
        events = self._trace.tables.events
        return events if mask.all() else events.filter(pl.Series(mask))

    def static_twin(self) -> tuple[str, str]:
        """Return the headline, timeline and tree as (HTML, text)."""
        return twin_html(self._codes, self._headline, self._prediction), trace_text(self._headline)


_REACTIONS: dict[str, Callable[[Explorer, dict[str, Any]], None]] = {
    "zoom": Explorer._on_zoom,
    "click": Explorer._on_click,
    "sentence": lambda explorer, event: explorer._selecting.sentence(int(event["index"])),
    "again": lambda explorer, _: explorer._selecting.row(explorer._selecting.present.row),
    "complete": Explorer._on_typed,
    "search": lambda explorer, event: explorer.search(str(event["text"]).strip()),
    "found": Explorer._on_hit,
    "go": lambda explorer, event: explorer._go(1 if event["by"] > 0 else -1),
    "finding": lambda explorer, event: explorer._selecting.finding(int(event["index"])),
    "hardware": Explorer._on_hardware,
    "pick": lambda explorer, event: explorer._selecting.box(int(event["box"])),
    "lanes": Explorer._on_lanes,
    "clear": lambda explorer, _: explorer._selecting.everything(),
    "brush": lambda explorer, event: explorer.between(*explorer._drawing.lanes.state.range_of(event)),
    "unbrush": lambda explorer, _: explorer._selecting.pick(timeline_panel.PART, None),
    "cell": lambda explorer, event: explorer.talks_to(*explorer._drawing.map.cell(str(event["place"]))),
    "link": Explorer._on_link,
    "rank": lambda explorer, event: explorer.talks_to(int(event["rank"])),
    "parameter": lambda explorer, event: explorer.parameter(str(event["name"])),
    "drop": lambda explorer, event: explorer._selecting.pick(str(event["part"]), None),
}
"""{type of a message from the browser: its handler}; `TimelineState.react` handles those about its window."""
