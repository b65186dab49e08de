"""``DistributedDataParallel`` and its reducer in C++."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsexplore.torch_internals.names import TorchName, internal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket as GradBucket
else:
    GradBucket = internal("torch._C._distributed_c10d:GradBucket")

INIT = TorchName("torch.nn.parallel:DistributedDataParallel.__init__")
REBUILD_BUCKETS = TorchName("torch.distributed:Reducer._rebuild_buckets")
SET_STATIC_GRAPH = TorchName("torch.distributed:Reducer._set_static_graph")
"""The methods of the reducer that write integers into tensors' memory and send them."""

BUCKET_TENSORS = tuple(TorchName(f"torch.distributed:GradBucket.{name}") for name in ("buffer", "gradients"))
"""The methods of a bucket that give its memory to a communication hook."""

FORWARD = TorchName("torch.nn.parallel:DistributedDataParallel.forward")
REGISTER_BUILTIN_HOOK = TorchName("torch.nn.parallel:DistributedDataParallel._register_builtin_comm_hook")
"""The method that registers one of torch's communication hooks in C++: ``(comm_hook_type)``."""


def initialize(ddp: Any) -> None:
    """Do what a model does before its first forward, unless it has: give one with optimizers in backward their hook."""
    if not ddp._lazy_init_ran:
        ddp._lazy_init()


def has_comm_hook(ddp: Any) -> bool:
    """Return True if a model has a communication hook."""
    return bool(ddp._comm_hooks)


def is_half_precision_hook(kind: Any) -> bool:
    """Return True for torch's hook in C++ that sends gradients in float16."""
    return bool(kind == internal("torch._C._distributed_c10d:BuiltinCommHookType.FP16_COMPRESS"))

CHECK_HOOK = TorchName("torch.nn.parallel:DistributedDataParallel._check_comm_hook")
"""The method that checks a communication hook before it is registered: ``(hook)``."""
