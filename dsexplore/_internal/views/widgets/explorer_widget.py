"""The explorer's page as one widget, so that everything that a selection changes is sent in one message."""

from __future__ import annotations

from typing import Any

import traitlets

from dsexplore._internal.views.page.style import BASE, HEAT_STYLE
from dsexplore._internal.views.trace import drawings, headline_view, outline
from dsexplore._internal.views.widgets import script, style
from dsexplore._internal.views.widgets.part_widgets import TIMELINE_SCRIPTS, TREE_SCRIPTS, PlotWidget, TreeWidget
from dsexplore._internal.views.world_map import world_map_view

EXPLORER_SCRIPTS = tuple(
    dict.fromkeys((*TREE_SCRIPTS, *TIMELINE_SCRIPTS, "filters.js", "search.js", "tabs.js", "page.js"))
)
"""Scripts of the page, except those of the figure and those that need a kernel."""
EXPLORER_STYLE = (
    style("tree.css", "explorer.css", "timeline.css")
    + BASE
    + headline_view.STYLE
    + outline.STYLE
    + drawings.STYLE
    + world_map_view.STYLE
)


class ExplorerWidget(TreeWidget, PlotWidget):
    """Filters, module tree, figure, and the tables below them.

    It is one widget, because delivering a message to a widget and painting the change takes JupyterLab longer than
    the explorer takes to compute it. For the same reason, the browser's own changes are not echoed.
    """

    _esm = script(*EXPLORER_SCRIPTS, "marks.js", "heat_grid.js", "plot.js", "explorer.js", render="explorer")
    _css = EXPLORER_STYLE + style("plot.css") + HEAT_STYLE

    lists: traitlets.List[list[object]] = traitlets.List().tag(sync=True)
    """[facet, texts to choose from] per list; the first text is ``all``."""
    chosen: traitlets.Dict[str, int] = traitlets.Dict().tag(sync=True, echo_update=False)
    """{facet: index of the text chosen in its list}."""
    pattern = traitlets.Unicode("").tag(sync=True, echo_update=False)
    """Shell pattern of module names, as in `Trace.where`."""
    implicit = traitlets.Bool(False).tag(sync=True, echo_update=False)
    """True to show only redistributes that the program did not ask for."""
    kinds: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[kind, title] of each figure."""
    kind = traitlets.Unicode("").tag(sync=True, echo_update=False)
    """Kind of the figure shown."""
    sizes = traitlets.Unicode("wire").tag(sync=True, echo_update=False)
    """Bytes that are shown, ``wire`` or ``message``."""
    headline = traitlets.Unicode("").tag(sync=True)
    """Bar and sentences above everything, as HTML."""
    status = traitlets.Unicode("").tag(sync=True)
    """Line above the tree, as HTML."""
    tabs: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[tab, title] of each tab below the tree."""
    tab = traitlets.Unicode("").tag(sync=True, echo_update=False)
    """Tab that is shown."""
    panel = traitlets.Unicode("").tag(sync=True)
    """What the tab shows, as HTML; the timeline has a trait of its own."""
    line = traitlets.Unicode("").tag(sync=True)
    """Line of Python that finds the selected events; empty if there is none."""
    hits: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[kind, text, name] of each name that the search box offers."""
    visits: traitlets.List[int] = traitlets.List([0, 0]).tag(sync=True)
    """[number of selections to go back to, number to go forward to]."""
    timeline: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """The drawing of the timeline, see `TimelineWidget.timeline`."""
    brushed: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """Selected range of the timeline with its summary, see `TimelineWidget.brushed`."""
    shades: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[value, text] of each quantity that can shade the world map."""
    shade = traitlets.Unicode("bytes").tag(sync=True, echo_update=False)
    """Quantity that shades the map."""
    details = traitlets.Unicode("").tag(sync=True)
    """Tables below the tree, as HTML."""

    def __repr__(self) -> str:
        return "The interactive explorer is live in a running notebook: run this cell again to use it."
