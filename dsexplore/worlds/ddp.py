"""What `DistributedDataParallel` needs on a simulated group, whose collectives move nothing.

Its start compares the ranks' parameter shapes, which a group that moves nothing cannot answer; and its C++
reducer reads the result of an all-reduce from the future of the work, which a fake work does not fill. So in
a simulated world ``init_sync`` is off, and a model without a hook of its own gets one that all-reduces each
bucket as DDP does: divided by the group's size, asynchronously, one bucket after the other.

(DDP compares the hook's annotations with types: this module must not turn them into text.)
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from dsexplore.capture.frame_kinds import mark_ddp_hook
from dsexplore.errors import UsageError
from dsexplore.worlds.closed import translated
from dsexplore.worlds.patches import Patches


def patch_ddp(patches: Patches, made: Callable[[DistributedDataParallel], None], fake: bool) -> None:
    """Let DDP work on simulated groups, or say why it cannot.

    Args:
        patches: where the changes are kept.
        made: called with each DDP module that is created.
        fake: whether tensors are fake.
    """
    init: Callable[..., None] = DistributedDataParallel.__init__
    forward: Callable[..., Any] = DistributedDataParallel.forward

    @wraps(init)
    def simulated_init(module: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        if fake:
            raise UsageError(
                "DistributedDataParallel cannot run on fake tensors, because its C++ reducer reads their memory: "
                "simulate it without fake (--fake), or use torch.distributed.fsdp.fully_shard"
            )
        if len(args) < 6:  # module, device_ids, output_device, dim, broadcast_buffers, init_sync
            kwargs["init_sync"] = False
        else:
            args = (*args[:5], False, *args[6:])
        init(module, *args, **kwargs)
        made(module)

    @wraps(forward)
    def simulated_forward(module: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        if not module._comm_hooks:
            module.register_comm_hook(module.process_group, average)
        return forward(module, *args, **kwargs)

    patches.attribute(DistributedDataParallel, "__init__", simulated_init)
    patches.attribute(DistributedDataParallel, "forward", simulated_forward)


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
