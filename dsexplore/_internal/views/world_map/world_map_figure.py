"""The figure of a world map: a heatmap with a row per node and a column per rank in it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dsexplore._internal.analysis.world_map import WorldMap, value_text
from dsexplore._internal.views.page.charts import color_scale
from dsexplore._internal.views.trace.figure_spec import Spec, byte_axis, finished, json_numbers


@dataclass(frozen=True)
class DrawnRank:
    """One rank of a drawn node, or the ranks at this place in several equal nodes."""

    ranks: tuple[int, ...]
    """The rank in each of the nodes."""
    value: float
    """Bytes per step that the recorded ranks send to this rank, or seconds per step; sets the shade."""
    recorded: bool
    axes: tuple[str, ...]
    """Mesh axes over which the rank shares a group with a recorded rank."""


@dataclass(frozen=True)
class DrawnNode:
    """One node, or several nodes that look the same."""

    numbers: tuple[int, ...]
    """Numbers of the nodes."""
    cells: tuple[DrawnRank, ...]


def node_boxes(world: WorldMap, axis: str | None = None, most: int = 64) -> list[DrawnNode]:
    """Return the nodes to draw; if there are more than ``most``, those that look the same are joined.

    Args:
        world: the map.
        axis: axis to which shades and groups are restricted; None for all axes.
        most: number of nodes up to which each is drawn individually.
    """
    shades = world.to_shades(axis).tolist()
    recorded = {*world.tables.info.ranks, *world.senders}
    peers: dict[int, list[str]] = defaultdict(list)
    for name, groups in world.groups.items():
        if axis in (None, name):
            for rank in set(chain.from_iterable(groups)):
                peers[rank].append(name)
    nodes: dict[object, list[int]] = defaultdict(list)
    for number in range(world.nodes):
        ranks = _ranks(world, number)
        looks = tuple((shades[rank], rank in recorded, tuple(peers[rank])) for rank in ranks)
        nodes[looks if world.nodes > most else number].append(number)
    drawn = []
    for numbers in nodes.values():
        first = _ranks(world, numbers[0])
        cells = tuple(
            DrawnRank(
                tuple(number * world.ranks_per_node + place for number in numbers),
                shades[rank],
                rank in recorded,
                tuple(sorted(peers[rank])),
            )
            for place, rank in enumerate(first)
        )
        drawn.append(DrawnNode(tuple(numbers), cells))
    return drawn


def _ranks(world: WorldMap, number: int) -> range:
    """Return the ranks of the node with this number."""
    first = number * world.ranks_per_node
    return range(first, min(first + world.ranks_per_node, world.world_size))


_MOST_NODES = 2048


def heatmap(world: WorldMap, axis: str | None = None) -> Spec:
    """Return a heatmap of the bytes per step that recorded ranks send to each rank, or of the map's seconds.

    Args:
        world: the map.
        axis: axis that is counted; None for all. The color scale is the same for every axis.
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
        [f"rank {rank}: {value_text(world, size)} a step" for rank, size in zip(row, of_row, strict=True)]
        for row, of_row in zip(ranks.tolist(), shown.tolist(), strict=True)
    ]
    marks = {
        "type": "heatmap",
        "x": list(range(world.ranks_per_node)),
        "y": list(range(nodes)),
        "z": json_numbers(np.where(ranks < world.world_size, shown, np.nan)),
        "zmin": 0,
        "zmax": top,
        "colorscale": color_scale(),
        "colorbar": {"title": {"text": f"{shown_unit}<br>a step"}, **({} if in_seconds else byte_axis([top]))},
        "text": text,
        "customdata": ranks.tolist(),
        "hovertemplate": "%{text}<extra></extra>",
        "hoverongaps": False,
        "xgap": 2 if nodes <= 64 else 0,
        "ygap": 2 if nodes <= 64 else 0,
        "meta": {"kind": "world_map"},
    }
    more = f"; {world.nodes - nodes:,} more {world.box}s not drawn" if world.nodes > nodes else ""
    layout = {
        "xaxis": {"title": {"text": f"rank of the {world.box}"}, "dtick": 1, "showgrid": False},
        "yaxis": {"title": {"text": f"{world.box}{more}"}, "autorange": "reversed", "showgrid": False},
        "height": int(min(720, 140 + 26 * nodes)),
    }
    return finished({"data": [marks], "layout": layout})
