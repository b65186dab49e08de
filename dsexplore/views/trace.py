"""A trace at rest: what it is about, and its modules as a tree of ``<details>`` with bytes per axis and phase."""

from __future__ import annotations

from typing import Any

from dsexplore.display import View
from dsexplore.trace.trace import Tables, Trace
from dsexplore.units import format_bytes
from dsexplore.views import draw, html
from dsexplore.views.communication import communication_html, still_html
from dsexplore.views.fold import Folding
from dsexplore.views.module_tree import ModuleTree
from dsexplore.views.static_tree import STYLE, tree_html

_BUDGET, _PAGE_BUDGET, _TWIN_BUDGET = 57_000, 1_500_000, 24_000
"""Bytes that a view takes in a notebook, on a page of its own, and beside the explorer."""

_NOT_REAL = "Simulated ranks: counts, sizes and placements are real, computed values and times are not."


class TraceView(View):
    """How a `Trace` and its slices are shown."""

    title = "Trace"

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def text(self) -> str:
        """What was sent, by op and axis: a dozen lines at most."""
        tables = self._trace.tables
        lines = [f"Trace: {_summary(tables)}"]
        totals = Trace(tables)._totals("op", "axis").head(8).iter_rows(named=True)
        lines += [
            f"  {html.plain(row['op'], 40):<16} {html.plain(row['axis'], 24) or '–':<10} {row['count']:>9,}  "
            f"{format_bytes(row['message_bytes'])}"
            for row in totals
        ]
        lines += [f"  note: {html.plain(note, 200)}" for note in tables.info.notes[:3]]
        return "\n".join(lines)

    def html(self, budget: int = _BUDGET) -> str:
        """The summary, the module tree, and what was sent; complete in itself.

        Args:
            budget: bytes; the tree gets what the other sections leave.
        """
        tables = self._trace.tables
        header, sent = _header(tables), communication_html(tables)
        around = html.fragment(header + sent, STYLE + draw.STYLE)
        tree = tree_html(tables, budget - len(around.encode()))
        return html.fragment(header + tree + sent, STYLE + draw.STYLE)

    def twin(self, known: tuple[ModuleTree, Folding]) -> str:
        """The short static view that stands in the notebook beside the explorer: summary and tree."""
        tables = self._trace.tables
        return html.fragment(_header(tables) + tree_html(tables, _TWIN_BUDGET, known), STYLE)

    def page(self) -> str:
        """A document with many more modules than a notebook's output holds."""
        return html.page(self.title, self.html(_PAGE_BUDGET))

    def figure(self, kind: str = "modules", **options: Any) -> Any:
        """A plotly figure: modules, ops, sequence, ranks, sankey, sizes or bandwidth."""
        from dsexplore.views.figures import trace_figure

        return trace_figure(self._trace.tables, kind, **options)

    def still(self, kind: str = "modules", **options: Any) -> str:
        """The section that shows what the figure shows."""
        tables = self._trace.tables
        return html.fragment(_header(tables) + still_html(tables, kind), draw.STYLE)

    def explore(self, **options: Any) -> Any:
        """The live explorer; see `dsexplore.views.explorer`."""
        from dsexplore.views.explorer import Explorer

        return Explorer(self._trace, **options)


def _summary(tables: Tables) -> str:
    events, info = tables.events, tables.info
    if events.is_empty():
        return f"no collectives; {_world(tables)}"
    return (
        f"{events.height:,} collective{'s' if events.height != 1 else ''}, "
        f"{format_bytes(int(events['message_bytes'].sum()))} in messages "
        f"({format_bytes(int(events['wire_bytes'].sum()))} on the wire); {_world(tables)}"
        + (", simulated" if info.simulated else "")
    )


def _world(tables: Tables) -> str:
    info = tables.info
    ranks = f"rank {info.ranks[0]}" if len(info.ranks) == 1 else f"{len(info.ranks)} ranks"
    mesh = f" ({html.plain(info.mesh)})" if info.mesh else ""
    return f"{ranks} of {info.world_size:,}{mesh}"


def _header(tables: Tables) -> str:
    quiet = [_NOT_REAL] if tables.info.simulated else []
    lines = [f"<p><b>Trace</b> {html.escape(_summary(tables), 0)}</p>"]
    lines += [f'<p class="dim">{html.escape(line, 600)}</p>' for line in (*quiet, *tables.info.notes)]
    return "".join(lines)
