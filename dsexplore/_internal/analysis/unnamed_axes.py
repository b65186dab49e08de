"""Finds groups on an axis without a name, and the option that names it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

import polars as pl

from dsexplore._internal.trace.tables import Tables

_UNNAMED = re.compile(r"(dim_\d+)?")
"""The axis of a group without a named axis."""
_IN_THE_PROGRAM = 'give mesh_dim_names to the mesh, or group_desc="dp" to new_group'
_NAMES = {1: ("dp",), 2: ("dp", "tp"), 3: ("pp", "dp", "tp")}
"""{number of axes: names to propose}."""


def naming_notes(tables: Tables) -> list[str]:
    """Return how to name the axes without names, one sentence per size and arrangement of groups.

    If the mesh has names, a group of all ranks is along all of its axes and needs no name.

    Example: ``'the group of all 8 ranks has no axis name: add --mesh dp=8, or mesh="dp=8" in Python'``.
    """
    info = tables.info
    has_names = bool(info.mesh) and not info.mesh.startswith("dim_")
    axes = [axis for axis in tables.events["axis"].unique() if axis is not None and _UNNAMED.fullmatch(axis)]
    unnamed = tables.events.filter(pl.col("axis").is_in(axes), pl.col("group_size") > 1)["group"].unique()
    met = tables.groups.filter(pl.col("group").is_in(unnamed.implode())).sort("group")
    sentences: dict[str, None] = {}
    for size, ranks in met.select("size", "ranks").iter_rows():
        is_whole = size == info.world_size
        if is_whole and has_names:
            continue
        mesh = _mesh_along(ranks or (), info.world_size) if info.simulated and not has_names else ""
        option = f'add --mesh {mesh}, or mesh="{mesh}" in Python' if mesh else _IN_THE_PROGRAM
        who = f"the group of all {size:,} ranks has" if is_whole else f"groups of {size:,} ranks have"
        sentences[f"{who} no axis name: {option}"] = None
    return list(sentences)


def _mesh_along(ranks: Sequence[int], world_size: int) -> str:
    """Return a mesh on which the ranks form an axis; "" if they are at uneven distances.

    Example: ranks 1 and 3 of 4: ``"dp=2,tp=2"``.
    """
    steps = {after - before for before, after in pairwise(ranks)}
    inner = steps.pop() if len(steps) == 1 else 0
    if inner < 1 or world_size % (inner * len(ranks)):
        return ""
    sizes = [size for size in (world_size // (inner * len(ranks)), len(ranks), inner) if size > 1]
    return ",".join(f"{name}={size}" for name, size in zip(_NAMES[len(sizes)], sizes, strict=True))
