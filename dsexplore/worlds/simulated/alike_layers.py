"""Alike layers of a model: consecutive children of one container with the same parts, shapes and settings.

Layers are compared as they are before the step, with all that was done to them: their parameters' placements, wrappers,
hooks and FSDP2's settings. A number that is a layer's own index may differ.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

_WRAPPERS = (DistributedDataParallel, FullyShardedDataParallel)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)

FIRST, LAST = 3, 1
"""How many layers are performed before those that are left out, and after them. The first and the last may differ from
the others; of two that are alike, one is compared with the other."""


@dataclass(frozen=True)
class Stretch:
    """The layers of one container.

    Attributes:
        layers: all of them, in order; all but the first and the last are alike.
    """

    layers: tuple[nn.Module, ...]

    @property
    def left_out(self) -> range:
        """The indices of the layers that repeat others."""
        return range(FIRST, len(self.layers) - LAST)

    def position(self, index: int) -> int:
        """The place of a layer among those that are performed."""
        return index if index < FIRST else index - len(self.left_out)


def alike_layers(mode: FakeTensorMode) -> list[Stretch]:
    """The containers of a world's models, whose layers are alike and more than are performed.

    None where DDP or FSDP1 is used, whose buckets and flat parameters need each gradient. Models made outside of the
    world, as of earlier cells of a notebook, do not count: no parameter of theirs is a fake tensor of its mode.

    Args:
        mode: of the world's fake tensors.
    """
    containers = []
    for one in gc.get_objects():
        if issubclass(type(one), _WRAPPERS) and _has_parameters_of(one, mode):
            return []
        if issubclass(type(one), _CONTAINERS) and len(one) > FIRST + LAST and _has_parameters_of(one, mode):
            containers.append(tuple(one._modules.values()))
    inner = {id(part) for layers in containers for layer in layers for part in layer.modules() if part is not layer}
    outer = [layers for layers in containers if not any(id(layer) in inner for layer in layers)]
    return [Stretch(layers) for layers in outer if len(set(map(id, layers))) == len(layers) and _are_alike(layers)]


def _has_parameters_of(module: nn.Module, mode: FakeTensorMode) -> bool:
    """Whether some parameter is a fake tensor of the mode, or a DTensor whose shard is one."""
    shards: Iterator[Any] = (getattr(one, "_local_tensor", one) for one in module.parameters())
    return any(isinstance(one, FakeTensor) and one.fake_mode is mode for one in shards)


def _are_alike(layers: tuple[nn.Module, ...]) -> bool:
    """Whether all but the first and the last are alike."""
    first = _description(layers[1])
    return first is not None and all(
        _is_same(first, _description(layer), index - 1) for index, layer in enumerate(layers[1:-1], start=1)
    )


def _is_same(one: list[Any], other: list[Any] | None, apart: int) -> bool:
    """Whether two descriptions are the same, but for numbers that are as far apart as the layers."""
    if other is None or len(one) != len(other):
        return False
    return all(
        left == right or (type(left) is int and type(right) is int and right - left == apart)
        for left, right in zip(one, other, strict=True)
    )


def _description(layer: nn.Module) -> list[Any] | None:
    """A layer's description without its tensors' values; None if a hook waits for its gradients, which some count."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        found += [name, type(module), *_settings(module), *_hooks(module)]
        if isinstance(module, FSDPModule):
            found += _sharding(module)
    for name, parameter in layer.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return None
        found += [name, parameter.requires_grad, _shape(parameter)]
    for name, buffer in layer.named_buffers():
        found += [name, _shape(buffer)]
    return found


def _settings(thing: Any) -> Iterator[Any]:
    """The plain values among the attributes of an object, each behind its name."""
    for name, value in sorted(vars(thing).items()):
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype, type)):
            yield from (name, value)
        elif isinstance(value, (tuple, list)) and all(isinstance(one, (bool, int, float, str)) for one in value):
            yield from (name, tuple(value))
        elif callable(value) and not isinstance(value, nn.Module):
            yield from (name, _name(value))


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _hooks(module: nn.Module) -> Iterator[tuple[str, ...]]:
    kinds = (module._forward_pre_hooks, module._forward_hooks, module._backward_pre_hooks, module._backward_hooks)
    for hooks in kinds:
        yield tuple(_name(hook) for hook in hooks.values())


def _sharding(module: FSDPModule) -> list[Any]:
    """FSDP2's settings of a module; no two are alike where gathers are ordered by hand."""
    state: Any = module._get_fsdp_state()
    if state._states_to_forward_prefetch or state._states_to_backward_prefetch:
        return [object()]
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    found: list[Any] = []
    for group in groups:
        if group is not None:
            found += [type(group.mesh_info), type(group.post_forward_mesh_info), str(group.mp_policy)]
            found += _settings(group)
    return found


def _shape(tensor: torch.Tensor) -> tuple[Any, ...]:
    if isinstance(tensor, DTensor):
        return (*_shape(tensor._local_tensor), tuple(tensor.shape), tensor.placements, tensor.device_mesh)
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def passed_on(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The return value of a layer that is left out: its first argument."""
    return args[0] if args else next(iter(kwargs.values()), None)


def is_like(one: Any, other: Any) -> bool:
    """Whether two tensors have the same shape, dtype, placements and need of a gradient."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    if isinstance(one, DTensor) or isinstance(other, DTensor):
        if not (isinstance(one, DTensor) and isinstance(other, DTensor)) or one.placements != other.placements:
            return False
        if one._local_tensor.shape != other._local_tensor.shape:
            return False
    return bool(one.shape == other.shape and one.dtype == other.dtype and one.requires_grad == other.requires_grad)
