"""Changes to `DistributedDataParallel` for a simulated group, whose collectives move nothing.

Its C++ reducer reads the result of an all-reduce from the future of the work, which is empty in a fake work. So a
model without a hook of its own gets one that all-reduces each bucket as DDP does: divided by the group's size,
asynchronously, one bucket after the other. torch's two hooks in C++ give way to those of the same name in Python.

(DDP compares the hook's annotations with types: this module must not turn them into text.)
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket
from torch.compiler import is_compiling
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from dsexplore.capture.frame_kinds import mark_ddp_hook
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.simulated.closed import translated


def patch_ddp(patches: Patches, made: Callable[[DistributedDataParallel], None]) -> None:
    """Make DDP work on simulated groups.

    Args:
        patches: where the changes are kept.
        made: called with each DDP module that is created.
    """
    init: Callable[..., None] = DistributedDataParallel.__init__
    forward: Callable[..., Any] = DistributedDataParallel.forward
    register: Callable[..., None] = DistributedDataParallel._register_builtin_comm_hook

    @wraps(init)
    def simulated_init(ddp: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> None:
        init(ddp, *args, **kwargs)
        made(ddp)

    @wraps(forward)
    def simulated_forward(ddp: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
        if not (ddp._lazy_init_ran or is_compiling()):
            ddp._lazy_init()  # as the forward would: it gives a model whose optimizers run in backward their hook
        if not ddp._comm_hooks:
            ddp.register_comm_hook(ddp.process_group, average)
        return forward(ddp, *args, **kwargs)

    @wraps(register)
    def simulated_register(ddp: DistributedDataParallel, /, comm_hook_type: Any) -> None:
        is_half = comm_hook_type == BuiltinCommHookType.FP16_COMPRESS
        ddp.register_comm_hook(ddp.process_group, fp16_compress_hook if is_half else average)

    patches.attribute(DistributedDataParallel, "__init__", simulated_init)
    patches.attribute(DistributedDataParallel, "forward", simulated_forward)
    patches.attribute(DistributedDataParallel, "_register_builtin_comm_hook", simulated_register)


def average(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The communication hook: all-reduce a bucket's gradients, divided by the size of the group."""
    gradients = bucket.buffer()
    gradients.div_(group.size())
    with translated():
        dist.all_reduce(gradients, group=group, async_op=True)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


mark_ddp_hook(average.__code__)
