"""Stand-ins for NVIDIA Apex's data parallelism, synchronized batch norm and mixed precision, for older scripts.

Names, signatures and collectives are those of https://github.com/NVIDIA/apex: ``apex/parallel/distributed.py`` and
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
    """Concatenate tensors of one dtype, send the result in place, and copy it back into them."""
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    send(flat)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


class DistributedDataParallel(nn.Module):
    """Broadcasts the parameters, one message per dtype, and reduces gradients in buckets as they become ready.

    A bucket is sent when it has ``message_size`` elements or more. The first backward reduces all gradients of a dtype
    together, because Apex first records their order; with ``delay_allreduce`` every backward does. Buffers are not
    sent.
    """

    def __init__(
        self,
        module: nn.Module,
        message_size: int = 10_000_000,
        delay_allreduce: bool = False,
        shared_param: bool | None = None,
        allreduce_trigger_params: Sequence[Tensor] | None = None,
        retain_allreduce_buffers: bool = False,
        allreduce_always_fp32: bool = False,
        num_allreduce_streams: int = 1,
        allreduce_communicators: Any = None,
        gradient_average: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        self.module, self.message_size, self.gradient_average = module, message_size, gradient_average
        self.delay_allreduce = delay_allreduce
        self._limit: float = math.inf  # elements of a full bucket
        self._left = 0  # gradients that are not ready
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
        """Add a gradient that is ready to its bucket, and reduce full buckets; with the last gradient, all of them."""
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
    """Return a tensor, or a nested container, with all floating-point tensors in this dtype."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(_cast(element, dtype) for element in value)
    if isinstance(value, dict):
        return {key: _cast(element, dtype) for key, element in value.items()}
    return value


def _make_half(model: nn.Module, keep_batch_norms: bool) -> None:
    """Convert a model to float16; its inputs are cast to float16, and its outputs to float32."""
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

    Gradients have the same dtypes as with Apex: float32 at levels O0 and O1, where Apex casts inputs of functions, and
    float16 at O2 (except for batch norms) and O3. The optimizers update these parameters without float32 copies.

    Raises:
        UsageError: ``opt_level`` is not one of Apex's levels.
    """
    if opt_level not in _LEVELS:
        raise UsageError(f"opt_level={opt_level!r} is none of Apex's levels: give one of {', '.join(_LEVELS)}")
    if enabled and opt_level in ("O2", "O3"):
        for model in models if isinstance(models, (list, tuple)) else [models]:
            _make_half(model, keep_batch_norms=opt_level == "O2")
    return models if optimizers is None else (models, optimizers)


@contextmanager
def scale_loss(loss: Any, optimizers: Any, *_args: Any, **_options: Any) -> Iterator[Any]:
    """Yield the loss unchanged, for its ``backward``: its scale is 1."""
    yield loss


def master_params(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    """Yield the parameters that an optimizer updates."""
    for group in optimizer.param_groups:
        yield from group["params"]


class SyncBatchNorm(nn.SyncBatchNorm):
    """Batch norm over the ranks of a group; its statistics are gathered as by torch's."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        channel_last: bool = False,
        fuse_relu: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, process_group)
        self.channel_last, self.fuse_relu = channel_last, fuse_relu

    def forward(self, input: Tensor, z: Tensor | None = None) -> Tensor:  # noqa: A002 # as torch's
        """Return the norm, with ``z`` added to it."""
        out = super().forward(input.movedim(-1, 1)).movedim(1, -1) if self.channel_last else super().forward(input)
        out = out if z is None else out + z
        return torch.relu(out) if self.fuse_relu else out


def convert_syncbn_model(
    module: nn.Module, process_group: dist.ProcessGroup | None = None, channel_last: bool = False
) -> nn.Module:
    """Replace the batch norms in a module with `SyncBatchNorm`, and return the module."""
    converted = module
    if isinstance(module, _BATCH_NORMS):
        converted = SyncBatchNorm(
            module.num_features,
            module.eps,
            module.momentum,
            module.affine,
            module.track_running_stats,
            process_group,
            channel_last,
        )
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(converted, name, getattr(module, name))
    for name, child in module.named_children():
        converted.add_module(name, convert_syncbn_model(child, process_group, channel_last))
    return converted


def create_syncbn_process_group(group_size: int) -> dist.ProcessGroup | None:
    """Return the group of ``group_size`` consecutive ranks that this rank is in; None for 0."""
    if not group_size:
        return None
    groups = [
        dist.new_group(list(range(first, first + group_size))) for first in range(0, dist.get_world_size(), group_size)
    ]
    group: dist.ProcessGroup = groups[dist.get_rank() // group_size]
    return group


class Reducer:
    """Broadcasts a model's parameters once, and averages its gradients when `reduce` is called."""

    def __init__(self, module_or_grads_list: Any) -> None:
        self.module = module_or_grads_list if isinstance(module_or_grads_list, nn.Module) else None
        self.grads: Sequence[Tensor] = [] if self.module is not None else module_or_grads_list
        if self.module is not None:
            _send_by_dtype([p.detach() for p in self.module.parameters()], lambda flat: dist.broadcast(flat, 0))

    def reduce(self) -> None:
        """Average the gradients over all ranks, one message per dtype."""
        parameters = self.module.parameters() if self.module is not None else ()
        gradients = [*self.grads, *(p.grad for p in parameters if p.grad is not None)]

        def average(flat: Tensor) -> None:
            dist.all_reduce(flat)
            flat.div_(dist.get_world_size())

        _send_by_dtype(gradients, average)


def _send_by_dtype(tensors: Sequence[Tensor], send: Callable[[Tensor], object]) -> None:
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        _send_flat([tensor for tensor in tensors if tensor.dtype == dtype], send)


class LARC:
    """Wraps an optimizer to scale its learning rate per parameter by the ratio of the parameter's and gradient's norms.

    With ``clip`` the scaled ratio is an upper limit of the learning rate; else it is a factor.
    """

    def __init__(self, optimizer: Any, trust_coefficient: float = 0.02, clip: bool = True, eps: float = 1e-8) -> None:
        self.optim = optimizer
        self.trust_coefficient, self.clip, self.eps = trust_coefficient, clip, eps

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optim"], name)

    @torch.no_grad()
    def step(self) -> None:
        """Scale the gradients, and let the optimizer take a step without its weight decay."""
        decays = []
        for group in self.optim.param_groups:
            decays.append(group.get("weight_decay", 0.0))
            group["weight_decay"] = 0.0
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._scale(parameter, parameter.grad, group["lr"], decays[-1])
        self.optim.step()
        for group, decay in zip(self.optim.param_groups, decays, strict=True):
            group["weight_decay"] = decay

    def _scale(self, parameter: Tensor, gradient: Tensor, rate: float, decay: float) -> None:
        """Scale a gradient in place, with weight decay added; one of norm 0 stays."""
        norm, gradient_norm = parameter.norm(), gradient.norm()
        ratio = self.trust_coefficient * norm / (gradient_norm + norm * decay + self.eps)
        ratio = (ratio / rate).clamp(max=1) if self.clip else ratio
        scaled = (gradient + decay * parameter) * ratio
        gradient.copy_(torch.where((norm != 0) & (gradient_norm != 0), scaled, gradient))
