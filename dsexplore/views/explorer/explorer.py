"""The live explorer: a module tree, a figure and a table that follow one another.

One state (filters, selected row, picked mark, figure) and one direction: a control changes the state, and what
depends on it is drawn anew, in one message. Only the figure in sight is made. `Explorer.selection` is that state as
a `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar, cast

import polars as pl
from IPython.display import display

from dsexplore.errors import UsageError
from dsexplore.trace import schema, timeline
from dsexplore.trace.tables import Tables
from dsexplore.trace.trace import Trace
from dsexplore.units import format_bytes
from dsexplore.views.explorer.filters import FACETS, Filters, Passed, choices, chosen, lists, several
from dsexplore.views.explorer.module_rows import ModuleRows, rows_of
from dsexplore.views.explorer.picking import Picked, Shown, picked
from dsexplore.views.page import html
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.figures import KINDS, Spec, finished, module_heatmap, why_empty
from dsexplore.views.trace.pivot import Mask
from dsexplore.views.trace.sections import MOST_CAUSES, causes_part
from dsexplore.views.trace.trace_page import trace_text, twin_html
from dsexplore.views.trace.tree_html import MOST_TABLE_ROWS, collectives_html, parameters_html
from dsexplore.views.widgets.explorer_widget import ExplorerWidget

Change = TypeVar("Change", bound=Callable[..., None])
_display: Callable[..., None] = display
_DRAWN = ("rank", "seq", "op", "phase", "axis", "group", "message_bytes", "wire_bytes", "start", "end")
"""The columns that figures read."""
_TITLES = {
    "modules": "module × axis", "ops": "op × phase", "sequence": "sequence", "ranks": "who talks to whom",
    "sankey": "sankey", "sizes": "message sizes", "bandwidth": "bandwidth",
}  # fmt: skip
_ABSENT = (
    "<style>.jp-OutputArea-child:has(.dsx-twin)+.jp-OutputArea-child"
    ":has(>.lm-Panel.jp-OutputArea-output):not(:has(.dsx-explorer)){display:none}</style>"
)
"""Beside the static view, the output of a widget that does not live is hidden: JupyterLab would write there
"Loading widget…" for as long as no kernel runs."""


def _in_one_message(change: Change) -> Change:
    """Have everything that a change changes go to the browser together."""

    @wraps(change)
    def changed(self: Explorer, *args: Any, **options: Any) -> None:
        with self.widget.hold_sync():
            change(self, *args, **options)

    return cast("Change", changed)


class Explorer:
    """An application over one trace; show it as the last expression of a cell.

    In a saved notebook the static view stands in its place, because widget state is not saved with it.

    Args:
        trace: what to explore; it is read once, now.
        figure: the figure shown first, a key of `dsexplore.views.figures.KINDS`.
        height: of the tree, in pixels.
    """

    def __init__(self, trace: Trace, figure: str = "modules", height: int = 420) -> None:
        if figure not in KINDS:
            raise UsageError(f"explore(figure={figure!r}): no such figure; kinds are {', '.join(KINDS)}")
        if not isinstance(height, int) or height < 1:
            raise UsageError(f"explore(height={height!r}): give the height of the tree in pixels, such as 420")
        self._trace = Trace(trace.tables)
        self._codes = EventCodes(self._trace.tables)
        self._passed = Passed(self._codes, Filters())
        self._picked: Picked | None = None
        self._window: tuple[float, float] | None = None
        self._quiet = False
        self._drawn_rows: list[int] = []
        self.widget = ExplorerWidget(
            on_event=self._on_event,
            lists=lists(self._codes),
            kinds=[[kind, _TITLES[kind]] for kind in KINDS],
            kind=figure,
            height=height,
            **rows_of(self._codes),
        )
        self._rows = ModuleRows(self._codes, self.widget)
        self._rows.fill(self._passed.sums)
        self._draw()
        self._describe()
        self._follow()
        self._codes.prepare()

    def __repr__(self) -> str:
        return f"<Explorer: {self._of_what()}{f' in {self._title}' if self._title else ''}>"

    # What the user picked

    @property
    def selection(self) -> Trace:
        """What the user picked, as a `Trace`: the events of the clicked mark, else those of the selected module
        (of all its layers, where the row stands for several) that the filters let through."""
        tables = self._trace.tables
        return Trace(replace(tables, events=self._events(self._chosen())))

    @_in_one_message
    def select(self, module: str | None) -> None:
        """Select a module by its fully qualified name, or nothing with None.

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

    @_in_one_message
    def filter(self, *, module: str = "", implicit: bool = False, **facets: Any) -> None:
        """Show only some events, in place of the filters before.

        Args:
            module: a shell pattern, as in `Trace.where`.
            implicit: only redistributes that the program did not ask for.
            facets: phase, op, axis, group, step, rank: a value or a list of values.

        Raises:
            UsageError: no such facet, or no such phase.
        """
        if not isinstance(module, str):
            raise UsageError(f"filter(module={module!r}): give a module's name or a shell pattern, 'layers.0*'")
        for name, wanted in facets.items():
            if name not in FACETS:
                raise UsageError(f"filter({name}=…): no such filter; filters are module, implicit, {', '.join(FACETS)}")
            if name == "phase" and not set(several(wanted)) <= set(schema.PHASES):
                raise UsageError(f"filter(phase={wanted!r}): no such phase; they are {', '.join(schema.PHASES)}")
        filters = Filters(dict(facets), module, implicit)
        self._quietly(chosen=choices(self._codes, filters), pattern=module, implicit=implicit)
        self._set_filters(filters)

    # What changes it

    def _follow(self) -> None:
        """Follow what the browser, or the user's own code, sets in the widget."""
        for trait, change in {
            "chosen": self._on_filters,
            "pattern": self._on_filters,
            "implicit": self._on_filters,
            "selected": self._on_selected,
            "folding": self._on_folding,
            "kind": self._draw_again,
        }.items():
            self.widget.observe(lambda _, change=change: None if self._quiet else change(), trait)

    def _quietly(self, **traits: Any) -> None:
        """Set traits of the widget as a consequence, not as a wish."""
        self._quiet = True
        try:
            for name, value in traits.items():
                setattr(self.widget, name, value)
        finally:
            self._quiet = False

    @_in_one_message
    def _on_filters(self) -> None:
        page = self.widget
        self._set_filters(Filters(chosen(self._codes, page.chosen), page.pattern.strip(), page.implicit))

    def _set_filters(self, filters: Filters) -> None:
        self._passed = Passed(self._codes, filters)
        self._picked = None
        self._draw()
        self._rows.fill(self._passed.sums)
        self._describe()

    @_in_one_message
    def _on_selected(self) -> None:
        self._picked = None
        self._draw()
        self._describe()

    @_in_one_message
    def _on_folding(self) -> None:
        self._rows.fill(self._passed.sums)
        if self.widget.selected >= 0:
            self._on_selected()

    @_in_one_message
    def _on_event(self, event: dict[str, Any]) -> None:
        if event["type"] == "zoom":
            self._zoom(event.get("range"))
        elif event["type"] == "click":
            self._pick(event)
        elif event["type"] == "again":
            self._on_selected()
        elif event["type"] == "clear":
            self._quietly(selected=-1)
            self.filter()

    def _zoom(self, extent: list[float] | None) -> None:
        scale = 1e6 if timeline.is_timed(self._events(self._inside(self._drawn_rows))) else 1.0
        self._window = None if extent is None else (float(extent[0]) * scale, float(extent[1]) * scale)
        self._draw_again()

    def _pick(self, click: dict[str, Any]) -> None:
        """A mark was clicked: select the module that sent most of it, and list what the mark holds."""
        mask = self._chosen() if click.get("kind") == "cause" else self._inside(self._drawn_rows)
        found = picked(Shown(self._codes, self.widget.spec, mask, self._window), click)
        if found is None:
            return
        self._quietly(selected=self._rows.shown(self._codes.largest_owner(found.mask)))
        self._picked = found
        self._describe()

    # What it shows

    def _inside(self, rows: list[int]) -> Mask:
        """The events that pass inside of some modules; of all where none is named."""
        return self._passed.mask & self._codes.inside(rows) if rows else self._passed.mask

    def _chosen(self) -> Mask:
        return self._picked.mask if self._picked is not None else self._inside(self._rows.chosen)

    def _events(self, mask: Mask) -> pl.DataFrame:
        events = self._trace.tables.events
        return events if mask.all() else events.filter(pl.Series(mask))

    def _draw(self) -> None:
        """The figure of the selected module, or of everything."""
        self._window, self._drawn_rows = None, self._rows.chosen
        self._draw_again()

    @_in_one_message
    def _draw_again(self) -> None:
        """The figure of the same events: in another kind or range."""
        kind = str(self.widget.kind)
        if kind != "sequence":
            self._window = None
        empty = why_empty(kind, filtered=self._passed.filters != Filters())
        self.widget.show(finished(self._spec(kind), empty), f"{_TITLES[kind]} of {self._of_what()}")

    def _spec(self, kind: str) -> Spec:
        tables = self._trace.tables
        if kind == "modules":
            return module_heatmap(self._codes.places(self._passed.sums, self._drawn_rows or None))
        events = tables.events.select(_DRAWN).filter(pl.Series(self._inside(self._drawn_rows)))
        return KINDS[kind](Tables(events=events, groups=tables.groups, info=tables.info), self._window)

    def _of_what(self) -> str:
        """Count and bytes of what is chosen, in words."""
        if self._picked is not None:
            count, size = int(self._picked.mask.sum()), int(self._codes.sizes[self._picked.mask].sum())
        else:
            chosen = self._codes.spans(self._rows.chosen) or [(0, len(self._codes.tree))]
            count, size = self._passed.sums.total(chosen)
        return f"{count:,} of {len(self._passed.mask):,} collectives, {format_bytes(size)}"

    def _describe(self) -> None:
        """The line above and the tables below: collectives with cause and source line, parameters, redistributes."""
        title = self._title
        place = f" in {html.name(title, 200)}" if title else ""
        self.widget.status = f"<span>{self._of_what()}{place}</span>{self._only()}{self._no_such_module()}"
        mask = self._chosen()
        body = self._collectives(title, mask) if title else ""
        body += causes_part(self._codes.causes(mask, MOST_CAUSES), not title, clickable=True)
        self.widget.details = f'<div class="dsx">{body}</div>' if body else ""

    @property
    def _title(self) -> str:
        """What is chosen: a mark or a row; empty for everything."""
        return self._picked.title if self._picked is not None else self._rows.title

    def _only(self) -> str:
        """The filters that the lists cannot show: by several values, or by one that the trace does not hold."""
        told = [
            f"{name} {' or '.join(html.name(value, 40) for value in several(wanted)[:6])}"
            for name, wanted in self._passed.filters.facets.items()
            if name not in self.widget.chosen
        ]
        return f'<span class="dsx-dim"> – only {", ".join(told)}</span>' if told else ""

    def _no_such_module(self) -> str:
        """Said where the pattern is the name of no module."""
        if self._passed.is_known:
            return ""
        pattern = html.name(self._passed.filters.module, 80)
        return f'<span class="dsx-dim"> – no module is called {pattern}; * stands for any text, as in *.mlp</span>'

    def _collectives(self, title: str, mask: Mask) -> str:
        body = f"<p><b>{html.name(title, 400)}</b></p>"
        kinds, every = self._codes.collectives(mask, MOST_TABLE_ROWS)
        body += collectives_html(kinds, every) if every else '<p class="dim">nothing sent</p>'
        if self._picked is not None:
            return body
        first = self._rows.names[0]
        held = parameters_html(first, self._trace.tables.parameters.filter(pl.col("module") == first))
        many = len(self._rows.names)
        each = f'<p class="dim">Each of the {many:,}; named here: {html.name(first)}</p>' if many > 1 and held else ""
        return body + each + held

    def _ipython_display_(self) -> None:
        twin = _ABSENT + twin_html(self._codes)
        self.widget.twin = html.content_id(twin)
        static = f'<div class="dsx-twin {self.widget.twin}">{twin}</div>'
        _display({"text/html": static, "text/plain": trace_text(self._trace.tables)}, raw=True)
        _display(self.widget)
