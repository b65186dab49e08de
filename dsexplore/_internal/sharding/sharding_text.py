"""The sentences on a sharding: how much of a tensor, or of a model's parameters and states, a rank holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dsexplore._internal.mesh import Mesh
from dsexplore._internal.sharding.memory import Assumptions, memory_groups
from dsexplore._internal.sharding.rank_groups import RankGroup
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_bytes, format_count


def verdict_of_model(mesh: Mesh, tensors: Sequence[PlacedTensor]) -> str:
    """Return the sentence on the memory of the rank that holds most."""
    if not tensors:
        return "No parameters."
    worst, *others = memory_groups(mesh, tensors, Assumptions())
    whole = format_bytes(sum(tensor.nbytes for tensor in tensors))
    who = f"Rank {mesh.rank(worst.first)} holds most:" if others else "Each rank holds"
    return (
        f"{who} {format_bytes(worst.value[0])} of {whole} of parameters; "
        f"it needs {format_bytes(sum(worst.value))} with gradients and AdamW."
    )


def verdict_of_tensor(tensor: PlacedTensor, groups: Sequence[RankGroup], ranks: int) -> str:
    """Return the sentence on how much of a tensor a rank holds: ``Each rank holds 2 × 8, 64 B of 256 B.``

    Args:
        tensor: tensor with its placements.
        groups: groups of ranks with the same local shape, which is their value.
        ranks: number of ranks on the mesh.
    """
    empty = sum(group.count for group in groups if not math.prod(group.value))
    shapes = sorted((math.prod(group.value), group.value) for group in groups if math.prod(group.value))
    if not shapes:
        return "The tensor has no elements."
    (least, smallest), (most, largest) = shapes[0], shapes[-1]
    size, whole = tensor.dtype.itemsize, f" of {format_bytes(tensor.nbytes)}"
    part = " (a partial value)" if any(placement.kind == "partial" for placement in tensor.placements) else ""
    if len(shapes) == 1 and most == tensor.numel:
        held = f"all of it, {format_bytes(most * size)}{part}"
    elif len(shapes) == 1:
        held = f"{shape_text(largest)}, {format_bytes(most * size)}{whole}{part}"
    else:
        sizes = format_bytes(most * size)
        if least < most:
            sizes = f"{format_bytes(least * size)} to {sizes}"
        held = f"{shape_text(smallest)} to {shape_text(largest)}, {sizes}{whole}{part}"
    if empty:
        return f"{format_count(empty, 'rank')} of {ranks:,} hold nothing; each other holds {held}."
    return f"Each rank holds {held}."


def shape_text(shape: tuple[int, ...]) -> str:
    """Return a shape as text: ``"8192 × 1024"``; ``"()"`` without dims."""
    return " × ".join(map(str, shape)) or "()"
