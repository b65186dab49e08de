"""`Redistribution`: how torch redistributes a tensor to other placements, step by step, with each step's bytes.

torch's own planner determines the steps, on a mesh without process groups. Bytes are those of the rank with coordinate
0 on every axis: no rank sends more, because no shard is larger than the first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
import torch

from dsexplore._internal.display import Result
from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh
from dsexplore._internal.placement_text import Placement, read, read_all
from dsexplore._internal.sharding.chunks import Cut, part_size
from dsexplore._internal.sharding.tensor import PlacedTensor, fit
from dsexplore._internal.torch_internals.dispatch import without_modes
from dsexplore._internal.torch_internals.dtensor import (
    PlannedStep,
    mesh_without_groups,
    plan_redistribution,
    strided_shard,
)
from dsexplore._internal.trace.collectives import wire_bytes
from dsexplore._internal.units import format_bytes, format_count

COLUMNS: dict[str, pl.DataType] = {
    "axis": pl.String(),
    "ranks": pl.Int64(),  # number of ranks of the axis, and of the collective's group
    "before": pl.String(),  # placement of the axis, "S(0)"
    "after": pl.String(),
    "op": pl.String(),  # "" if each rank slices its part, and nothing is sent
    "message_bytes": pl.Int64(),  # message bytes of the mesh's first rank, which sends most
    "wire_bytes": pl.Int64(),
}


@dataclass(frozen=True)
class Step:
    """The change of one axis's placement."""

    axis: str
    ranks: int
    before: Placement
    after: Placement
    op: str
    """The collective; empty if nothing is sent."""
    message_bytes: int
    """Message bytes of the rank that sends most."""
    wire_bytes: int


class Redistribution(Result):
    """A tensor before and after a redistribute, and the steps between them; see `Sharding.redistribute`.

    Attributes:
        name: Name of the tensor.
        mesh: Mesh of the ranks.
        before: Tensor with its placements before; its ``name`` is "before".
        after: Tensor with its placements afterwards; its ``name`` is "after".
        steps: Steps in the order in which torch takes them.
    """

    def __init__(self, name: str, mesh: Mesh, before: PlacedTensor, after: PlacedTensor, steps: Sequence[Step]) -> None:
        self.name = name
        self.mesh = mesh
        self.before = replace(before, name="before")
        self.after = replace(after, name="after")
        self.steps = tuple(steps)

    def __repr__(self) -> str:
        ops = [f"{step.op} on {step.axis}" for step in self.steps if step.op]
        return f"<Redistribution of {self.name}: {', '.join(ops) or 'nothing is sent'}>"

    def verdict(self) -> str:
        """Return which collectives the redistribute needs, and how many bytes they send per rank."""
        sent = [step for step in self.steps if step.op]
        if sent:
            size = format_bytes(sum(step.wire_bytes for step in sent))
            counts = " and ".join(format_count(count, op) for op, count in Counter(step.op for step in sent).items())
            return f"{counts}, {size} on the wire per rank."
        return "Nothing is sent" + (", each rank slices its part." if self.steps else ": both are the same.")

    def to_frame(self) -> pl.DataFrame:
        """Return one row per step; columns: `COLUMNS`."""
        rows = [
            (step.axis, step.ranks, str(step.before), str(step.after), step.op, step.message_bytes, step.wire_bytes)
            for step in self.steps
        ]
        return pl.DataFrame(rows, schema=COLUMNS, orient="row")


def redistribution(before: PlacedTensor, mesh: Mesh, placements: Any) -> Redistribution:
    """Return the steps that redistribute a tensor to other placements.

    Args:
        before: tensor with its current placements.
        mesh: mesh of the ranks.
        placements: placements, one per axis of the tensor's own mesh, in mesh order, as `dsexplore.sharding` takes
            them.

    Raises:
        UsageError: the tensor has no mesh, or the placements do not fit or are Partial.
    """
    if not before.placements:
        raise UsageError(
            f"{before.name} has no placements: give it some, sharding(shape, placements=…, mesh='dp=2,tp=4')"
        )
    wanted = fit(read_all(placements, before.name), before.shape, [axis.name for axis in before.axes], before.name)
    for axis, old, new in zip(before.axes, before.placements, wanted, strict=True):
        if new.kind == "partial" and new != old:
            raise UsageError(
                f"{before.name}: {old} to {new} on axis {axis.name}: redistribute goes to shards and copies, not to "
                "partial values; give S(…) or R"
            )
    after = replace(before, placements=wanted)
    return Redistribution(before.name, mesh, before, after, _steps(before, after))


