"""Stand-ins for the data parallelism and mixed precision of NVIDIA Apex, which older training scripts use.

Names, signatures and what is sent are those of https://github.com/NVIDIA/apex: ``apex/parallel/distributed.py`` and
``apex/amp/frontend.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dsexplore._internal.errors import UsageError

_LEVELS = ("O0", "O1", "O2", "O3")
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def _send_flat(tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
    """Send tensors of one dtype as a single flat one, and copy the result back."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    send(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


class DistributedDataParallel(nn.Module):
    """Broadcasts the parameters, one message a dtype, and reduces gradients in buckets as they become ready.

    The first backward reduces all gradients of a dtype together, as Apex does until it has seen in which order they
    come. Buffers are not sent.

    Args:
        module: the model.
        message_size: number of elements from which on a bucket is sent.
        delay_allreduce: whether to reduce all gradients of a dtype together in each backward.
        gradient_average: whether to divide by the number of ranks.
        options: Apex's others, which change nothing that is sent.
    """

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10_000_000,
        delay_allreduce: bool = False,
        gradient_average: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.module, self.message_size, self.gradient_average = module, message_size, gradient_average
        self.delay_allreduce = delay_allreduce
        self._limit: float = math.inf
        self._left = 0
        self._ready: dict[torch.dtype, list[Tensor]] = {}
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for parameter in module.parameters():
            by_dtype.setdefault(parameter.dtype, []).append(parameter.data)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._add)
        for tensors in by_dtype.values():
            _send_flat(tensors, lambda flat: dist.broadcast(flat, 0))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        self._left = sum(parameter.requires_grad for parameter in self.module.parameters())
        return self.module(*args, **kwargs)

    def _add(self, parameter: Tensor) -> None:
        if parameter.grad is None:
            return
        bucket = self._ready.setdefault(parameter.grad.dtype, [])
        bucket.append(parameter.grad)
        self._left -= 1
        if sum(gradient.numel() for gradient in bucket) >= self._limit:
            self._reduce(parameter.grad.dtype)
        if not self._left:
            for dtype in list(self._ready):
                self._reduce(dtype)
            self._limit = math.inf if self.delay_allreduce else self.message_size

    def _reduce(self, dtype: torch.dtype) -> None:
        gradients = self._ready.pop(dtype)
        _send_flat(gradients, dist.all_reduce)
        if self.gradient_average:
            for gradient in gradients:
                gradient.div_(dist.get_world_size())


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with its floating-point tensors in this dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(element, dtype) for element in value)
    if isinstance(value, dict):
        return {key: _cast(element, dtype) for key, element in value.items()}
    return value


def _to_half(model: nn.Module, keep_batch_norms: bool) -> None:
    """Make a model compute in float16, from inputs and to outputs of float32."""
    for part in model.modules():
        if not (keep_batch_norms and isinstance(part, _BATCH_NORMS)):
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                tensor.data = _cast(tensor.data, torch.float16)
    model.register_forward_pre_hook(
        lambda _model, args, kwargs: (_cast(args, torch.float16), _cast(kwargs, torch.float16)), with_kwargs=True
    )
    model.register_forward_hook(lambda _model, _args, output: _cast(output, torch.float32))


def initialize(models: Any, optimizers: Any = None, enabled: bool = True, opt_level: str = "O1", **options: Any) -> Any:
    """Return models, and optimizers if given, for mixed precision.

    Gradients have the dtypes that Apex gives them: float32 at levels O0 and O1, where it casts inputs of functions,
    float16 at O2, batch norms excepted, and O3. The optimizers update these parameters without copies in float32.

    Raises:
        UsageError: no such level.
    """
    if opt_level not in _LEVELS:
        raise UsageError(f"opt_level={opt_level!r} is none of Apex's levels: give one of {', '.join(_LEVELS)}")
    if enabled and opt_level in ("O2", "O3"):
        for model in models if isinstance(models, (list, tuple)) else [models]:
            _to_half(model, keep_batch_norms=opt_level == "O2")
    return models if optimizers is None else (models, optimizers)


@contextmanager
def scale_loss(loss: Any, optimizers: Any, *_args: Any, **_options: Any) -> Iterator[Any]:
    """Yield the loss to call ``backward`` of; it is scaled by 1."""
    yield loss


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the parameters that an optimizer updates."""
    for group in optimizer.param_groups:
        yield from group["params"]
