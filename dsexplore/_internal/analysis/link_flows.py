"""Finds the flows of a world map: events of a recorded rank that go over the same links, in a node or between nodes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import polars as pl

from dsexplore._internal.trace.schema import NO_AXIS
from dsexplore._internal.trace.tables import Tables

INSIDE, BETWEEN = "inside a node", "between nodes"
FLOW = ("rank", "axis", "group", "peer")
"""Events that agree in these columns go over the same links."""


class LinkUse(NamedTuple):
    """What one recorded rank sends over the links of one axis at one level in a step, the columns `world_map.LINKS`."""

    rank: int
    axis: str
    level: str
    peers: int
    bytes: int
    events: int


def flows_with(tables: Tables, flows: pl.DataFrame, ranks: Iterable[int], axis: str | None = None) -> pl.Series:
    """Return a mask of shape (n,): True for flows in which any of `ranks` takes part together with the recorded rank.

    Args:
        tables: the trace.
        flows: n flows; columns `FLOW`.
        ranks: the ranks to look for.
        axis: the axis of the flows to look at; None for all.
    """
    wanted = sorted(set(ranks))
    with_rank = tables.groups.filter(pl.col("ranks").list.set_intersection(wanted).list.len() > 0)["group"]
    is_end = pl.col("peer").is_in(wanted) | pl.col("rank").is_in(wanted)
    together = pl.col("group").is_in(with_rank.implode()) & (pl.col("peer").is_null() | is_end)
    return flows.select(together if axis is None else together & (axis_name() == axis)).to_series()


def flows_over(tables: Tables, flows: pl.DataFrame, ranks_per_node: int, axis: str | None, level: str) -> pl.Series:
    """Return a mask of shape (n,): True for flows over `axis` to any other rank at `level`.

    Args:
        tables: the trace.
        flows: n flows; columns `FLOW`.
        ranks_per_node: the number of ranks on each node.
        axis: one of `WorldMap.axes`; None for all.
        level: `INSIDE` (to a rank on the same node) or `BETWEEN` (to one on another node).
    """
    members = {name: list(held) for name, held in tables.groups.select("group", "ranks").iter_rows()}

    def goes(rank: int, rank_axis: str, group: str, peer: int | None) -> bool:
        others = members.get(group, ()) if peer is None else (peer,)
        return axis in (None, rank_axis) and any(
            level_of(rank, other, ranks_per_node) == level for other in others if other != rank
        )

    mask = [goes(*flow) for flow in flows.select("rank", axis_name().alias("axis"), "group", "peer").iter_rows()]
    return pl.Series(mask, dtype=pl.Boolean)


def level_of(rank: int, other: int, ranks_per_node: int) -> str:
    """Return `INSIDE` if both ranks are on one node, else `BETWEEN`."""
    return INSIDE if rank // ranks_per_node == other // ranks_per_node else BETWEEN


def axis_name() -> pl.Expr:
    """Return an expression for an event's axis; `NO_AXIS` for groups that are no axis."""
    return pl.when(pl.col("axis") == "").then(pl.lit(NO_AXIS)).otherwise("axis")
