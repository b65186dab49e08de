"""Layers that are skipped: a few of a container's equal layers are run, and the call of another returns its argument.

The model is built, sharded and wrapped with all its layers, and forward and backward go from the last layer before the
gap to the first behind it. Parameters of skipped layers get gradients like those of a layer that was run, so that what
comes after, as clipping and the optimizer, has all of them.

In a script each layer is run once before it is skipped, in the first forward of a schedule's step: its call, what it
records and what autograd would do are compared with those of other layers, and what it returns is dropped.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dsexplore.torch_internals import fsdp, pipelining
from dsexplore.torch_internals.autograd import current_graph_task, put_hook_first
from dsexplore.torch_internals.fake_tensors import storage_number
from dsexplore.torch_internals.names import TorchName
from dsexplore.torch_internals.patches import Parts, Patch, Patches, install_all
from dsexplore.torch_internals.process_groups import META_KERNELS_RANDOM
from dsexplore.worlds.fake.fake_dispatch import entered
from dsexplore.worlds.repeats.layer_runs import FIRST, LAST, CannotSkip, LayerMark
from dsexplore.worlds.repeats.marked_recording import MarkedRecording
from dsexplore.worlds.repeats.repeated_layers import plain, repeated_layers

_Place = tuple[int, int]
"""The numbers of a container, and of one of its layers."""


@contextmanager
def skipped_layers(recording: MarkedRecording, stage: nn.Module | None = None) -> Iterator[None]:
    """Skip repeated layers in the block, in a world of fake tensors.

    Args:
        recording: what is recorded.
        stage: the module of a script's pipeline stage, whose layers are run once before they are skipped; all models
            unless given.

    Raises:
        CannotSkip: in the block, where a layer turns out to differ from others after some were skipped.
    """
    mode = entered()
    containers = repeated_layers(mode, stage) if mode is not None else []
    patches = Patches()
    try:
        if containers:
            recording.containers += [layers for layers in containers if layers not in recording.containers]
            numbers = list(map(recording.containers.index, containers))
            install_all(PATCHES, {"always"}, patches, Parts(SkippedLayers(recording, numbers, stage is not None)))
        yield
    finally:
        patches.undo()


class SkippedLayers:
    """The layers that are skipped in a block.

    Args:
        recording: what is recorded.
        numbers: of the containers of these layers.
        is_checked: whether each layer is run once before it is skipped.
    """

    def __init__(self, recording: MarkedRecording, numbers: Sequence[int], is_checked: bool) -> None:
        self._recording, self._is_checked = recording, is_checked
        self._places = {
            (number, at): layer for number in numbers for at, layer in enumerate(recording.containers[number])
        }
        self._layers = {id(layer): place for place, layer in self._places.items()}
        self._parts = {id(part): place for place, layer in self._places.items() for part in layer.modules()}
        self._unchecked = set(self._places) if is_checked else set()
        """Layers that are still to be run once."""
        self._signatures: dict[int, Any] = {}
        """{container: signature of the call of its second layer}."""
        self._arguments: dict[int, Any] = {}
        """{container: arguments of the last layer before the skipped ones}."""
        self._has_skipped: set[int] = set()
        """Containers some of whose layers were skipped."""
        self._hooks: list[str] = []
        """The hooks that tensors got since a layer was called."""
        self._reduced: _Place | None = None
        """The layer whose gradients FSDP2 reduced last, outside of autograd."""

    def _is_skipped(self, place: _Place | None) -> bool:
        return place is not None and FIRST <= place[1] < len(self._recording.containers[place[0]]) - LAST

    def _skipped_layers(self) -> dict[nn.Module, nn.Module]:
        """Return {skipped layer: a layer of its container that runs}."""
        skipped = {place: layer for place, layer in self._places.items() if self._is_skipped(place)}
        return {layer: self._places[container, FIRST - 1] for (container, _), layer in skipped.items()}

    def calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``Module.__call__`` to skip layers, and to mark those that run."""

        @wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            place = self._layers.get(id(module))
            if place is None or not self._recording.containers[place[0]]:
                return original(module, *args, **kwargs)
            given = args[0] if args else next(iter(kwargs.values()), None)
            arguments = _described((args, kwargs)) if self._is_checked else None
            is_skipped, is_recomputed = self._is_skipped(place), current_graph_task() != -1
            if is_skipped and (is_recomputed or place not in self._unchecked):
                self._has_skipped.add(place[0])
                if arguments != self._arguments.get(place[0]):
                    raise CannotSkip("layers are called with other arguments than those before them")
                return given
            if is_recomputed:
                return original(module, *args, **kwargs)
            self._recording.mark(LayerMark(place[0], "forward", place[1]))
            before, self._hooks = self._visible_state(), []
            result = original(module, *args, **kwargs)
            signature = None
            if _is_like(result, given) and result is not given and before == self._visible_state():
                graph = _graph(result, given) if place in self._unchecked else []
                signature = arguments, tuple(self._hooks) if graph else (), graph
            self._compare(place, signature)
            if is_skipped:
                for part in module.modules():
                    if isinstance(part, FSDPModule):
                        part.reshard()
                return given
            if isinstance(result, torch.Tensor) and result.requires_grad:
                put_hook_first(result, lambda _: self._recording.mark(LayerMark(place[0], "backward", place[1])))
            return result

        return call

    def _compare(self, place: _Place, signature: tuple[Any, ...] | None) -> None:
        """Compare what can be seen of a layer's call with the container's second layer; None is like no other call."""
        container, number = place
        self._unchecked.discard(place)
        if signature is not None and number == FIRST - 1:
            self._arguments[container] = signature[0]
        is_inner = 0 < number < len(self._recording.containers[container]) - LAST
        if number == 1:
            self._signatures[container] = signature
        if is_inner and (signature is None or signature != self._signatures[container]):
            if container in self._has_skipped or number >= FIRST:
                raise CannotSkip("layers that look equal are called in different ways")
            self._recording.containers[container] = ()  # all of them are run

    def _visible_state(self) -> tuple[Any, ...]:
        """Return the state by which a call could differ from the next: random generators, and number of values read."""
        if not self._unchecked:
            return ()
        mode, numpy = entered(), sys.modules.get("numpy.random")
        key, position = numpy.get_state()[1:3] if numpy is not None else (b"", 0)
        return random.getstate(), bytes(key), position, mode.inventor.reads if mode is not None else 0

    def hooking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``Tensor.register_hook`` to record the name of each hook."""

        def register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            self._hooks.append(str(getattr(hook, "__qualname__", type(hook))))
            return original(tensor, hook)

        return register_hook

    def ordering(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of FSDP2's groups to do nothing for groups of skipped layers."""
        return lambda group: None if self._is_skipped(self._parts.get(id(group.modules[0]))) else original(group)

    def reducing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a method of FSDP2's groups to skip reductions of skipped layers, and to mark others outside autograd."""

        def post_backward(group: Any, *args: Any) -> Any:
            place = self._parts.get(id(group.modules[0]))
            if self._is_skipped(place):
                return None
            if place is not None and current_graph_task() == -1 and group.reduce_grads:
                if place != self._reduced:
                    self._recording.mark(LayerMark(place[0], "reduce", place[1]))
                self._reduced = place
            return original(group, *args)

        return post_backward

    def filling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function: parameters of skipped layers get gradients before and after it, if other layers have any."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._fill_gradients()
            result = original(*args, **kwargs)
            self._reduced = None
            self._fill_gradients()
            return result

        return call

    def _fill_gradients(self) -> None:
        """Set gradients of skipped layers' parameters, with the memory layout of those of a layer that ran."""
        layers = self._skipped_layers().items()
        self._recording.make(lambda: [tensor for layer, other in layers for tensor in _fill_like(layer, other)])


