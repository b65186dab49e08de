"""The nodes of a world map that are drawn: nodes that look alike are one, with their number beside them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dsexplore.analysis.world_map import WorldMap
from dsexplore.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Cell:
    """One rank of a drawn node; of alike nodes, that of each."""

    ranks: tuple[int, ...]
    """The rank of the first node, of the second, …"""
    value: float
    """The value that shades a rank, per step: bytes that the recorded ranks send to it, or seconds."""
    recorded: bool
    axes: tuple[str, ...]
    """The axes over which it is in a group of a recorded rank."""


@dataclass(frozen=True)
class Node:
    """One node, or several alike."""

    numbers: tuple[int, ...]
    cells: tuple[Cell, ...]


def written(world: WorldMap, value: float) -> str:
    """A value of the map as text: bytes, or seconds where the map is shaded by these."""
    return format_bytes(value) if world.running is None else format_seconds(value)


def node_boxes(world: WorldMap, axis: str | None = None, most: int = 64) -> list[Node]:
    """The nodes to draw; all of them where they are few, else alike ones joined.

    Args:
        world: the map.
        axis: shades and groups of this axis alone; None for all.
        most: nodes that are drawn one by one.
    """
    shades = world.to_shades(axis).tolist()
    recorded = {*world.tables.info.ranks, *world.senders}
    peers: dict[int, list[str]] = defaultdict(list)
    for name, groups in world.groups.items():
        for rank in {rank for group in groups for rank in group} if axis in (None, name) else ():
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
            Cell(
                tuple(number * world.ranks_per_node + place for number in numbers),
                shades[rank],
                rank in recorded,
                tuple(sorted(peers[rank])),
            )
            for place, rank in enumerate(first)
        )
        drawn.append(Node(tuple(numbers), cells))
    return drawn


def _ranks(world: WorldMap, number: int) -> range:
    first = number * world.ranks_per_node
    return range(first, min(first + world.ranks_per_node, world.world_size))