def _steps(before: PlacedTensor, after: PlacedTensor) -> list[Step]:
    """Return the steps of torch's planner, with the bytes that each sends."""
    axes = 1 + max((term.axis for reading in before.axes for term in reading.terms), default=0)
    sizes = list(before.local_shape([0] * axes))
    steps = []
    for planned in _planned(before, after):
        axis = before.axes[planned.axis]
        if axis.size > 1:
            old, new = read(planned.before), read(planned.after)
            op, numel = _sent(sizes, old, new, ranks=axis.size, whole=planned.shape)
            message = numel * before.dtype.itemsize
            steps.append(
                Step(
                    axis=axis.name,
                    ranks=axis.size,
                    before=old,
                    after=new,
                    op=op,
                    message_bytes=message,
                    wire_bytes=wire_bytes(op, message, axis.size) if op else 0,
                )
            )
    return steps


def _sent(sizes: list[int], old: Placement, new: Placement, *, ranks: int, whole: Sequence[int]) -> tuple[str, int]:
    """Return the collective and the number of elements of its message; `sizes` is updated to the shape after the step.

    Args:
        sizes: local shape before the step.
        old: placement of the axis before the step.
        new: placement of the axis after the step.
        ranks: number of ranks of the axis.
        whole: shape that this axis splits, as the planner gives it.
    """
    op, numel = "", 0
    if old.cuts and new.kind == "shard" and old.kind == "shard" and old.dim != new.dim:
        sizes[old.dim] = -(-whole[old.dim] // ranks)
        numel = math.prod(sizes) // max(sizes[new.dim], 1) * (-(-sizes[new.dim] // ranks) * ranks)
        op, sizes[old.dim] = "all_to_all", whole[old.dim]
    elif old.cuts:
        padded = -(-whole[old.dim] // ranks) if old.kind == "shard" else sizes[old.dim]
        op, numel = "all_gather", ranks * padded * _others(sizes, old.dim)
        sizes[old.dim] = whole[old.dim]
    elif old.kind == "partial" and new.kind == "shard":
        op, numel = "reduce_scatter", -(-sizes[new.dim] // ranks) * ranks * _others(sizes, new.dim)
    elif old.kind == "partial":
        op, numel = "all_reduce", math.prod(sizes)
    if new.cuts:
        sizes[new.dim] = int(part_size(sizes[new.dim], Cut(ranks, new.pieces), 0))
    return op, numel


def _others(sizes: Sequence[int], dim: int) -> int:
    """Return the product of the sizes of all dims but one."""
    return math.prod(size for number, size in enumerate(sizes) if number != dim)


def _planned(before: PlacedTensor, after: PlacedTensor) -> list[PlannedStep]:
    """Return the steps of torch's planner on a mesh without process groups."""
    with without_modes():
        ranks = torch.arange(math.prod(axis.size for axis in before.axes)).reshape([axis.size for axis in before.axes])
        mesh = mesh_without_groups(ranks, tuple(f"axis{number}" for number in range(len(before.axes))))
        whole = torch.empty(before.shape, dtype=before.dtype, device="meta")
        return plan_redistribution(
            mesh,
            whole,
            before=list(map(_torchs_placement, before.placements)),
            after=list(map(_torchs_placement, after.placements)),
        )


def _torchs_placement(placement: Placement) -> Any:
    """Return the placement as torch's object."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    if placement.kind == "strided":
        return strided_shard(placement.dim, placement.pieces)
    if placement.kind == "shard":
        return Shard(placement.dim)
    return Replicate() if placement.kind == "replicate" else Partial(placement.reduce_op)
