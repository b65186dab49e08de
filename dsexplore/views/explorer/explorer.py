"""`Explorer`: linked module tree, figure, timeline, world map and tables of one trace.

A control changes the state (filters, selected row, clicked mark, figure), and all parts that depend on it are redrawn
in one message. Only the visible figure and the tab that is shown are computed. `Explorer.selection` is the selected
part of the trace, and `Explorer.line` the line of Python that finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import polars as pl

from dsexplore.analysis.headline import Headline
from dsexplore.errors import UsageError
from dsexplore.near_names import did_you_mean
from dsexplore.signatures import with_options
from dsexplore.trace.tables import Tables
from dsexplore.trace.trace import Trace
from dsexplore.views.explorer import map_panel, timeline_panel
from dsexplore.views.explorer.chosen import Chosen
from dsexplore.views.explorer.clicked_marks import Picked
from dsexplore.views.explorer.figure_panel import TITLES, FigurePanel
from dsexplore.views.explorer.filters import FACETS, Filters, Passed, check_filters, choices, chosen, known_names, lists
from dsexplore.views.explorer.map_panel import MapPanel
from dsexplore.views.explorer.module_rows import ModuleRows, rows_of
from dsexplore.views.explorer.name_search import MODULE, SOURCE, Hit, NameSearch
from dsexplore.views.explorer.picks import PARAMETER, SENTENCE, Picks
from dsexplore.views.explorer.python_line import python_line, variable_of
from dsexplore.views.explorer.tab_panels import FINDINGS, PARAMETERS, PREDICTION, TabPanels
from dsexplore.views.explorer.timeline_panel import TimelinePanel
from dsexplore.views.explorer.visits import Visit, Visits
from dsexplore.views.page import html
from dsexplore.views.trace.byte_sizes import WIRE
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.figures import KINDS
from dsexplore.views.trace.headline_view import live_headline
from dsexplore.views.trace.pivot import Mask
from dsexplore.views.trace.time_columns import time_columns
from dsexplore.views.trace.trace_html import trace_text, twin_html
from dsexplore.views.widgets.explorer_widget import ExplorerWidget
from dsexplore.views.widgets.live import LiveView

Change = TypeVar("Change", bound=Callable[..., None])
TABS = {
    timeline_panel.PART: "Timeline",
    map_panel.PART: "World map",
    FINDINGS: "Findings",
    PARAMETERS: "Parameters",
    PREDICTION: "Prediction",
}
"""{tab below the tree: its title}; a tab is computed while it is shown."""


def _in_single_message(change: Change) -> Change:
    """Send all traits that a method changes to the browser in one message."""

    @wraps(change)
    def changed(self: Explorer, *args: Any, **options: Any) -> None:
        with self.widget.hold_sync():
            self._depth += 1
            try:
                change(self, *args, **options)
            finally:
                self._depth -= 1
            if not self._depth:
                self._note_visit()

    return cast("Change", changed)


def _check_options(figure: str, height: int, tab: str) -> None:
    if figure not in KINDS:
        raise UsageError(f"explore(figure={figure!r}): no such figure; kinds are {', '.join(KINDS)}")
    if not isinstance(height, int) or height < 1:
        raise UsageError(f"explore(height={height!r}): give the height of the tree in pixels, such as 420")
    if tab not in TABS:
        raise UsageError(f"explore(tab={tab!r}): no such tab; tabs are {', '.join(TABS)}{did_you_mean(str(tab), TABS)}")


class Explorer(LiveView):
    """An application over one trace; show it as the last expression of a cell.

    Args:
        trace: the trace to explore; it is read once, on construction.
        figure: the figure shown first, a key of `dsexplore.views.trace.figures.KINDS`.
        height: height of the tree in pixels.
        sizes: which bytes are shown at first, ``"wire"`` or ``"message"``.
        tab: what is shown below the tree at first, a key of `TABS`.
        hardware: machine for which tree and headline show predicted seconds; see `Trace.predict`.
    """

    def __init__(
        self,
        trace: Trace,
        figure: str = "modules",
        height: int = 420,
        sizes: str = WIRE,
        tab: str = timeline_panel.PART,
        hardware: Any = None,
    ) -> None:
        _check_options(figure, height, tab)
        self._explored = trace
        self._trace = Trace(trace.tables)
        self._codes = EventCodes(self._trace.tables, sizes=sizes)
        self._headline = Headline(self._trace.tables)
        self._prediction = self._trace.predict(hardware) if hardware is not None else None
        predicted = [] if self._prediction is None else time_columns(self._codes.tree, self._prediction)
        self._lanes = TimelinePanel(self._trace.tables, sizes, self._codes.kind)
        self._map = MapPanel(self._codes, self._prediction)
        self._figure = FigurePanel(self._codes)
        self._quiet, self._depth = False, 0
        self.widget = ExplorerWidget(
            on_event=self._on_event,
            lists=lists(self._codes),
            kinds=[[kind, TITLES[kind]] for kind in KINDS],
            kind=figure,
            sizes=sizes,
            height=height,
            shades=self._map.shades,
            tabs=[[key, title] for key, title in TABS.items()],
            tab=tab,
            headline=live_headline(self._headline, self._codes.tree.axes, self._prediction, with_findings=False),
            **rows_of(self._codes, predicted),
        )
        self._rows = ModuleRows(self._codes, self.widget, predicted)
        self._chosen = Chosen(self._codes, self._rows, Passed(self._codes, Filters()))
        self._picks = Picks(self._lanes, self._map, self._chosen)
        self._panels = TabPanels(self._chosen, self._headline.findings, self._prediction)
        self._search = NameSearch(self._codes)
        self._visits = Visits(self._visit())
        self._rows.fill(self._chosen.passed)
        self._draw()
        self._draw_tab()
        self._describe()
        self._follow()
        self._codes.prepare()
        if tab == timeline_panel.PART:
            self._lanes.prepare()

    def __repr__(self) -> str:
        title = self._chosen.title
        return f"<Explorer: {self._chosen.summary}{f' in {title}' if title else ''}>"

    # What the user calls

    @property
    def selection(self) -> Trace:
        """Selected events as a `Trace`.

        These are the events of the clicked mark, else of the selected row (of all modules that it stands for),
        that pass the filters and the selections in other parts: the range of the timeline, the ranks or the
        link of the map, and the parameter.
        """
        tables = self._trace.tables
        return Trace(replace(tables, events=self._events(self._chosen.mask)))

    @property
    def line(self) -> str:
        """Line of Python that finds the selected events: ``trace.where(phase="backward")``.

        Empty for scattered events that only a very long line would find: take `selection` itself.
        """
        return python_line(self._chosen, variable_of(self._explored))

    @_in_single_message
    def select(self, module: str | None) -> None:
        """Select a module by its fully qualified name, or clear the selection with None.

        Raises:
            UsageError: no such module.
        """
        row = -1 if module is None else self._rows.row(module)
        if row is None:
            raise UsageError(
                f"select({html.plain(module)!r}): no such module; names are those of trace.modules['module']"
            )
        if row >= 0 and self._rows.shown(row) != row:
            self.widget.folding = False
        self.widget.selected = row

    @with_options(FACETS)
    @_in_single_message
    def filter(self, *, module: str = "", implicit: bool = False, **facets: Any) -> None:
        """Show only the events that match; replaces earlier filters and selections.

        Args:
            module: shell pattern of module names, as in `Trace.where`.
            implicit: whether to show only redistributes that the program did not ask for.
            facets: phase, op, axis, group, step or rank, each one value or a list of values.

        Raises:
            UsageError: no such facet, or a phase, op, axis, group or module that does not occur in the trace.
        """
        check_filters(self._names, module, facets)
        self._begin(Filters(dict(facets), module, implicit))

    @_in_single_message
    def between(self, begin: float, end: float) -> None:
        """Show only the events that overlap a range of the timeline.

        Args:
            begin: begin in the unit of the timeline: seconds, rounds or positions in program order.
            end: later than ``begin``.

        Raises:
            UsageError: the range is empty.
        """
        self._set_pick(*self._picks.between(begin, end))

    @_in_single_message
    def talks_to(self, *ranks: int) -> None:
        """Show only the events in which one of ``ranks`` takes part together with a recorded rank.

        Raises:
            UsageError: no rank is given, or a rank does not exist.
        """
        if not ranks:
            raise UsageError("talks_to(): give one rank or several")
        self._set_pick(*self._picks.with_ranks(ranks))

    @_in_single_message
    def parameter(self, name: str) -> None:
        """Show only what is sent for one parameter in a step, and list it in order; see `Trace.parameter_history`.

        Raises:
            UsageError: no parameter has this name or ends with it, or several end with it.
        """
        self._quietly(tab=PARAMETERS)
        self._set_pick(*self._picks.parameter(name))

    @_in_single_message
    def search(self, text: str) -> None:
        """Select what has this name: a parameter or source line, a value to filter by, or modules by shell pattern.

        Where nothing has it, the first name that contains the text is selected.

        Args:
            text: as typed into the explorer's search box; empty for all modules.
        """
        exact = self._search.exact(text) if text else None
        known = not text or Passed(self._codes, Filters(module=text)).is_known
        found = self._search.complete(text) if exact is None and not known else []
        if exact is not None or found:
            self._go_to(exact or found[0])
        else:
            self.widget.pattern = text

    @_in_single_message
    def back(self) -> None:
        """Return to what was selected before."""
        self._revisit(-1)

    @_in_single_message
    def forward(self) -> None:
        """Return to what was selected before `back`."""
        self._revisit(1)

    # What the browser changes

    def _follow(self) -> None:
        """Observe the traits that the browser, or the user's own code, sets in the widget."""
        for trait, change in {
            "chosen": self._on_filters,
            "pattern": self._on_filters,
            "implicit": self._on_filters,
            "selected": self._on_selected,
            "folding": self._on_folding,
            "kind": self._draw_again,
            "sizes": self._on_sizes,
            "tab": self._on_tab,
            "shade": self._on_shade,
        }.items():
            self.widget.observe(lambda _, change=change: None if self._quiet else change(), trait)

    def _quietly(self, **traits: Any) -> None:
        """Set traits of the widget without reacting to the change."""
        self._quiet = True
        try:
            for name, value in traits.items():
                setattr(self.widget, name, value)
        finally:
            self._quiet = False

    @_in_single_message
    def _on_filters(self) -> None:
        page = self.widget
        picks = self._chosen.passed.filters.picks
        self._set_filters(Filters(chosen(self._codes, page.chosen), page.pattern.strip(), page.implicit, picks))

    def _set_pick(self, part: str, selection: Picked | None) -> None:
        """Replace the selection made in ``part``; None clears it.

        A parameter is followed in all modules, because the FSDP unit that gathers it may be an ancestor of its
        module.
        """
        if part == PARAMETER and selection is not None:
            self._quietly(selected=-1)
            self._chosen.picked = None
        before = self._chosen.passed.filters
        kept = {name: pick for name, pick in before.picks.items() if name != part}
        self._set_filters(replace(before, picks=kept if selection is None else {**kept, part: selection}))

    def _go_to(self, hit: Hit) -> None:
        """Select what the search has found."""
        if hit.kind == MODULE:
            self.select(hit.name)
        elif hit.kind == PARAMETER:
            self.parameter(hit.name)
        elif hit.kind == SOURCE:
            title = html.plain(hit.text, 80)
            self._set_pick(SOURCE, Picked(self._codes.facets["source"].test(hit.name), f"line {title}"))
        else:
            self.widget.chosen = {**self.widget.chosen, hit.kind: hit.index}

    def _visit(self) -> Visit:
        chosen, page, (ranks, link) = self._chosen, self.widget, self._map.marked
        return Visit(
            chosen.passed.filters,
            chosen.picked,
            chosen.history,
            page.selected,
            page.folding,
            self._lanes.extent,
            ranks,
            link,
        )

    def _note_visit(self) -> None:
        """Note the selection, if it has changed, for going back to it."""
        self._visits.note(self._visit())
        self.widget.visits = self._visits.ahead

    def _revisit(self, by: int) -> None:
        visit = self._visits.move(by)
        if visit is None:
            return
        filters = visit.filters
        self._quietly(chosen=choices(self._codes, filters), pattern=filters.module, implicit=filters.implicit)
        self._quietly(selected=visit.selected, folding=visit.folding)
        self._lanes.mark(visit.extent)
        self._map.mark(visit.ranks, visit.link)
        self._chosen.history = visit.history
        self._chosen.passed, self._chosen.picked = Passed(self._codes, filters), visit.picked
        self._draw()
        self._rows.fill(self._chosen.passed)
        self._draw_tab()
        self._describe()

    def _begin(self, filters: Filters) -> None:
        """Replace all filters and selections, and show the new filters in the controls."""
        self._picks.forget()
        self._quietly(chosen=choices(self._codes, filters), pattern=filters.module, implicit=filters.implicit)
        self._set_filters(filters)

    def _set_filters(self, filters: Filters) -> None:
        self._chosen.filter(filters)
        self._draw()
        self._rows.fill(self._chosen.passed)
        self._draw_tab()
        self._describe()

    @_in_single_message
    def _on_selected(self) -> None:
        self._chosen.picked = None
        self._draw()
        self._draw_tab()
        self._describe()

    @_in_single_message
    def _on_folding(self) -> None:
        self._rows.fill(self._chosen.passed)
        if self.widget.selected >= 0:
            self._on_selected()

    @_in_single_message
    def _on_sizes(self) -> None:
        """Switch all parts between wire bytes and message bytes."""
        self._codes.use(str(self.widget.sizes))
        self._lanes.use(str(self.widget.sizes))
        self._set_filters(self._chosen.passed.filters)

    def _on_tab(self) -> None:
        """Draw the tab that is shown now."""
        if self.widget.tab not in TABS:
            raise UsageError(f"tab={self.widget.tab!r}: no such tab; tabs are {', '.join(TABS)}")
        self._draw_tab()

    def _on_shade(self) -> None:
        """Apply the map's new shading (bytes or seconds), keeping the selection."""
        self._map.use(str(self.widget.shade))
        self._draw_tab()

    @_in_single_message
    def _on_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "zoom":
            self._figure.zoom(self._chosen, event.get("range"))
            self._draw_again()
        elif event["type"] == "click":
            selection = self._figure.picked(self._chosen, event)
            if selection is not None:
                self._choose(selection)
        elif event["type"] == "sentence":
            self._lead(int(event["index"]))
        elif event["type"] == "again":
            self._on_selected()
        elif event["type"] == "complete":
            self.widget.found = [[hit.kind, hit.text, hit.name] for hit in self._search.complete(str(event["text"]))]
        elif event["type"] == "search":
            self.search(str(event["text"]).strip())
        elif event["type"] == "found":
            hit = self._search.hit(str(event["kind"]), str(event["name"]))
            if hit is not None:
                self._go_to(hit)
        elif event["type"] == "go":
            self._revisit(1 if event["by"] > 0 else -1)
        elif event["type"] == "finding":
            self._on_finding(int(event["index"]))
        elif event["type"] == "hardware":
            self._panels.hardware = str(event["name"])
            self._draw_tab()
        elif event["type"] == "pick":
            self._on_box(event)
        elif event["type"] in Picks.ASKED:
            if event["type"] == "parameter":
                self._quietly(tab=PARAMETERS)
            self._set_pick(*self._picks.asked(event))
        elif event["type"] == "lanes":
            self._lanes.arrange(str(event["kind"]))
            self._draw_timeline()
        elif self.widget.tab == timeline_panel.PART and self._lanes.state.react(event):
            self._draw_timeline()
        elif event["type"] == "clear":
            self._quietly(selected=-1)
            self.filter()

    def _on_box(self, event: dict[str, Any]) -> None:
        selection = self._lanes.state.picked(int(event["box"]))
        if selection is not None:
            self._choose(Picked(*selection))

    def _on_finding(self, number: int) -> None:
        """Show only the events of a finding; replaces all filters."""
        finding = self._headline.findings[number]
        if len(finding.rows):
            self._quietly(selected=-1)
            pick = Picked.of_rows(
                len(self._codes), finding.rows, f"finding {number + 1}: {html.plain(finding.module, 80)}"
            )
            self._begin(Filters(picks={FINDINGS: pick}))

    def _choose(self, picked: Picked, select: bool = True) -> None:
        """Select some events: select the module that sent most of them, and list them."""
        if select:
            self._quietly(selected=self._rows.shown(self._codes.largest_owner(picked.mask)))
        self._chosen.picked = picked
        self._describe()

    def _lead(self, number: int) -> None:
        """Show only the events that a sentence of the headline refers to; replaces all filters."""
        if not 0 <= number < len(self._headline.sentences):
            return
        sentence, many = self._headline.sentences[number], len(self._codes)
        self._quietly(selected=-1)
        pick = Picked.of_rows(many, sentence.rows, f"sentence {number + 1} of the headline")
        self._begin(Filters(picks={SENTENCE: pick}))
        self._choose(Picked(pick.mask, f"“{sentence.text}”"), select=bool(sentence.module))

    # What it shows

    @cached_property
    def _names(self) -> Tables:
        return known_names(self._trace.tables)

    def _events(self, mask: Mask) -> pl.DataFrame:
        events = self._trace.tables.events
        return events if mask.all() else events.filter(pl.Series(mask))

    def _draw(self) -> None:
        """Draw the figure of the selected module, or of everything."""
        self._figure.begin(self._rows.chosen)
        self._draw_again()

    @_in_single_message
    def _draw_again(self) -> None:
        """Redraw the figure of the same events after a change of kind or range."""
        self.widget.show(*self._figure.drawn(self._chosen, str(self.widget.kind)))

    @_in_single_message
    def _draw_tab(self) -> None:
        """Draw the tab that is shown."""
        tab = self.widget.tab
        if tab == timeline_panel.PART:
            self._draw_timeline()
        elif tab == map_panel.PART:
            axis = self._chosen.passed.filters.facets.get("axis")
            outlined = axis if isinstance(axis, str) and axis else None
            whole = self._chosen.whole(self._figure.rows)
            self.widget.panel = self._map.html(self._around(map_panel.PART), outlined, whole)
        else:
            self.widget.panel = self._panels.html(tab)

    def _around(self, part: str) -> Mask:
        """Return the mask of events that a part shows: of the figure's modules, whatever row a clicked mark selects."""
        return self._chosen.around(part, self._figure.rows)

    def _draw_timeline(self) -> None:
        kinds = None if self._figure.rows else self._chosen.passed.kinds
        self.widget.timeline = self._lanes.drawn(self._around(timeline_panel.PART), kinds)
        self._describe_range()

    def _describe(self) -> None:
        """Update the line above the tree, the tables below it, and the summary of the timeline's range."""
        self.widget.status, self.widget.details = self._chosen.status, self._chosen.details
        self.widget.line = self.line
        self._describe_range()

    def _describe_range(self) -> None:
        if self.widget.tab == timeline_panel.PART:
            self.widget.brushed = self._lanes.brushed(self._chosen.mask)

    def static_twin(self) -> tuple[str, str]:
        """Return the headline, timeline and tree as (HTML, text)."""
        return twin_html(self._codes, self._headline, self._prediction), trace_text(self._headline)
