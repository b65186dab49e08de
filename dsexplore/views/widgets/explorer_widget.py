"""The explorer's page as one widget, so that all that a choice changes goes to the browser in one message."""

from __future__ import annotations

from typing import Any

import traitlets

from dsexplore.views.page import html
from dsexplore.views.trace import drawings, headline_view, outline
from dsexplore.views.widgets import script, style
from dsexplore.views.widgets.plot_widget import PlotWidget
from dsexplore.views.widgets.timeline_widget import TIMELINE_SCRIPTS
from dsexplore.views.widgets.tree_widget import TREE_SCRIPTS, TreeWidget
from dsexplore.views.world_map import world_map_view

EXPLORER_SCRIPTS = tuple(dict.fromkeys((*TREE_SCRIPTS, *TIMELINE_SCRIPTS, "filters.js", "page.js")))
"""All of the page but the figure and what asks a kernel."""
EXPLORER_STYLE = (
    style("tree.css", "explorer.css", "timeline.css")
    + html.STYLE
    + headline_view.STYLE
    + outline.STYLE
    + drawings.STYLE
    + world_map_view.STYLE
)


class ExplorerWidget(TreeWidget, PlotWidget):
    """Filters, module tree, figure, and the tables below them.

    One widget and not several, because JupyterLab takes longer to bring a message to a widget and to paint what
    it changed than the explorer takes to make it. What the browser changes itself is not echoed for the same reason.
    """

    _esm = script(*EXPLORER_SCRIPTS, "marks.js", "heat_grid.js", "plot.js", "explorer.js", render="explorer")
    _css = EXPLORER_STYLE + style("plot.css")

    lists: traitlets.List[list[object]] = traitlets.List().tag(sync=True)
    """[facet, texts to choose from] per list; the first text lets everything through."""
    chosen: traitlets.Dict[str, int] = traitlets.Dict().tag(sync=True, echo_update=False)
    """Facet → index of the text chosen in its list."""
    pattern = traitlets.Unicode("").tag(sync=True, echo_update=False)
    """Of modules, as in `Trace.where`."""
    implicit = traitlets.Bool(False).tag(sync=True, echo_update=False)
    """True shows only redistributes that the program did not ask for."""
    kinds: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[kind, title] of each figure."""
    kind = traitlets.Unicode("").tag(sync=True, echo_update=False)
    """The figure shown."""
    sizes = traitlets.Unicode("wire").tag(sync=True, echo_update=False)
    """The bytes that are shown, ``wire`` or ``message``."""
    headline = traitlets.Unicode("").tag(sync=True)
    """The bar and the sentences above everything, as HTML."""
    status = traitlets.Unicode("").tag(sync=True)
    """The line above the tree, as HTML."""
    opened: traitlets.List[str] = traitlets.List(traitlets.Unicode()).tag(sync=True, echo_update=False)
    """The parts that are shown, of ``timeline`` and ``map``."""
    timeline: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """As in `TimelineWidget`."""
    brushed: traitlets.Dict[str, Any] = traitlets.Dict().tag(sync=True)
    """As in `TimelineWidget`."""
    shades: traitlets.List[list[str]] = traitlets.List().tag(sync=True)
    """[value, text] of what may shade the world map."""
    shade = traitlets.Unicode("bytes").tag(sync=True, echo_update=False)
    """The quantity that shades the map."""
    map = traitlets.Unicode("").tag(sync=True)
    """The world map, as HTML."""
    details = traitlets.Unicode("").tag(sync=True)
    """The tables below it, as HTML."""

    def __repr__(self) -> str:
        return "The interactive explorer is live in a running notebook: run this cell again to use it."
