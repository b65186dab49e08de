"""Gathers into a list whose tensors have other shapes than this rank's part, as an optimizer gathers what ranks own.

NCCL sends each part as a broadcast from its owner, of whatever shape; gloo refuses. A simulated group copies this
rank's part into every tensor of the list, and fails on other shapes. There, the parts of other ranks are filled with
the first value of this rank's part, and this rank's own gets the part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.simulated.target_traffic import Target


def patch_uneven_gathers(patches: Patches, target: Target) -> None:
    """Make simulated groups gather parts of different shapes as the target's backend does.

    Raises:
        RuntimeError: by the gather, where the target is a CPU: gloo takes parts of one shape.
    """
    patches.attribute(dist.ProcessGroup, "allgather", _of_any_shapes(dist.ProcessGroup.allgather, target))


def _of_any_shapes(method: Callable[..., Any], target: Target) -> Callable[..., Any]:
    @wraps(method)
    def gather(group: dist.ProcessGroup, outputs: Any, parts: Any, *args: Any, **kwargs: Any) -> Any:
        gathered, part = _one_list(outputs), _one_list(parts)
        if not isinstance(gathered, (list, tuple)) or not isinstance(part, torch.Tensor):
            return method(group, outputs, parts, *args, **kwargs)
        if all(each.shape == part.shape for each in gathered):
            return method(group, outputs, parts, *args, **kwargs)
        _check(gathered, part, group.size(), target)
        sent = part.detach().clone()  # the list may hold the part itself
        first = sent.view(-1)[0] if sent.numel() else sent.new_zeros(())
        work = method(group, outputs, first if part is parts else [first], *args, **kwargs)
        with torch.no_grad():
            gathered[group.rank()].copy_(sent.view(gathered[group.rank()].shape))
        return work

    return gather


def _one_list(given: Any) -> Any:
    """The only element of a list, such as the list of tensors of a list of lists; anything else as it is."""
    return given[0] if isinstance(given, (list, tuple)) and len(given) == 1 else given


def _check(gathered: Sequence[torch.Tensor], part: torch.Tensor, ranks: int, target: Target) -> None:
    if len(gathered) != ranks:
        raise RuntimeError(f"all_gather: the list has {len(gathered)} tensors, and the group {ranks} ranks")
    if target == "cpu":
        other = next(number for number, each in enumerate(gathered) if each.shape != part.shape)
        raise RuntimeError(
            f"all_gather: gloo takes parts of one shape, and tensor {other} of the list is "
            f"{tuple(gathered[other].shape)} where this rank's part is {tuple(part.shape)}; NCCL takes any shapes"
        )
