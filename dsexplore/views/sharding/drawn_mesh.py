"""`DrawnMesh`: the mesh as all pictures of one sharding draw it: colours of axes, ranks that are drawn one by one."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np

from dsexplore.sharding.layout import Sharding
from dsexplore.sharding.rank_groups import RankGroup
from dsexplore.sharding.tensor import Placed
from dsexplore.views.sharding.axis_marks import AxisMarks
from dsexplore.views.sharding.rank_sample import RankSample, sample_of
from dsexplore.views.sharding.shard_blocks import Block

MINE = "mine"
"""The class of what the chosen rank holds."""


class DrawnMesh:
    """Colours and ranks of a sharding's pictures.

    Args:
        shown: see below.
        axes: in the order of their colours, where another view beside the pictures has one; see `AxisMarks`.

    Attributes:
        shown: the tensors and their mesh.
        marks: the colour of each axis.
        sample: the ranks that can be lit: each has the class ``h<its place in the sample>`` in all pictures.
    """

    def __init__(self, shown: Sharding, axes: Sequence[str] = ()) -> None:
        self.shown = shown
        self.mesh = shown.mesh
        self.marks = AxisMarks(shown.mesh, shown.tensors, axes)
        self.sample: RankSample = sample_of(shown)
        self._chosen: tuple[int, ...] | None = None

    def choosing(self, at: tuple[int, ...] | None) -> DrawnMesh:
        """The same with a rank, by its place in the mesh, whose blocks are lit from the start: they have `MINE`."""
        lit = copy.copy(self)
        lit._chosen = at
        return lit

    def lit_by(self, tensor: Placed, block: Block) -> str:
        """The classes of a block: the sampled ranks that hold it, or ``ha`` for all; `MINE` for the chosen rank."""
        held = self.sample.holding(tensor, block.places)
        classes = "ha" if len(held) == len(self.sample) else lit_classes(held)
        return f"{classes} {MINE}" if self._holds(tensor, block) else classes

    def _holds(self, tensor: Placed, block: Block) -> bool:
        """Whether the chosen rank holds a block, or one of those folded in it."""
        if self._chosen is None:
            return False
        own = [int(axis([np.array(place) for place in self._chosen])) for axis in tensor.axes]
        return all(low <= own[number] < high for number, (low, high) in block.places)

    def without(self, tensor: Placed) -> RankGroup | None:
        """The ranks that hold nothing of a tensor; None where there is none."""
        if not tensor.numel:
            return None
        return next((group for group in self.shown.shapes(tensor) if not math.prod(group.value)), None)


def lit_classes(sampled: list[int]) -> str:
    """The classes by which the ranks at these places of the sample are found."""
    return " ".join(f"h{index}" for index in sampled)
