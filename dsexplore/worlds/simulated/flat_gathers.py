"""Gathers into a tensor whose first dim is not that of the parts, such as [1, ranks × C] for parts of [C].

A backend sees memory, and fills it. A simulated group copies this rank's part along the first dim of the output, and
fails where that has another length. Such a gather is issued with both tensors flat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from dsexplore.worlds.patches import Patches

_METHODS = ("_allgather_base", "all_gather_single")
"""Methods of ``ProcessGroup`` that gather into one tensor."""


def patch_flat_gathers(patches: Patches) -> None:
    """Make simulated groups gather into tensors of any shape."""
    for name in _METHODS:
        method = vars(dist.ProcessGroup).get(name)
        if method is not None:
            patches.attribute(dist.ProcessGroup, name, _flat(method))


def _flat(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def gather(group: dist.ProcessGroup, output: Any, part: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(output, torch.Tensor) and output.shape[:1] != (group.size() * (part.shape[:1] or (1,))[0],):
            output, part = output.view(-1), part.view(-1)
        return method(group, output, part, *args, **kwargs)

    return gather
