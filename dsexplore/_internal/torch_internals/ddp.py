"""``DistributedDataParallel`` and its reducer in C++."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.torch_internals.names import TorchName, internal

if TYPE_CHECKING:
    from torch._C._distributed_c10d import GradBucket as GradBucket
else:
    GradBucket = internal("torch.distributed:GradBucket")

_registry_of = internal("torch.distributed._composable.contract:_get_registry")
_register_hook = internal("torch._C._distributed_c10d:_register_comm_hook")

INIT = TorchName("torch.nn.parallel:DistributedDataParallel.__init__")
"""The constructor of the wrapper."""

REBUILD_BUCKETS = TorchName("torch.distributed:Reducer._rebuild_buckets")
SET_STATIC_GRAPH = TorchName("torch.distributed:Reducer._set_static_graph")
"""Methods of the reducer that write integers into the memory of tensors and send them."""

BUCKET_TENSORS = tuple(TorchName(f"torch.distributed:GradBucket.{name}") for name in ("buffer", "gradients"))
"""Methods of a bucket by which a communication hook gets its memory."""

COMMON_RANK = TorchName("torch.nn.parallel:DistributedDataParallel._find_common_rank")
"""Method by which ranks in a ``Join`` agree on one that broadcasts its parameters or buffers."""
CHECK_HOOK = TorchName("torch.nn.parallel:DistributedDataParallel._check_comm_hook")
"""Method that checks a communication hook before it is registered: ``(hook)``."""


def refuse_use(model: Any, refuse: Callable[[], NoReturn]) -> None:
    """Make a DDP model raise in its forward, and in a backward whose forward has run.

    Args:
        model: DDP wrapper, which may be half constructed, or a module to which ``replicate`` was applied.
        refuse: function that is called instead of forward and backward, and raises.
    """
    model._pre_forward = lambda *_args, **_kwargs: refuse()
    reducer = getattr(model, "reducer", None)
    if reducer is not None:
        with suppress(RuntimeError):  # the program has registered a hook, whose collectives raise
            _register_hook(reducer, None, lambda _state, _bucket: refuse())


def is_replicated(module: nn.Module) -> bool:
    """Return True if DDP reduces the gradients of this module: a wrapper, or a module of ``replicate``.

    False if FSDP reduces them, although ``replicate_with_fsdp.replicate`` leaves the same entry in a module's registry.
    """
    if isinstance(module, DistributedDataParallel):
        return True
    return "replicate" in (_registry_of(module) or ()) and not isinstance(module, FSDPModule)
