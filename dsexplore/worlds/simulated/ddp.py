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
from torch.compiler import is_compiling
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from dsexplore.capture.frame_kinds import mark_ddp_hook
from dsexplore.torch_internals import ddp as torch_ddp
from dsexplore.torch_internals.ddp import GradBucket
from dsexplore.torch_internals.patches import Parts, Patch
from dsexplore.worlds.simulated.closed import Watch, translated


def _watched_init(init: Callable[..., None], parts: Parts) -> Callable[..., None]:
    @wraps(init)
    def simulated_init(ddp: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> None:
        init(ddp, *args, **kwargs)
        parts[Watch].module(ddp)

    return simulated_init


def _hooked_forward(forward: Callable[..., Any], _parts: Parts) -> Callable[..., Any]:
    @wraps(forward)
    def simulated_forward(ddp: DistributedDataParallel, /, *args: Any, **kwargs: Any) -> Any:
        if not is_compiling():
            torch_ddp.initialize(ddp)  # as the forward would: it gives a model with optimizers in backward their hook
        if not torch_ddp.has_comm_hook(ddp):
            ddp.register_comm_hook(ddp.process_group, average)
        return forward(ddp, *args, **kwargs)

    return simulated_forward


def _python_hook(register: Callable[..., None], _parts: Parts) -> Callable[..., None]:
    @wraps(register)
    def simulated_register(ddp: DistributedDataParallel, /, comm_hook_type: Any) -> None:
        is_half = torch_ddp.is_half_precision_hook(comm_hook_type)
        ddp.register_comm_hook(ddp.process_group, fp16_compress_hook if is_half else average)

    return simulated_register


def average(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """All-reduce a bucket's gradients, divided by the size of the group: a communication hook."""
    gradients = bucket.buffer()
    gradients.div_(group.size())
    with translated():
        dist.all_reduce(gradients, group=group, async_op=True)
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


mark_ddp_hook(average.__code__)

PATCHES = (
    Patch(torch_ddp.INIT, "models of a world that is closed are refused", _watched_init),
    Patch(torch_ddp.FORWARD, "the reducer reads the future of a work, which a fake one leaves empty", _hooked_forward),
    Patch(torch_ddp.REGISTER_BUILTIN_HOOK, "torch's hooks in C++ read it too", _python_hook),
)
