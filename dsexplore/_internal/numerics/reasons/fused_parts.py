"""Recognize layers whose shards do not match, such as fused query, key and value that were sharded as one matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dsexplore._internal.numerics.compared_runs import Comparison
from dsexplore._internal.numerics.compared_values import Compared, Part
from dsexplore._internal.numerics.initial_weights import dtensor_indices
from dsexplore._internal.numerics.reasons.match import Match, runs_text


class _Held(NamedTuple):
    """Part of a dim of a weight that a rank holds."""

    indices: Tensor
    size: int
    """Size of the whole dim."""


def rule(parts: Sequence[Part], entry: Compared, comparison: Comparison) -> Match | None:
    """Look for a layer of the same module whose rows on a rank do not match this layer's columns.

    If the other layer has n times as many rows as this one has columns, a rank needs the rows with the numbers of its
    columns in each of the n parts (query, key, value). If it has fewer, as for keys of grouped queries, a rank needs
    the same share of them. For a module without a weight, such as dropout, the columns of a sibling are used.

    Worked example: ``wo`` has 16 columns, ``qkv`` 48 rows, and there are two ranks. Columns 0 to 7 match rows 0 to 7,
    16 to 23 and 32 to 39. A rank with rows 0 to 23 has all of query and half of key. Of 8 rows of ``wv``, 0 to 3 match.
    """
    if entry.phase != "forward" or not entry.wrong_ranks:
        return None
    weights = _weights_of(comparison, entry.record.module.rpartition(".")[0])
    usual = f"{entry.record.module}.weight"
    for weight in [usual] if usual in weights else weights:
        columns = _held(comparison, weight, rank=entry.wrong_ranks[0], dim=1)
        if columns is not None and (weight == usual or columns.size == entry.whole.shape[-1]):
            match = _cut_otherwise(comparison, entry.wrong_ranks[0], weight, columns)
            if match is not None:
                return match
    return None


def _cut_otherwise(comparison: Comparison, rank: int, weight: str, columns: _Held) -> Match | None:
    """Return the match for a layer whose rows on a rank do not match columns of a weight there; None without one.

    Args:
        comparison: the compared runs.
        rank: rank whose shards are looked at.
        weight: name of the weight.
        columns: its columns that the rank holds.
    """
    for name in _weights_of(comparison, weight.removesuffix(".weight").rpartition(".")[0]):
        rows = _held(comparison, name, rank=rank, dim=0)
        if name == weight or rows is None:
            continue
        needed = _needed(columns, rows.size)
        if needed is None or len(rows.indices) != len(needed) or torch.equal(rows.indices.sort().values, needed):
            continue
        ratio = _ratio(rows.size, columns.size)
        looks = (
            f"rank {rank} holds rows {runs_text(rows.indices)} of {name}, which has {ratio} as {weight} has columns, "
            f"and of these {runs_text(columns.indices)}"
        )
        parts_of = f"each of the {rows.size // columns.size} parts of " if rows.size > columns.size else ""
        return Match("permutation", looks, f"cut {parts_of}{name} as those columns are cut")
    return None


def _needed(columns: _Held, rows: int) -> Tensor | None:
    """Return the rows that match the held columns, ascending; None if neither size is a multiple of the other."""
    indices, size = columns
    if rows % size == 0:
        return torch.cat([indices.sort().values + part * size for part in range(rows // size)])
    return (indices // (size // rows)).unique() if size % rows == 0 else None


def _ratio(rows: int, columns: int) -> str:
    """Return the ratio of two numbers as text: ``as many``, ``3 times as many`` or ``1/2 as many``."""
    if rows == columns:
        return "as many"
    return f"{rows // columns} times as many" if rows > columns else f"1/{columns // rows} as many"


def _weights_of(comparison: Comparison, parent: str) -> list[str]:
    """Return the names of the weights of a module's children."""
    names = [entry.record.name for entry in comparison.entries if entry.record.step == 0 and entry.phase == "optimizer"]
    return [name for name in names if name.endswith(".weight") and name.rpartition(".")[0].rpartition(".")[0] == parent]


def _held(comparison: Comparison, name: str, *, rank: int, dim: int) -> _Held | None:
    """Return the part of a dim of a weight that a rank holds; None if it holds all or nothing is known."""
    if rank >= len(comparison.ranks):
        return None
    record = comparison.ranks[rank]
    if name in record.places:
        place = record.places[name]
        indices = dtensor_indices(place, rank)[dim] if dim < len(place.shape) else torch.arange(0)
        return _Held(indices, size=place.shape[dim]) if 0 < len(indices) < place.shape[dim] else None
    cut, indices = record.rows.get(name, (-1, torch.arange(0)))
    sizes = [entry.whole.shape for entry in comparison.entries if entry.record.name == name]
    return _Held(indices, size=sizes[0][dim]) if cut == dim and sizes else None
