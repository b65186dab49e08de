"""Skip layers: a few of a container's equal layers run, and the call of any other returns its argument.

The model is built, sharded and wrapped with all its layers; forward and backward go from the last layer before the gap
to the first one after it. Parameters of skipped layers get gradients like those of a layer that ran, because clipping
and the optimizer need all of them.

In a script each layer runs once before it is skipped, in the first forward of a schedule's step. Its arguments, its
rows and its autograd graph are compared with those of other layers, and its result is dropped.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals import fsdp, pipelining
from dsexplore._internal.torch_internals.autograd import is_in_backward, put_hook_first
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.process_groups import META_KERNELS_RANDOM
from dsexplore._internal.torch_internals.tensors import storage_number
from dsexplore._internal.worlds.fake.fake_dispatch import entered
from dsexplore._internal.worlds.repeats.layer_runs import FIRST, LAST, CannotSkip, LayerMark, Way
from dsexplore._internal.worlds.repeats.marked_recording import MarkedRecording
from dsexplore._internal.worlds.repeats.repeated_layers import local_part, repeated_layers


@contextmanager
def skipped_layers(recording: MarkedRecording, stage: nn.Module | None = None) -> Iterator[None]:
    """Skip repeated layers in the block, in a world of fake tensors.

    Args:
        recording: the recording to mark.
        stage: module of a script's pipeline stage, whose layers run once before they are skipped; None skips layers
            of all models.

    Raises:
        CannotSkip: in the block, if a layer turns out to differ from others after some were skipped.
    """
    mode = entered()
    containers = repeated_layers(mode, stage) if mode is not None else []
    patches = Patches()
    try:
        if containers:
            numbers = sorted({recording.container_number(layers) for layers in containers})
            install_all(PATCHES, {"always"}, patches, Parts(SkippedLayers(recording, numbers, stage is not None)))
        yield
    finally:
        patches.undo()


class _Signature(NamedTuple):
    """Observations of a layer's call, equal for all layers except the first and the last."""

    arguments: Any
    """Description of the arguments by `_described`; None if layers are not checked."""
    hooks: tuple[str, ...]
    """Names of the hooks that the call registered on tensors; empty after the layer's first run."""
    graph: list[str]
    """Names of the autograd nodes from the argument to the result; empty after the layer's first run."""


@dataclass(eq=False)
class _Container:
    """The layers of one container, and observations of their calls in this block.

    Args:
        number: the container's index in the recording.
        layers: the layers, in order.
        unchecked: indices of the layers that have not run yet, and have to run once before they are skipped.
    """

    number: int
    layers: Sequence[nn.Module]
    unchecked: set[int]
    second: _Signature | None = None
    """The latest call of the second layer, with which later layers are compared; None if it equals no other."""
    arguments: Any = None
    """Description of the arguments of the last layer before the skipped ones; these must get equal ones."""
    has_skipped: bool = False
    """True once a layer was skipped: from then on, layers must not differ."""

    @property
    def skipped(self) -> range:
        """Indices of the layers that are skipped if the container repeats."""
        return range(FIRST, len(self.layers) - LAST)


class _Place(NamedTuple):
    """A layer: its container and its index there."""

    container: _Container
    layer: int


