"""Repeated layers of a model: consecutive children of one container with the same parts, shapes and settings.

Layers are compared before a step, including what was applied to them: placements of parameters, wrappers, hooks and
FSDP2's settings. Only numbers that are a layer's own index may differ.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.torch_internals.autograd import gradient_hooks
from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor, FakeTensorMode
from dsexplore._internal.torch_internals.fsdp import has_own_prefetch, mixed_precision, parameter_groups
from dsexplore._internal.torch_internals.modules import hooks_of, hooks_of_all, is_compiled
from dsexplore._internal.worlds.repeats.layer_runs import FIRST, LAST

_WRAPPERS = (DistributedDataParallel, FullyShardedDataParallel)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
Layers = Sequence[nn.Module]
"""The layers of one container, in order; all but the first and the last are equal."""


def repeated_layers(mode: FakeTensorMode, stage: nn.Module | None = None) -> list[Layers]:
    """Find the containers whose layers can be skipped: those with more equal layers than have to run.

    With DDP or FSDP1 there are none, as their buckets and flat parameters need each gradient. Models from outside of
    the world, such as those of earlier notebook cells, are left out: their parameters are no fake tensors of its mode.

    Args:
        mode: the mode of the world's fake tensors.
        stage: module of a script's pipeline stage to search; its containers must have no hooks except torch's, and
            no compiled layers. None searches all models.
    """
    wrappers, kinds = _with_subclasses(_WRAPPERS), _with_subclasses(_CONTAINERS)
    wanted = wrappers | kinds
    containers = []
    for candidate in [thing for thing in gc.get_objects() if type(thing) in wanted]:
        if type(candidate) in wrappers:
            if _has_parameters_of(candidate, mode):
                return []
        elif len(candidate) > FIRST + LAST:
            layers = list(candidate.children())
            if len(layers) == len(candidate) and _has_parameters_of(candidate, mode):
                containers.append(layers)
    inner = {id(part) for layers in containers for layer in layers for part in layer.modules() if part is not layer}
    outer = [layers for layers in containers if not any(id(layer) in inner for layer in layers)]
    if stage is not None:
        inside = set(map(id, stage.modules()))
        outer = [layers for layers in outer if id(layers[0]) in inside and _has_hooks_of_torch_alone(layers)]
    return [layers for layers in outer if _are_equal(layers) and not _share_parts(layers)]


def _with_subclasses(kinds: Iterable[type]) -> set[type]:
    """Return classes and all that derive from them."""
    classes = set(kinds)
    for kind in kinds:
        classes |= _with_subclasses(kind.__subclasses__())
    return classes


def _has_parameters_of(module: nn.Module, mode: FakeTensorMode) -> bool:
    """Return True if any parameter is a fake tensor of the mode, or a DTensor with such a shard."""
    return any(
        isinstance(tensor, FakeTensor) and tensor.fake_mode is mode for tensor in map(local_part, module.parameters())
    )


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local tensor of a DTensor; any other tensor unchanged."""
    return local_tensor(tensor) if isinstance(tensor, DTensor) else tensor


def _share_parts(layers: Layers) -> bool:
    """Return True if a module or parameter is part of two layers."""
    parts = [id(part) for layer in layers for part in (*layer.modules(), *layer.parameters())]
    return len(set(parts)) < len(parts)


def _are_equal(layers: Layers) -> bool:
    """Return True if all layers but the first and the last are equal."""
    first = _description(layers[1])
    return first is not None and all(
        _is_same(first, _description(layer), index) for index, layer in enumerate(layers[1:-1])
    )


def _is_same(value: Any, other: Any, distance: int) -> bool:
    """Return True if two descriptions are equal, except numbers that differ by `distance`, also in ``"layers.3"``."""
    if isinstance(value, str) and isinstance(other, str) and value != other:
        value, other = _split_numbers(value), _split_numbers(other)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(_is_same, value, other, repeat(distance)))
    return bool(value == other) or (type(value) is int and type(other) is int and other - value == distance)


def _split_numbers(name: str) -> list[int | str]:
    """Split a dotted name: ``"layers.3"`` → ``["layers", 3]``."""
    return [int(word) if word.isdecimal() else word for word in name.split(".")]


def _description(layer: nn.Module) -> list[Any] | None:
    """Describe a layer, without values of tensors; None if hooks wait for gradients or FSDP2 prefetches explicitly."""
    parts: list[Any] = []
    for name, module in layer.named_modules():
        parts += [name, type(module), *_settings(module), [list(map(_name, hooks)) for hooks in hooks_of(module)]]
        if isinstance(module, FSDPModule):
            if has_own_prefetch(module):
                return None
            for group in parameter_groups(module):
                parts += [type(group.mesh_info), type(group.post_forward_mesh_info), mixed_precision(group)]
                parts += _settings(group)
    for name, parameter in layer.named_parameters():
        if gradient_hooks(parameter):
            return None
        parts += [name, parameter.requires_grad, _shape(parameter)]
    for name, buffer in layer.named_buffers():
        parts += [name, _shape(buffer)]
    return parts


def _settings(thing: Any) -> Iterator[Any]:
    """Yield name and value, one after the other, of each attribute that is a plain value or a function."""
    for name, value in sorted(vars(thing).items()):
        if value is None or isinstance(value, (bool, int, float, str, torch.dtype, type)):
            yield from (name, value)
        elif isinstance(value, (tuple, list)) and all(
            isinstance(element, (bool, int, float, str)) for element in value
        ):
            yield from (name, tuple(value))
        elif callable(value) and not isinstance(value, nn.Module):
            yield from (name, _name(value))


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _shape(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Describe a tensor: shape, strides, dtype and device; of a DTensor also mesh and placements."""
    if isinstance(tensor, DTensor):
        return (*_shape(local_tensor(tensor)), tuple(tensor.shape), tensor.placements, tensor.device_mesh)
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device


def _has_hooks_of_torch_alone(layers: Layers) -> bool:
    """Return True if all hooks and replaced forwards of the layers are torch's, and none is compiled."""
    modules = [module for layer in layers for module in layer.modules()]
    functions = [hook for hooks in chain(hooks_of_all(), *map(hooks_of, modules)) for hook in hooks]
    functions += [vars(module)["forward"] for module in modules if "forward" in vars(module)]
    return all(map(_is_from_torch, functions)) and not any(map(is_compiled, modules))


def _is_from_torch(function: Any) -> bool:
    """Return True if a function, and all functions that it is made of, are defined in torch or this package."""
    names = [str(getattr(part, "__module__", None) or type(part).__module__) for part in _parts(function, set())]
    return all(name.split(".")[0] in ("torch", "dsexplore") for name in names)


def _parts(function: Any, seen: set[int]) -> Iterator[Any]:
    """Yield a function and the functions that it closes over, wraps, or has as defaults; `seen` holds identities."""
    if id(function) in seen:
        return
    seen.add(id(function))
    inner = [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != CellType()]
    inner += [*(getattr(function, "__defaults__", None) or ()), getattr(function, "__func__", None)]
    inner += (getattr(function, "__kwdefaults__", None) or {}).values()
    if isinstance(function, partial):
        inner += [function.func, *function.args, *function.keywords.values()]
    else:
        yield type(function.__self__) if isinstance(function, MethodType) else function
    for part in inner:
        if isinstance(part, (partial, MethodType, FunctionType)):
            yield from _parts(part, seen)
