"""`Explorer`: linked module tree, figure, timeline, world map and tables of one trace.

A control changes the state (filters, selected row, clicked mark, figure), and all parts that depend on it are redrawn
in one message. Only the visible figure and the open parts are computed. `Explorer.selection` is the selected part of
the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property, wraps
from typing import Any, TypeVar, cast

import polars as pl

from dsexplore.analysis.headline import Headline
from dsexplore.errors import UsageError
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
from dsexplore.views.explorer.picks import PARAMETER, SENTENCE, Picks
from dsexplore.views.explorer.timeline_panel import TimelinePanel
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
PARTS = (timeline_panel.PART, map_panel.PART)
"""Parts below the tree, which are drawn while they are open."""


def _in_single_message(change: Change) -> Change:
    """Send all traits that a method changes to the browser in one message."""

    @wraps(change)
    def changed(self: Explorer, *args: Any, **options: Any) -> None:
        with self.widget.hold_sync():
            change(self, *args, **options)

    return cast("Change", changed)


def _check_options(figure: str, height: int, opened: Collection[str]) -> None:
    if figure not in KINDS:
        raise UsageError(f"explore(figure={figure!r}): no such figure; kinds are {', '.join(KINDS)}")
    if not isinstance(height, int) or height < 1:
        raise UsageError(f"explore(height={height!r}): give the height of the tree in pixels, such as 420")
    for part in [opened] if isinstance(opened, str) else opened:
        if part not in PARTS:
            raise UsageError(f"explore(opened={opened!r}): no such part; give several of {', '.join(PARTS)}")


class Explorer(LiveView):
    """An application over one trace; show it as the last expression of a cell.

    Args:
        trace: the trace to explore; it is read once, on construction.
        figure: the figure shown first, a key of `dsexplore.views.trace.figures.KINDS`.
        height: height of the tree in pixels.
        sizes: which bytes are shown at first, ``"wire"`` or ``"message"``.
        opened: parts that are open at first, out of ``"timeline"`` and ``"map"``.
        hardware: machine for which tree and headline show predicted seconds; see `Trace.predict`.
    """

    def __init__(
        self,
        trace: Trace,
        figure: str = "modules",
        height: int = 420,
        sizes: str = WIRE,
        opened: Collection[str] = (timeline_panel.PART,),
        hardware: Any = None,
    ) -> None:
        _check_options(figure, height, opened)
        self._trace = Trace(trace.tables)
        self._codes = EventCodes(self._trace.tables, sizes=sizes)
        self._headline = Headline(self._trace.tables)
        self._prediction = self._trace.predict(hardware) if hardware is not None else None
        predicted = [] if self._prediction is None else time_columns(self._codes.tree, self._prediction)
        self._lanes = TimelinePanel(self._trace.tables, sizes, self._codes.kind)
        self._map = MapPanel(self._codes, self._prediction)
        self._figure = FigurePanel(self._codes)
        self._quiet = False
        self.widget = ExplorerWidget(
            on_event=self._on_event,
            lists=lists(self._codes),
            kinds=[[kind, TITLES[kind]] for kind in KINDS],
            kind=figure,
            sizes=sizes,
            height=height,
            shades=self._map.shades,
            opened=[part for part in PARTS if part in opened],
            headline=live_headline(self._headline, self._codes.tree.axes, self._prediction),
            **rows_of(self._codes, predicted),
        )
        self._rows = ModuleRows(self._codes, self.widget, predicted)
        self._chosen = Chosen(self._codes, self._rows, Passed(self._codes, Filters()))
        self._picks = Picks(self._lanes, self._map, self._chosen)
        self._rows.fill(self._chosen.passed)
        self._draw()
        self._draw_parts()
        self._describe()
        self._follow()
        self._codes.prepare()
        if timeline_panel.PART in opened:
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
        self._set_pick(*self._picks.parameter(name))

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
            "opened": self._draw_parts,
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

    def _begin(self, filters: Filters) -> None:
        """Replace all filters and selections, and show the new filters in the controls."""
        self._picks.forget()
        self._quietly(chosen=choices(self._codes, filters), pattern=filters.module, implicit=filters.implicit)
        self._set_filters(filters)

    def _set_filters(self, filters: Filters) -> None:
        self._chosen.filter(filters)
        self._draw()
        self._rows.fill(self._chosen.passed)
        self._draw_parts()
        self._describe()

    @_in_single_message
    def _on_selected(self) -> None:
        self._chosen.picked = None
        self._draw()
        self._draw_parts()
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

    def _on_shade(self) -> None:
        """Apply the map's new shading (bytes or seconds), keeping the selection."""
        self._map.use(str(self.widget.shade))
        self._draw_parts()

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
        elif event["type"] == "pick":
            self._on_box(event)
        elif event["type"] in Picks.ASKED:
            self._set_pick(*self._picks.asked(event))
        elif event["type"] == "lanes":
            self._lanes.arrange(str(event["kind"]))
            self._draw_timeline()
        elif timeline_panel.PART in self.widget.opened and self._lanes.state.react(event):
            self._draw_timeline()
        elif event["type"] == "clear":
            self._quietly(selected=-1)
            self.filter()

    def _on_box(self, event: dict[str, Any]) -> None:
        selection = self._lanes.state.picked(int(event["box"]))
        if selection is not None:
            self._choose(Picked(*selection))

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
    def _draw_parts(self) -> None:
        """Draw the timeline and the map if they are open."""
        if timeline_panel.PART in self.widget.opened:
            self._draw_timeline()
        if map_panel.PART in self.widget.opened:
            axis = self._chosen.passed.filters.facets.get("axis")
            outlined = axis if isinstance(axis, str) and axis else None
            whole = self._chosen.whole(self._figure.rows)
            self.widget.map = self._map.html(self._around(map_panel.PART), outlined, whole)

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
        self._describe_range()

    def _describe_range(self) -> None:
        if timeline_panel.PART in self.widget.opened:
            self.widget.brushed = self._lanes.brushed(self._chosen.mask)

    def static_twin(self) -> tuple[str, str]:
        """Return the headline, timeline and tree as (HTML, text)."""
        return twin_html(self._codes, self._headline, self._prediction), trace_text(self._headline)
