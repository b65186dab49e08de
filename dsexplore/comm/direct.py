"""torch's all_reduce without the part of its Python that the usual call does not need.

The call that training makes most is the one that a layer over torch must not slow down: what this package does
around it costs less than what is left out here. Whatever is unusual goes through torch's function.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as td
from torch.distributed.distributed_c10d import AllreduceOptions, _world
from torch.overrides import has_torch_function_unary

_Tensor, _ProcessGroup = torch.Tensor, td.ProcessGroup
_is_compiling = torch.compiler.is_compiling


def usual(tensor: Any, live: Any) -> bool:
    """Whether the call is one of a plain contiguous tensor, on a group that collects no calls, outside a compiler."""
    return (
        type(tensor) is _Tensor
        and tensor.is_contiguous()
        and isinstance(live, _ProcessGroup)
        and not _world.pg_coalesce_state
        and not has_torch_function_unary(tensor)
        and not tensor.is_complex()
        and not _is_compiling()
    )


def all_reduce(tensor: torch.Tensor, op: Any, live: Any) -> None:
    """As ``torch.distributed.all_reduce``, for a `usual` call on a live group."""
    options = AllreduceOptions()
    options.reduceOp = op
    options.asyncOp = False
    work = live.allreduce([tensor], options)
    if work is not None:
        work.wait()
