"""DTensor placements as short text: ``S(0)``, ``R``, ``P``, and ``_S(0, 2)`` when strided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def short(placement: Any) -> str:
    """One placement: ``S(dim)``, ``_S(dim, split_factor)``, ``R``, ``P`` for a sum, ``P(avg)`` for other reductions."""
    name = type(placement).__name__
    if name == "_StridedShard":
        return f"_S({placement.dim}, {placement.split_factor})"
    if name == "Shard":
        return f"S({placement.dim})"
    if name == "Replicate":
        return "R"
    if "Partial" in name:
        reduce_op = str(getattr(placement, "reduce_op", "sum"))
        return "P" if reduce_op == "sum" else f"P({reduce_op})"
    return str(placement)


def joined(placements: Sequence[Any]) -> str:
    """Several placements, one per mesh axis in mesh order: ``"S(0), R"``."""
    return ", ".join(short(placement) for placement in placements)


def change(before: Sequence[Any], after: Sequence[Any]) -> str:
    """A redistribute: ``"S(0)→R"``; with parentheses on a mesh of several axes: ``"(R, P)→(R, R)"``."""
    if len(before) == len(after) == 1:
        return f"{short(before[0])}→{short(after[0])}"
    return f"({joined(before)})→({joined(after)})"