def _fill_like(layer: nn.Module, other: nn.Module) -> Iterable[torch.Tensor]:
    """Set missing gradients, modeled on those of another layer; return a plain tensor for each storage."""
    made: dict[int, torch.Tensor] = {}
    for parameter, like in zip(layer.parameters(), other.parameters(), strict=True):
        gradient = like.grad
        if gradient is None or parameter.grad is not None or not _is_like(parameter, like):
            continue
        local = plain(gradient)
        storage = local.untyped_storage()
        key = storage_number(storage)
        if key not in made:
            made[key] = torch.empty(storage.nbytes() // local.element_size(), dtype=local.dtype, device=local.device)
        part = made[key].as_strided(local.shape, local.stride(), local.storage_offset())
        if isinstance(gradient, DTensor):
            shape: dict[str, Any] = {"shape": gradient.shape, "stride": gradient.stride()}
            part = DTensor.from_local(part, gradient.device_mesh, gradient.placements, run_check=False, **shape)
        parameter.grad = part
    return made.values()


def _is_like(value: Any, other: Any) -> bool:
    """Return True if two tensors have the same shape, dtype, placements and requires_grad."""
    both = isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor)
    return both and bool(_described(value) == _described(other))


def _graph(result: Any, given: Any) -> list[str]:
    """Return the names of the autograd nodes between `given` and `result`."""
    seen, names, waiting = {given.grad_fn, None}, [], [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            names.append(node.name())
            waiting += [following for following, _ in node.next_functions]
    return names


def _described(value: Any) -> Any:
    """Describe arguments of a call; objects that are neither tensors nor plain values by their identity."""
    if isinstance(value, torch.Tensor):
        placements = value.placements if isinstance(value, DTensor) else None
        return tuple(value.shape), tuple(plain(value).shape), value.dtype, placements, value.requires_grad
    if isinstance(value, (tuple, list)):
        return type(value), *map(_described, value)
    if isinstance(value, dict):
        return [(name, _described(entry)) for name, entry in value.items()]
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return type(value), value
    return id(value)


def _patch(
    target: TorchName, why: str, make: Callable[[SkippedLayers, Callable[..., Any]], Callable[..., Any]]
) -> Patch:
    return Patch(target, why, lambda original, parts: make(parts[SkippedLayers], original), on_import=True)


PATCHES = (
    _patch(TorchName("torch.nn:Module.__call__"), "it runs layers that repeat others", SkippedLayers.calling),
    _patch(TorchName("torch:Tensor.register_hook"), "what hooks do shows in backward alone", SkippedLayers.hooking),
    _patch(TorchName("torch.autograd:backward"), "it gives skipped layers no gradients", SkippedLayers.filling),
    _patch(pipelining.SCALE_GRADS, "it needs gradients of skipped layers", SkippedLayers.filling),
    _patch(pipelining.REDUCE_GRADS, "it gives skipped layers no gradients", SkippedLayers.filling),
    _patch(fsdp.POST_BACKWARD, "it reduces gradients of skipped layers", SkippedLayers.reducing),
    _patch(fsdp.RECORD_POST_FORWARD, "backward would gather skipped layers", SkippedLayers.ordering),
    Patch(META_KERNELS_RANDOM, "collectives draw the program's numbers", lambda *_: random.Random(), on_import=True),
)
