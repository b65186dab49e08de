"""Futures of simulated collectives that hold values, as those of NCCL and gloo do.

The work of a fake process group is done at once, and its future holds None. What reads a result from the future, such
as DDP's communication hooks, would fail on it. In a simulated world a collective called from Python with
``async_op=True`` returns a work whose future holds the tensors that the collective wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from dsexplore.torch_internals.patches import Patches

_METHODS = (
    "allreduce",
    "allreduce_coalesced",
    "allgather",
    "_allgather_base",
    "all_gather_single",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
)
"""Methods of ``ProcessGroup`` whose first argument is what they write: a tensor, a list of them, or a list per tensor
of those gathered."""


def patch_futures(patches: Patches) -> None:
    """Give the works of asynchronous collectives a future with a value."""
    for name in _METHODS:
        method = vars(dist.ProcessGroup).get(name)
        if method is not None:
            patches.attribute(dist.ProcessGroup, name, _with_value(method))


def _with_value(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def collective(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        work = method(group, *args, **kwargs)
        options = args[-1] if args else kwargs.get("opts")
        if not getattr(options, "asyncOp", False):
            return work
        written = args[0]
        future: Any = torch.futures.Future()
        future.set_result([written] if isinstance(written, torch.Tensor) else list(written))
        return c10d._create_work_from_future(future)  # type: ignore[attr-defined] # missing in torch's stubs

    return collective
