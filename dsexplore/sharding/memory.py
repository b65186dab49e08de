"""What a rank needs to train: parameters, gradients and optimizer state, by rank and folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from dsexplore.errors import UsageError
from dsexplore.sharding.mesh import Mesh, Numbers
from dsexplore.sharding.rank_groups import Blocks, RankGroup, blocks_of, group_blocks
from dsexplore.sharding.tensor import Placed

OPTIMIZERS = {"AdamW": 2, "Adam": 2, "SGD": 0, "SGD with momentum": 1, "Adagrad": 1, "RMSprop": 1, "none": 0}
"""States that torch's optimizers keep for each parameter, each as large as the parameter."""

PARTS = ("parameters", "gradients", "optimizer")


@dataclass(frozen=True)
class Assumptions:
    """What is taken for granted where memory is counted: nothing of it is measured."""

    optimizer: str = "AdamW"
    states: int = 2
    """Tensors that the optimizer keeps for each parameter, placed like the parameter."""
    state_dtype: torch.dtype | None = None
    """None: the parameter's own, as torch's optimizers do."""
    gradient_dtype: torch.dtype | None = None
    """None: the parameter's own."""

    def __str__(self) -> str:
        def kind(dtype: torch.dtype | None) -> str:
            return "the parameter's dtype" if dtype is None else str(dtype).removeprefix("torch.")

        states = f"{self.states} state{'s' if self.states != 1 else ''} per parameter"
        return (
            f"Counted, not measured: gradients in {kind(self.gradient_dtype)}, {self.optimizer} with {states}"
            + (f" in {kind(self.state_dtype)}" if self.states else "")
            + "; both placed like their parameter, for parameters that require gradients. Step counters, padding, "
            "buffers and activations are not counted."
        )


def assume(
    optimizer: str | int = "AdamW", state_dtype: torch.dtype | None = None, gradient_dtype: torch.dtype | None = None
) -> Assumptions:
    """Assumptions from an optimizer's name, or from the number of states that it keeps per parameter.

    Raises:
        UsageError: an unknown name, or a number below 0.
    """
    if isinstance(optimizer, int) and not isinstance(optimizer, bool):
        if optimizer < 0:
            raise UsageError(f"optimizer={optimizer}: give the number of states it keeps per parameter, 0 or more")
        return Assumptions("an optimizer", optimizer, state_dtype, gradient_dtype)
    name = next((known for known in OPTIMIZERS if known.lower() == str(optimizer).lower()), None)
    if name is None:
        raise UsageError(
            f"optimizer {optimizer!r} is not known: give one of {', '.join(OPTIMIZERS)}, or the number of states "
            "that it keeps per parameter"
        )
    return Assumptions(name, OPTIMIZERS[name], state_dtype, gradient_dtype)


def memory_groups(mesh: Mesh, tensors: Iterable[Placed], assumed: Assumptions) -> list[RankGroup]:
    """Ranks that need equally much, the neediest first; values are bytes by `PARTS`."""
    kinds: dict[tuple[object, ...], list[Placed]] = {}
    for tensor in tensors:
        key = tensor.shape, tensor.placements, tensor.axes, tensor.dtype, tensor.requires_grad
        kinds.setdefault(key, []).append(tensor)
    blocks = blocks_of(mesh, [alike[0] for alike in kinds.values()])
    needed = np.zeros((*blocks.shape, len(PARTS)), dtype=np.int64)
    for alike in kinds.values():
        needed += len(alike) * _needed(alike[0], blocks, assumed)
    found = group_blocks(blocks, needed)
    return sorted(found, key=lambda group: (-sum(group.value), group.first))


def _needed(tensor: Placed, blocks: Blocks, assumed: Assumptions) -> Numbers:
    numel = blocks.local_numel(tensor)
    own = tensor.dtype.itemsize
    gradient = assumed.gradient_dtype.itemsize if assumed.gradient_dtype is not None else own
    state = assumed.states * (assumed.state_dtype.itemsize if assumed.state_dtype is not None else own)
    trained = int(tensor.requires_grad)
    return np.stack([numel * own, numel * gradient * trained, numel * state * trained], axis=-1)