class SkippedLayers:
    """The layers that are skipped in a block.

    Args:
        recording: the recording to mark.
        numbers: indices in the recording of the layers' containers.
        is_checked: True if each layer runs once before it is skipped.
    """

    def __init__(self, recording: MarkedRecording, numbers: Sequence[int], is_checked: bool) -> None:
        self._recording, self._is_checked = recording, is_checked
        self._containers: list[_Container] = []
        self._places: dict[int, _Place] = {}
        """{identity of a layer: its place}."""
        self._places_of_parts: dict[int, _Place] = {}
        """{identity of a module in a layer, or of the layer: the layer's place}."""
        for number in numbers:
            layers = recording.containers[number]
            unchecked = set(range(len(layers))) if is_checked else set()
            container = _Container(number=number, layers=layers, unchecked=unchecked)
            self._containers.append(container)
            for index, layer in enumerate(layers):
                self._places[id(layer)] = place = _Place(container, index)
                self._places_of_parts |= {id(part): place for part in layer.modules()}
        self._hooks: list[str] = []
        """Names of the hooks registered on tensors since the last layer was called."""
        self._reduced: _Place | None = None
        """The layer whose gradients FSDP2 reduced last outside of autograd."""

    def wrap_module_call(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``Module.__call__`` to skip layers, and to compare and mark those that run."""

        @wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            place = self._places.get(id(module))
            if place is None or not self._repeats(place.container):
                return original(module, *args, **kwargs)
            first_argument = args[0] if args else next(iter(kwargs.values()), None)
            arguments = _described((args, kwargs)) if self._is_checked else None
            is_skipped, is_recomputed = self._is_skipped(place), is_in_backward()
            if is_skipped and (is_recomputed or place.layer not in place.container.unchecked):
                self._check_arguments(place.container, arguments)
                return first_argument
            if is_recomputed:  # by activation checkpointing, in backward, which is marked by hooks of gradients
                return original(module, *args, **kwargs)
            run = partial(original, module, *args, **kwargs)
            result = self._run_and_compare(place, run, first_argument, arguments)
            if is_skipped:  # it ran only to be checked
                _reshard(module)
                return first_argument
            if isinstance(result, torch.Tensor) and result.requires_grad:
                put_hook_first(result, lambda _: self._mark(place, "backward"))
            return result

        return call

    def wrap_register_hook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``Tensor.register_hook`` to record the name of each hook."""

        def register_hook(tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
            self._hooks.append(str(getattr(hook, "__qualname__", type(hook))))
            return original(tensor, hook)

        return register_hook

    def wrap_record_post_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap FSDP2's record of the forward order, which backward prefetching follows, to omit skipped layers."""
        return lambda group: None if self._is_skipped(self._place_of(group)) else original(group)

    def wrap_post_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap FSDP2's reduction of gradients to omit skipped layers, and to mark others outside of autograd."""

        def post_backward(group: Any, *args: Any) -> Any:
            place = self._place_of(group)
            if self._is_skipped(place):
                return None
            if place is not None and not is_in_backward() and group.reduce_grads:
                if place != self._reduced:
                    self._mark(place, "reduce")
                self._reduced = place
            return original(group, *args)

        return post_backward

    def wrap_use_of_gradients(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that makes or needs gradients to fill those of skipped layers before and after it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self._fill_gradients()
            result = original(*args, **kwargs)
            self._reduced = None
            self._fill_gradients()
            return result

        return call

    def _repeats(self, container: _Container) -> bool:
        return container.number not in self._recording.not_repeating

    def _is_skipped(self, place: _Place | None) -> bool:
        return place is not None and place.layer in place.container.skipped and self._repeats(place.container)

    def _place_of(self, group: Any) -> _Place | None:
        """Return the layer of one of FSDP2's groups; None for a group of no layer."""
        return self._places_of_parts.get(id(group.modules[0]))

    def _mark(self, place: _Place, way: Way) -> None:
        self._recording.mark(LayerMark(container=place.container.number, way=way, layer=place.layer))

    def _check_arguments(self, container: _Container, arguments: Any) -> None:
        """Check that a skipped layer is called with arguments like those of the last layer before it.

        Raises:
            CannotSkip: they differ.
        """
        container.has_skipped = True
        if arguments != container.arguments:
            raise CannotSkip("layers are called with other arguments than those before them")

    def _run_and_compare(self, place: _Place, run: Callable[[], Any], first_argument: Any, arguments: Any) -> Any:
        """Run a layer in forward, compare its call with others, and return its result.

        Args:
            place: the layer.
            run: calls it.
            first_argument: its input, which a skipped layer returns.
            arguments: description of all its arguments; None if layers are not checked.

        Raises:
            CannotSkip: it differs from others after some were skipped.
        """
        self._mark(place, "forward")
        before, self._hooks = self._visible_state(), []
        result = run()
        signature = None
        is_new = result is not first_argument and _have_equal_form(result, first_argument)
        if is_new and before == self._visible_state():
            graph = _graph(result, first_argument) if place.layer in place.container.unchecked else []
            signature = _Signature(arguments, tuple(self._hooks) if graph else (), graph)
        self._compare(place, signature)
        return result

    def _compare(self, place: _Place, signature: _Signature | None) -> None:
        """Compare a layer's call with the call of the container's second layer; a signature of None equals no other."""
        container, index = place
        container.unchecked.discard(index)
        if signature is not None and index == FIRST - 1:
            container.arguments = signature.arguments
        if index == 1:
            container.second = signature
        is_inner = 0 < index < len(container.layers) - LAST
        if is_inner and self._repeats(container) and (signature is None or signature != container.second):
            if container.has_skipped or index >= FIRST:
                raise CannotSkip("layers that look equal are called in different ways")
            self._recording.not_repeating.add(container.number)

    def _visible_state(self) -> tuple[Any, ...]:
        """Return the state that could make the next call differ: random generators, and the number of values read."""
        if not any(container.unchecked for container in self._containers):
            return ()
        mode, numpy = entered(), sys.modules.get("numpy.random")
        key, position = numpy.get_state()[1:3] if numpy is not None else (b"", 0)
        return random.getstate(), bytes(key), position, mode.inventor.reads if mode is not None else 0

    def _fill_gradients(self) -> None:
        """Set gradients of skipped layers' parameters, with the memory layout of a layer that ran."""

        def fill() -> Iterator[torch.Tensor]:
            for container in filter(self._repeats, self._containers):
                for index in container.skipped:
                    yield from _fill_from(container.layers[index], container.layers[FIRST - 1])

        self._recording.make(lambda: list(fill()))


def _reshard(layer: nn.Module) -> None:
    """Free the parameters that FSDP2 gathered for a layer, as it does after backward."""
    for part in layer.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _fill_from(layer: nn.Module, source: nn.Module) -> Iterable[torch.Tensor]:
    """Set missing gradients like another layer's; return a plain tensor for each storage that is made."""
    made: dict[int, torch.Tensor] = {}
    for parameter, like in zip(layer.parameters(), source.parameters(), strict=True):
        gradient = like.grad
        if gradient is None or parameter.grad is not None or not _have_equal_form(parameter, like):
            continue
        local = local_part(gradient)
        storage = local.untyped_storage()
        key = storage_number(storage)
        if key not in made:
            made[key] = torch.empty(storage.nbytes() // local.element_size(), dtype=local.dtype, device=local.device)
        filled = made[key].as_strided(local.shape, local.stride(), local.storage_offset())
        if isinstance(gradient, DTensor):
            filled = DTensor.from_local(
                filled,
                gradient.device_mesh,
                gradient.placements,
                run_check=False,
                shape=gradient.shape,
                stride=gradient.stride(),
            )
        parameter.grad = filled
    return made.values()


def _have_equal_form(value: Any, other: Any) -> bool:
    """Return True if two tensors have the same shape, dtype, placements and requires_grad."""
    both = isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor)
    return both and bool(_described(value) == _described(other))


def _graph(result: torch.Tensor, argument: torch.Tensor) -> list[str]:
    """Return the names of the autograd nodes from `argument` to `result`."""
    seen, names, waiting = {argument.grad_fn}, [], [result.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            names.append(node.name())
            waiting += [following for following, _ in node.next_functions]
    return names


def _described(value: Any) -> Any:
    """Describe arguments of a call for comparison; objects other than tensors and plain values by their identity."""
    if isinstance(value, torch.Tensor):
        placements = value.placements if isinstance(value, DTensor) else None
        return tuple(value.shape), tuple(local_part(value).shape), value.dtype, placements, value.requires_grad
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
    """Return the entry that wraps a function of torch with a method of `SkippedLayers`."""
    return Patch(target, why, lambda original, parts: make(parts[SkippedLayers], original), on_import=True)


_MODULE_CALL = TorchName("torch.nn:Module.__call__")
_REGISTER_HOOK = TorchName("torch:Tensor.register_hook")
_BACKWARD = TorchName("torch.autograd:backward")
PATCHES = (
    _patch(_MODULE_CALL, "it runs layers that repeat others", SkippedLayers.wrap_module_call),
    _patch(_REGISTER_HOOK, "what hooks do is seen only in backward", SkippedLayers.wrap_register_hook),
    _patch(_BACKWARD, "it gives skipped layers no gradients", SkippedLayers.wrap_use_of_gradients),
    _patch(pipelining.SCALE_GRADS, "it needs gradients of skipped layers", SkippedLayers.wrap_use_of_gradients),
    _patch(pipelining.REDUCE_GRADS, "it gives skipped layers no gradients", SkippedLayers.wrap_use_of_gradients),
    _patch(fsdp.POST_BACKWARD, "it reduces gradients of skipped layers", SkippedLayers.wrap_post_backward),
    _patch(fsdp.RECORD_POST_FORWARD, "backward would gather skipped layers", SkippedLayers.wrap_record_post_forward),
    Patch(META_KERNELS_RANDOM, "collectives draw the program's numbers", lambda *_: random.Random(), on_import=True),
)
