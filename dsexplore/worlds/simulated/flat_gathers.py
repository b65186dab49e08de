"""Gathers into a tensor whose first dim is not that of the parts, such as [1, ranks × C] for parts of [C].

A backend sees memory, and fills it. A simulated group copies this rank's part along the first dim of the whole, and
fails where that has another length. Such a gather, or reduce_scatter, is issued with both tensors flat.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from dsexplore.torch_internals.patches import Patches

_GATHERS = ("_allgather_base", "all_gather_single")
"""Methods of ``ProcessGroup`` that gather into one tensor: the whole comes before the part."""
_SCATTERS = ("_reduce_scatter_base", "reduce_scatter_single")
"""Methods of ``ProcessGroup`` that scatter one tensor: the part comes before the whole."""


def patch_flat_gathers(patches: Patches) -> None:
    """Make simulated groups gather into, and scatter, tensors of any shape."""
    for name in _GATHERS + _SCATTERS:
        method = vars(dist.ProcessGroup).get(name)
        if method is not None:
            patches.attribute(dist.ProcessGroup, name, _flat(method))


def _flat(method: Callable[..., Any]) -> Callable[..., Any]:
    gathers = method.__name__ in _GATHERS

    @wraps(method)
    def collective(group: dist.ProcessGroup, output: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        whole, part = (output, given) if gathers else (given, output)
        if isinstance(whole, torch.Tensor) and whole.shape[:1] != (group.size() * (part.shape[:1] or (1,))[0],):
            output, given = output.view(-1), given.view(-1)
        return method(group, output, given, *args, **kwargs)

    return collective
