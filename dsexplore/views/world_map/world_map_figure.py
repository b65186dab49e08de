"""The figure of a world map: a heatmap with a row per node and a column per rank in it."""

from __future__ import annotations

import numpy as np

from dsexplore.analysis.world_map import WorldMap
from dsexplore.views.page.theme import BLUE, tint
from dsexplore.views.trace.figure_spec import Spec, byte_axis, finished, json_numbers
from dsexplore.views.world_map.node_boxes import written

_MOST_NODES = 2048


def heatmap(world: WorldMap, axis: str | None = None) -> Spec:
    """Return a heatmap of the bytes per step that recorded ranks send to each rank, or of the map's seconds.

    Counts one axis, or all if ``axis`` is None. The colours run from 0 to the highest value of any rank over all
    axes, whichever axis is chosen.

    The colours run from 0 to the most of any rank over all axes, whatever is chosen.
    """
    nodes = min(world.nodes, _MOST_NODES)
    sizes = np.zeros(world.nodes * world.ranks_per_node)
    sizes[: world.world_size] = world.to_shades(axis)
    shown = sizes.reshape(world.nodes, world.ranks_per_node)[:nodes]
    ranks = np.arange(nodes * world.ranks_per_node).reshape(nodes, -1)
    top = float(world.to_shades().max()) or 1.0
    in_seconds = world.running is not None
    shown_unit = "seconds" if in_seconds else f"{world.sizes} bytes"
    text = [
        [f"rank {rank}: {written(world, size)} a step" for rank, size in zip(row, of_row, strict=True)]
        for row, of_row in zip(ranks.tolist(), shown.tolist(), strict=True)
    ]
    marks = {
        "type": "heatmap",
        "x": list(range(world.ranks_per_node)),
        "y": list(range(nodes)),
        "z": json_numbers(np.where(ranks < world.world_size, shown, np.nan)),
        "zmin": 0,
        "zmax": top,
        "colorscale": [[0.0, tint(BLUE, 0.04)], [1.0, BLUE]],
        "colorbar": {"title": {"text": f"{shown_unit}<br>a step"}, **({} if in_seconds else byte_axis([top]))},
        "text": text,
        "customdata": ranks.tolist(),
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
        "xgap": 2 if nodes <= 64 else 0,
        "ygap": 2 if nodes <= 64 else 0,
        "meta": {"kind": "world_map"},
    }
    more = f"; {world.nodes - nodes:,} more nodes not drawn" if world.nodes > nodes else ""
    layout = {
        "xaxis": {"title": {"text": "rank of the node"}, "dtick": 1, "showgrid": False},
        "yaxis": {"title": {"text": f"node{more}"}, "autorange": "reversed", "showgrid": False},
        "height": int(min(720, 140 + 26 * nodes)),
    }
    return finished({"data": [marks], "layout": layout})
