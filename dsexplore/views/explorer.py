"""The live explorer: a module tree, a figure and a table that follow one another.

One state (filters, selected row, figure kind) and one direction: a control changes the state, `_refresh` draws
what depends on it. `Explorer.selection` is that state as a `Trace`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import numpy as np
import polars as pl
from IPython.display import display

from dsexplore.errors import UsageError
from dsexplore.trace.model import Tables, Trace
from dsexplore.units import format_bytes
from dsexplore.views import html
from dsexplore.views.codes import FACETS, EventCodes
from dsexplore.views.figures import KINDS, trace_figure
from dsexplore.views.module_tree import NO_AXIS
from dsexplore.views.static_tree import STYLE, events_html, parameters_html
from dsexplore.views.tally import pattern_of
from dsexplore.views.widgets.plot import PlotWidget
from dsexplore.views.widgets.tree import TreeWidget

ALL = "all"
_display: Callable[..., None] = display
_DRAWN = ("rank", "seq", "op", "phase", "axis", "group", "message_bytes", "wire_bytes", "start", "end")
"""The columns that figures read."""
_TITLES = {
    "modules": "module × axis", "ops": "op × phase", "sequence": "sequence", "ranks": "who talks to whom",
    "sankey": "sankey", "sizes": "message sizes", "bandwidth": "bandwidth",
}  # fmt: skip
_INK_ON_DARK, _INK_ON_LIGHT = "#c8c8c8", "#444444"
_LONGEST_LABEL, _MOST_OPTIONS = 2000, 500


class _Application(widgets.VBox):  # type: ignore[misc]  # ipywidgets ships no types
    """The box around all controls; where no kernel is, its text says what to do."""

    def __repr__(self) -> str:
        return "The interactive explorer is live in a running notebook: run this cell again to use it."


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
        self._trace = Trace(trace.tables)
        self._codes = EventCodes(self._trace.tables)
        self._filters: dict[str, Any] = {}
        self._implicit_only = False
        self._pattern = ""
        self._picked: np.ndarray[Any, Any] | None = None
        self._known: tuple[str, np.ndarray[Any, Any]] | None = None
        self._quiet = False
        self._window: tuple[float, float] | None = None
        self.tree = _tree_widget(self._codes)
        self.plot = PlotWidget(on_event=self._on_plot)
        self._build(figure, height)
        self._refresh()

    # What the user picked

    @property
    def selection(self) -> Trace:
        """The events that the filters let through, inside the selected module, as a `Trace`."""
        tables = self._trace.tables
        chosen = Tables(
            events=tables.events.filter(pl.Series(self._mask())),
            parameters=tables.parameters,
            modules=tables.modules,
            groups=tables.groups,
            info=tables.info,
        )
        return Trace(chosen)

    def select(self, module: str | None) -> None:
        """Select a module by its fully qualified name, or nothing with None.

        Raises:
            UsageError: no such module.
        """
        if module is None:
            self.tree.selected = -1
            return
        names = self._codes.tree.names
        if module not in names:
            raise UsageError(
                f"select({html.plain(module)!r}): no such module; names are those of trace.modules['module']"
            )
        row = names.index(module)
        if self._shown_row(row) != row:
            self.tree.folding = False
        self.tree.selected = row

    def filter(self, *, module: str = "", implicit: bool = False, **facets: Any) -> None:
        """Show only some events, in place of the filters before.

        Args:
            module: a shell pattern, as in `Trace.where`.
            implicit: only redistributes that the program did not ask for.
            facets: phase, op, axis, group, step, rank: a value or a list of values.

        Raises:
            UsageError: no such facet.
        """
        for name in facets:
            if name not in FACETS:
                raise UsageError(f"filter({name}=…): no such filter; filters are module, implicit, {', '.join(FACETS)}")
        self._quiet = True
        for name, control in self._controls.items():
            labels, wanted = self._codes.facets[name].labels, facets.get(name)
            one = name in facets and not isinstance(wanted, (list, tuple, set)) and wanted in labels[:_MOST_OPTIONS]
            control.value = labels.index(wanted) + 1 if one else 0
        self._pattern_box.value, self._implicit_box.value = module, implicit
        self._quiet = False
        self._filters, self._pattern, self._implicit_only = dict(facets), module, implicit
        self._picked = None
        self._refresh()

    # Its parts

    def _build(self, figure: str, height: int) -> None:
        self._controls = {name: self._dropdown(name) for name in FACETS}
        self._pattern_box = widgets.Text(
            placeholder="module pattern, *.mlp", continuous_update=False, layout={"width": "170px"}
        )
        self._implicit_box = widgets.Checkbox(description="implicit only", indent=False, layout={"width": "115px"})
        self._clear = widgets.Button(
            description="clear", layout={"width": "64px"}, tooltip="clear filters and selection"
        )
        self._kinds = widgets.Dropdown(
            options=[(_TITLES[k], k) for k in KINDS], value=figure, layout={"width": "180px"}
        )
        self._status, self._details = widgets.HTML(), widgets.HTML()
        for control in (*self._controls.values(), self._pattern_box, self._implicit_box):
            control.observe(self._on_control, "value")
        self._kinds.observe(lambda _: self._draw(), "value")
        self._clear.on_click(lambda _: self._reset())
        self.tree.observe(self._on_selected, "selected")
        self.tree.observe(lambda _: self._draw(keep_window=True), "dark")
        self.tree.observe(lambda _: self._fill_tree(), "folding")
        wrap = {"flex_flow": "row wrap", "align_items": "center"}
        shown = [c for c in self._controls.values() if len(c.options) > 2]
        bar = widgets.HBox([*shown, self._pattern_box, self._implicit_box, self._clear], layout=wrap)
        left = widgets.VBox(
            [self.tree], layout={"flex": "2 1 620px", "min_width": "0", "overflow": "hidden", "padding": "0 8px 0 0"}
        )
        right = widgets.VBox(
            [self._kinds, self.plot], layout={"flex": "1 1 400px", "min_width": "0", "overflow": "hidden"}
        )
        both = widgets.HBox([left, right], layout={"flex_flow": "row wrap", "align_items": "flex-start"})
        self.widget = _Application([bar, self._status, both, self._details], layout={"width": "100%"})
        self.widget.add_class("dsx-explorer")
        self.tree.layout.height = f"{height + 34}px"

    def _dropdown(self, name: str) -> widgets.Dropdown:
        """The first option lets everything through; the others are the facet's labels, in order."""
        labels = [html.plain(_facet_label(value), 40) for value in self._codes.facets[name].labels[:_MOST_OPTIONS]]
        options = list(enumerate((ALL, *labels)))
        return widgets.Dropdown(
            options=[(f"{name}: {text}", index) for index, text in options], value=0, layout={"width": "135px"}
        )

    # What changes it

    def _on_control(self, _change: Any) -> None:
        if self._quiet:
            return
        facets = self._codes.facets
        self._filters = {name: facets[name].labels[c.value - 1] for name, c in self._controls.items() if c.value}
        self._pattern, self._implicit_only = self._pattern_box.value.strip(), self._implicit_box.value
        self._picked = None
        self._refresh()

    def _reset(self) -> None:
        self._quiet = True
        self.tree.selected = -1
        self._quiet = False
        self._window = None
        self.filter()

    def _on_selected(self, _change: Any) -> None:
        if self._quiet:
            return
        self._picked = None
        self._draw()
        self._describe()

    def _on_plot(self, event: dict[str, Any]) -> None:
        if event["type"] == "zoom":
            self._zoom(event.get("range"))
        elif event["type"] == "click":
            self._pick(event)

    def _zoom(self, extent: list[float] | None) -> None:
        events = self._events(self._mask())
        timed = events.height > 0 and events["start"].null_count() == 0 and events["end"].null_count() == 0
        scale = 1e6 if timed else 1.0
        self._window = None if extent is None else (float(extent[0]) * scale, float(extent[1]) * scale)
        self._draw(keep_window=True)

    def _pick(self, event: dict[str, Any]) -> None:
        """A mark was clicked: select the module that sent most of it, and list what the mark holds."""
        held = self._held(event)
        if held is None or not held.any():
            return
        totals = np.bincount(self._codes.owner[held], self._codes.sizes[held], minlength=len(self._codes.tree))
        self._quiet = True
        self.tree.selected = self._shown_row(int(totals.argmax()))
        self._quiet = False
        self._picked = held
        self._describe()

    def _held(self, event: dict[str, Any]) -> np.ndarray[Any, Any] | None:
        """Which events stand behind a clicked mark."""
        kind, data, mask = event.get("kind"), event.get("customdata"), self._mask()
        events = self._trace.tables.events
        if kind == "module_axis" and data:
            axis = "" if data[1] == NO_AXIS else data[1]
            place = (
                events.select((pattern_of(pl.col("owner")) == data[0]) & (pl.col("axis") == axis))
                .to_series()
                .to_numpy()
            )
            return np.asarray(mask & place)
        if kind == "op_phase" and data:
            same = events.select((pl.col("op") == data[0]) & (pl.col("phase") == data[1])).to_series().to_numpy()
            return np.asarray(mask & same)
        if kind == "size" and data:
            low = int(data[1])
            within = (self._codes.sizes >= low) & (self._codes.sizes < max(2 * low, 1))
            return np.asarray(mask & within & (events["op"] == data[0]).to_numpy())
        if kind == "sequence":
            return self._held_by_bin(event["index"], mask)
        return None

    def _held_by_bin(self, index: list[int], mask: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
        from dsexplore.views.figures import SEQUENCE_BINS, SEQUENCE_LANES
        from dsexplore.views.tally import lanes

        found = lanes(self._events(mask), SEQUENCE_BINS, SEQUENCE_LANES, self._window)
        row, column = index
        if row >= len(found.labels):
            return None
        rank, lane, op = found.labels[row]
        events = self._trace.tables.events
        low, high = found.edges(column)
        at = pl.col("start") - self._events(mask)["start"].min() if found.unit == "ns" else pl.col("seq")
        name = pl.when(pl.col("axis") != "").then("axis").otherwise("group")
        inside = (pl.col("rank") == rank) & (pl.col("op") == op) & (name == lane) & (at >= low) & (at < high)
        return np.asarray(mask & events.select(inside.fill_null(False)).to_series().to_numpy())

    # What it shows

    def _mask(self) -> np.ndarray[Any, Any]:
        mask = self._filtered()
        if self.tree.selected >= 0:
            mask = mask & self._codes.inside(self._chosen_rows())
        return mask

    def _filtered(self) -> np.ndarray[Any, Any]:
        """What the filters let through; computed once for each state of them."""
        state = repr((self._filters, self._implicit_only, self._pattern))
        if self._known is None or self._known[0] != state:
            self._known = state, self._filter_events()
        return self._known[1]

    def _filter_events(self) -> np.ndarray[Any, Any]:
        mask = self._codes.mask(self._filters, self._implicit_only)
        if self._pattern:
            from dsexplore.trace.select import select

            numbered = self._trace.tables.events.with_row_index("row")
            kept = select(Tables(events=numbered), {"module": self._pattern}).events["row"].to_numpy()
            inside = np.zeros(len(mask), bool)
            inside[kept] = True
            mask = mask & inside
        return np.asarray(mask)

    def _chosen_rows(self) -> list[int]:
        row = int(self.tree.selected)
        return self._codes.members(row) if self.tree.folding else [row]

    def _shown_row(self, row: int) -> int:
        """The row that stands for this one in the folded tree."""
        if not self.tree.folding:
            return row
        for rows in self._codes.folds:
            for other in rows[1:]:
                if other <= row < self._codes.tree.ends[other]:
                    row = row - other + rows[0]
        return row

    def _events(self, mask: np.ndarray[Any, Any]) -> pl.DataFrame:
        events = self._trace.tables.events
        return events if mask.all() else events.filter(pl.Series(mask))

    def _refresh(self) -> None:
        self._window = None
        self._fill_tree()
        self._draw()
        self._describe()

    def _fill_tree(self) -> None:
        columns = self._codes.columns(self._filtered())
        held = np.stack([self._codes.tree.local_bytes]).astype(np.float64)
        columns = np.concatenate([columns, held])
        self.tree.set_values(self._codes.fold(columns) if self.tree.folding else columns)

    def _draw(self, keep_window: bool = False) -> None:
        if not keep_window:
            self._window = None
        mask = self._mask()
        kind, tables = str(self._kinds.value), self._trace.tables
        if kind == "modules":
            events = self._codes.by_module_and_axis(mask)
        else:
            events = tables.events.select(_DRAWN).filter(pl.Series(mask))
        tables = Tables(events=events, groups=tables.groups, info=tables.info)
        figure = trace_figure(tables, kind, self._window)
        figure.update_layout(font_color=_INK_ON_DARK if self.tree.dark else _INK_ON_LIGHT)
        self.plot.show(figure, f"{_TITLES[kind]} of {int(mask.sum()):,} collectives")
        where = self._codes.tree.names[self.tree.selected] if self.tree.selected >= 0 else ""
        size = format_bytes(float(self._codes.sizes[mask].sum()))
        place = f" in {html.name(where or '(outside any module)', 90)}" if self.tree.selected >= 0 else ""
        self._status.value = f"<span>{int(mask.sum()):,} of {len(mask):,} collectives, {size}{place}</span>"

    def _describe(self) -> None:
        """The table below: the selected module's collectives with their causes and source lines, and its parameters."""
        if self.tree.selected < 0:
            self._details.value = ""
            return
        module = self._codes.tree.names[self._chosen_rows()[0]]
        mask = self._picked if self._picked is not None else self._mask()
        events = self._events(mask)
        body = f"<p><b>{html.name(module or '(outside any module)')}</b></p>"
        body += events_html(events) if events.height else '<p class="dim">nothing sent</p>'
        body += parameters_html(module, self._trace.tables.parameters.filter(pl.col("module") == module))
        self._details.value = html.fragment(body, STYLE)

    def _ipython_display_(self) -> None:
        from dsexplore.views.trace import TraceView

        view = TraceView(self._trace)
        twin = view.twin((self._codes.tree, self._codes.folding))
        self.tree.twin = html.content_id(twin)
        _display({"text/html": f'<div class="{self.tree.twin}">{twin}</div>', "text/plain": view.text()}, raw=True)
        _display(self.widget)


def _tree_widget(codes: EventCodes) -> TreeWidget:
    tree = codes.tree
    types = sorted(set(tree.types))
    hidden = np.zeros(len(tree), np.int32)
    for rows in codes.folds:
        hidden[list(rows[1:])] = 1
    index = {name: i for i, name in enumerate(types)}
    columns = [tree.parents, tree.ends, np.array([index[name] for name in tree.types]), hidden]
    return TreeWidget(
        labels=[html.printable(label)[:_LONGEST_LABEL] for label in tree.labels],
        types=[html.printable(name)[:200] for name in types],
        folded={str(rows[0]): [f"[{_numbers(codes, rows)}]", len(rows)] for rows in codes.folds},
        notes=_placements(codes),
        titles=[*(list(title) for title in codes.titles), ["params", "bytes"]],
        structure=np.ascontiguousarray(np.stack(columns, axis=1), np.int32).tobytes() if len(tree) else b"",
    )


def _numbers(codes: EventCodes, rows: tuple[int, ...]) -> str:
    from dsexplore.views.fold import ranges

    return ranges([int(codes.tree.labels[row]) for row in rows])


def _placements(codes: EventCodes) -> dict[str, str]:
    """Row → how its own parameters are placed."""
    rows = {name: row for row, name in enumerate(codes.tree.names)}
    placed = codes.tables.parameters.filter(pl.col("placements") != "").group_by("module", maintain_order=True)
    found = placed.agg(pl.col("placements").unique(maintain_order=True))
    return {
        str(rows[module]): html.plain(" | ".join(kinds), 60) for module, kinds in found.iter_rows() if module in rows
    }


def _facet_label(value: Any) -> str:
    return str(value) if value != "" else "none"
