"""The boxes of nodes drawn in a world map: nodes that look the same are drawn once, with their count."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from dsexplore.analysis.world_map import WorldMap
from dsexplore.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Cell:
    """One rank of a drawn node, or the ranks at this place in several nodes that look the same."""

    ranks: tuple[int, ...]
    """Rank in the first node, in the second node, …"""
    value: float
    """Value per step that sets the shade: bytes that the recorded ranks send to this rank, or seconds."""
    recorded: bool
    axes: tuple[str, ...]
    """Mesh axes over which the rank shares a group with a recorded rank."""


@dataclass(frozen=True)
class Node:
    """One node, or several nodes that look the same."""

    numbers: tuple[int, ...]
    cells: tuple[Cell, ...]


def written(world: WorldMap, value: float) -> str:
    """Return a value of the map as text: bytes, or seconds if the map is shaded by seconds."""
    return format_bytes(value) if world.running is None else format_seconds(value)


def node_boxes(world: WorldMap, axis: str | None = None, most: int = 64) -> list[Node]:
    """Return the nodes to draw; above ``most`` nodes, those that look the same are joined.

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
