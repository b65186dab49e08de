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
"""The methods of the reducer that write integers into tensors' memory and send them."""

BUCKET_TENSORS = tuple(TorchName(f"torch.distributed:GradBucket.{name}") for name in ("buffer", "gradients"))
"""The methods of a bucket that give its memory to a communication hook."""

COMMON_RANK = TorchName("torch.nn.parallel:DistributedDataParallel._find_common_rank")
"""The method by which ranks in a ``Join`` agree on the one that sends its parameters or buffers to the others."""
CHECK_HOOK = TorchName("torch.nn.parallel:DistributedDataParallel._check_comm_hook")
"""The method that checks a communication hook before it is registered: ``(hook)``."""


def refuse_use(model: Any, refuse: Callable[[], NoReturn]) -> None:
    """Make a model raise in its forward, also one that ``replicate`` made, and in a backward whose forward has run.

    Args:
        model: a DDP wrapper, which may be half made.
        refuse: called instead of forward and backward; it raises.
    """
    model._pre_forward = lambda *_args, **_kwargs: refuse()
    reducer = getattr(model, "reducer", None)
    if reducer is not None:
        with suppress(RuntimeError):  # it has a hook of the program, whose collectives are refused
            _register_hook(reducer, None, lambda _state, _bucket: refuse())


def is_replicated(module: nn.Module) -> bool:
    """Return True if DDP reduces the gradients of this module: a wrapper, or what ``replicate`` was applied to.

    False where FSDP reduces them: ``replicate_with_fsdp.replicate`` leaves the same entry in a module's registry.
    """
    if isinstance(module, DistributedDataParallel):
        return True
    return "replicate" in (_registry_of(module) or ()) and not isinstance(module, FSDPModule)
