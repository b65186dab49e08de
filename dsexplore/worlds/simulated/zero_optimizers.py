"""torch's ``ZeroRedundancyOptimizer`` in a simulated world: states that other ranks would send when it is consolidated.

``consolidate_state_dict`` has each rank broadcast its optimizer's state, pickled, by a function of its own. A simulated
rank receives nothing, so torch would unpickle what was in that memory. Here this rank's own state takes the place of
each other one's, and is broadcast with its size.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from dsexplore.torch_internals.on_import import on_import
from dsexplore.torch_internals.patches import Patches

_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"


def patch_zero_optimizers(patches: Patches) -> None:
    """Make ``consolidate_state_dict`` find a state for each rank."""
    on_import(patches, _ZERO, partial(_patch, patches))


def _patch(patches: Patches, module: ModuleType) -> None:
    own: list[Any] = []
    optimizer = module.ZeroRedundancyOptimizer
    consolidate = optimizer.consolidate_state_dict

    @wraps(consolidate)
    def consolidated(self: Any, *args: Any, **kwargs: Any) -> Any:
        own.append(self.optim.state_dict())
        try:
            return consolidate(self, *args, **kwargs)
        finally:
            own.pop()

    patches.attribute(optimizer, "consolidate_state_dict", consolidated)
    patches.function(module._broadcast_object, partial(_received_as_own, own))


def _received_as_own(own: list[Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """torch's broadcast of an object, which brings the state of this rank where another one's would arrive."""

    def broadcast(obj: Any, src_rank: int, group: Any = dist.group.WORLD, device: Any = "cpu") -> Any:
        if src_rank == dist.get_rank() or not own:
            return original(obj, src_rank, group, device)
        size = torch.tensor([_pickled_bytes(own[-1])], device=device)
        dist.broadcast(size, src=src_rank, group=group)
        dist.broadcast(torch.empty(int(size), dtype=torch.uint8, device=device), src=src_rank, group=group)
        return own[-1]

    return broadcast


def _pickled_bytes(state: Any) -> int:
    """The bytes as which torch broadcasts a state."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer().nbytes
