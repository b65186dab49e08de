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
_torchs = td.all_reduce


def all_reduce(tensor: Any, op: Any, group: Any, async_op: bool) -> Any:
    """As ``torch.distributed.all_reduce``."""
    live = _world.default_pg if group is None else group
    if (
        type(tensor) is not _Tensor
        or not isinstance(live, _ProcessGroup)
        or _world.pg_coalesce_state
        or has_torch_function_unary(tensor)
        or tensor.is_complex()
        or _is_compiling()
    ):
        return _torchs(tensor, op, group, async_op)
    options = AllreduceOptions()
    options.reduceOp = op
    options.asyncOp = async_op
    work = live.allreduce([tensor], options)
    if async_op:
        return work
    if work is not None:
        work.wait()
    return None
