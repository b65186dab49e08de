"""torch's ``ZeroRedundancyOptimizer`` in a simulated world: states that other ranks would send when it is consolidated.

``consolidate_state_dict`` has each rank broadcast its optimizer's state, pickled, by a function of its own. A simulated
rank receives nothing, so torch would unpickle what was in that memory. Here this rank's own state takes the place of
each other one's, and is broadcast with its size.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from dsexplore.torch_internals import optimizers
from dsexplore.torch_internals.patches import Parts, Patch


class _States:
    """The optimizer states of this rank that are being consolidated, the innermost last."""

    def __init__(self) -> None:
        self.open: list[Any] = []


def _with_own_state(consolidate: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    states = parts[_States].open

    @wraps(consolidate)
    def consolidated(self: Any, *args: Any, **kwargs: Any) -> Any:
        states.append(self.optim.state_dict())
        try:
            return consolidate(self, *args, **kwargs)
        finally:
            states.pop()

    return consolidated


def _receiving_own_state(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap torch's broadcast of an object to return this rank's state in place of another rank's."""
    states = parts[_States].open

    def broadcast(obj: Any, src_rank: int, group: Any = dist.group.WORLD, device: Any = "cpu") -> Any:
        if src_rank == dist.get_rank() or not states:
            return original(obj, src_rank, group, device)
        size = torch.tensor([_pickled_bytes(states[-1])], device=device)
        dist.broadcast(size, src=src_rank, group=group)
        dist.broadcast(torch.empty(int(size), dtype=torch.uint8, device=device), src=src_rank, group=group)
        return states[-1]

    return broadcast


def _pickled_bytes(state: Any) -> int:
    """Return the number of bytes of a pickled state, as torch broadcasts it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer().nbytes


PATCHES = (
    Patch(optimizers.ZERO_CONSOLIDATE, "other ranks send their states meanwhile", _with_own_state, on_import=True),
    Patch(
        optimizers.ZERO_BROADCAST,
        "nothing arrives from another rank, and torch would unpickle it",
        _receiving_own_state,
        by_code=True,
        on_import=True,
    ),
)
