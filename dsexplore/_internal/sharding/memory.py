"""Count the memory that training needs on each rank: parameters, gradients and optimizer states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from dsexplore._internal.errors import UsageError
from dsexplore._internal.mesh import Mesh, Numbers
from dsexplore._internal.sharding.rank_groups import Blocks, RankGroup, blocks_of, group_blocks
from dsexplore._internal.sharding.tensor import PlacedTensor
from dsexplore._internal.units import format_count

OPTIMIZERS = {"AdamW": 2, "Adam": 2, "SGD": 0, "SGD with momentum": 1, "Adagrad": 1, "RMSprop": 1, "none": 0}
"""Number of states that torch's optimizers keep per parameter, each as large as the parameter."""

PARTS = ("parameters", "gradients", "optimizer")
"""Uses of memory that are counted."""


@dataclass(frozen=True)
class Assumptions:
    """Assumptions of the memory count, because nothing is measured; as text, a sentence on them."""

    optimizer: str = "AdamW"
    states: int = 2
    """Number of tensors that the optimizer keeps per parameter, placed like the parameter."""
    state_dtype: torch.dtype | None = None
    """Data type of the optimizer's states; None for that of the parameter, as in torch's optimizers."""
    gradient_dtype: torch.dtype | None = None
    """Data type of gradients; None for that of the parameter."""

    def __str__(self) -> str:
        def name(dtype: torch.dtype | None) -> str:
            return "the parameter's dtype" if dtype is None else str(dtype).removeprefix("torch.")

        states = f"{format_count(self.states, 'state')} per parameter"
        if self.states:
            states += f" in {name(self.state_dtype)}"
        return (
            f"Counted, not measured: gradients in {name(self.gradient_dtype)}, {self.optimizer} with {states}; both "
            "placed like their parameter, for parameters that require gradients. Step counters, padding, buffers and "
            "activations are not counted."
        )


def assume(
    optimizer: str | int = "AdamW", state_dtype: torch.dtype | None = None, gradient_dtype: torch.dtype | None = None
) -> Assumptions:
    """Return the assumptions for an optimizer, given by its name or its number of states per parameter.

    Raises:
        UsageError: the name is unknown, or the number below 0.
    """
    if isinstance(optimizer, int) and not isinstance(optimizer, bool):
        if optimizer < 0:
            raise UsageError(f"optimizer={optimizer}: give the number of states it keeps per parameter, 0 or more")
        return Assumptions("an optimizer", optimizer, state_dtype=state_dtype, gradient_dtype=gradient_dtype)
    name = next((known for known in OPTIMIZERS if known.lower() == str(optimizer).lower()), None)
    if name is None:
        raise UsageError(
            f"optimizer {optimizer!r} is not known: give one of {', '.join(OPTIMIZERS)}, or the number of states "
            "that it keeps per parameter"
        )
    return Assumptions(name, OPTIMIZERS[name], state_dtype=state_dtype, gradient_dtype=gradient_dtype)


def memory_groups(mesh: Mesh, tensors: Iterable[PlacedTensor], assumed: Assumptions) -> list[RankGroup]:
    """Return groups of ranks that need equal memory, the largest first; values are bytes by `PARTS`."""
    kinds: dict[tuple[object, ...], list[PlacedTensor]] = {}
    for tensor in tensors:
        key = tensor.shape, tensor.placements, tensor.axes, tensor.dtype, tensor.requires_grad
        kinds.setdefault(key, []).append(tensor)
    blocks = blocks_of(mesh, [same_kind[0] for same_kind in kinds.values()])
    needed = np.zeros((*blocks.shape, len(PARTS)), dtype=np.int64)
    for same_kind in kinds.values():
        needed += len(same_kind) * _needed(same_kind[0], blocks, assumed)
    groups = group_blocks(blocks, needed)
    return sorted(groups, key=lambda group: (-sum(group.value), group.first))


def _needed(tensor: PlacedTensor, blocks: Blocks, assumed: Assumptions) -> Numbers:
    """Return the bytes of one tensor on the ranks of each block; the last dim is `PARTS`."""
    itemsize = tensor.dtype.itemsize
    gradient = states = 0
    if tensor.requires_grad:
        gradient = itemsize if assumed.gradient_dtype is None else assumed.gradient_dtype.itemsize
        states = assumed.states * (itemsize if assumed.state_dtype is None else assumed.state_dtype.itemsize)
    numel = blocks.local_numel(tensor)
    return np.stack([numel * itemsize, numel * gradient, numel * states], axis=-1)
