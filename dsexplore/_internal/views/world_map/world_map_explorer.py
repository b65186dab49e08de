"""The explorer of a world map: choose an axis; click a rank to select what is sent to it."""

from __future__ import annotations

from typing import Any

import ipywidgets

from dsexplore._internal.analysis.world_map import WorldMap, value_text
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page import html
from dsexplore._internal.views.view import View
from dsexplore._internal.views.widgets.live import LiveBox
from dsexplore._internal.views.widgets.part_widgets import PlotWidget
from dsexplore._internal.views.world_map.world_map_figure import heatmap

ALL = "all axes"


def explorer(world: WorldMap, twin: View) -> LiveBox:
    """Return the explorer: a list of axes, the heatmap, and a sentence on what is selected.

    ``explorer.selection`` is the `Trace` of what is sent to the clicked rank over the chosen axis; the whole trace
    before any click. ``explorer.select(rank)`` selects a rank like a click.

    ``explorer.selection`` is the `Trace` of what goes to the clicked rank, over the chosen axis; the whole trace before
    any click. ``explorer.select(rank)`` clicks.

    Args:
        world: the map.
        twin: static view of the map.
    """
    box = LiveBox(twin)
    axis = ipywidgets.Dropdown(options=[ALL, *world.axes], description="axis")
    said = ipywidgets.HTML()
    box.selection, box.rank = Trace(world.tables), None

    def chosen_axis() -> str | None:
        return None if axis.value == ALL else str(axis.value)

    def select(rank: int | None) -> None:
        box.rank = rank
        if rank is None:
            box.selection = Trace(world.tables)
            said.value = "A click on a rank selects what is sent to it."
            return
        box.selection = world.talks_to(rank, chosen_axis())
        amount = value_text(world, world.to_shades(chosen_axis())[rank])
        shared = "with" if world.running is not None else "from"
        said.value = html.escape(
            f"rank {rank}: {amount} a step {shared} the recorded ranks; {len(box.selection):,} events selected"
        )

    def clicked(event: dict[str, Any]) -> None:
        if event["type"] == "click" and isinstance(event["customdata"], int) and event["customdata"] < world.world_size:
            select(event["customdata"])

    picture = PlotWidget(on_event=clicked)

    def draw(_: Any = None) -> None:
        picture.show(heatmap(world, chosen_axis()), f"world map, {axis.value}")
        select(box.rank)

    axis.observe(draw, "value")
    box.children = [axis, picture, said]
    box.select, box.draw, box.axis = select, draw, axis
    draw()
    return box
