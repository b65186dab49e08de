"""Microbatches of a pipeline stage in which a few of its alike layers are performed, and stand for the others.

The first microbatch is run with all layers, forward and backward. Where these recorded the same, layer by layer, later
microbatches perform the first three and the last of them (`alike_layers`): the call of another one returns what it was
given, so that forward and backward go from the third layer to the last. What the others would have recorded is put in
(`layer_periods`), once the second and third layer have recorded the same in that very microbatch.

FSDP2 keeps the order of all forwards, and each backward prefetches along that of the last one. So the forward before
the first backward, and the last backward, have all layers too.

Layers are left out where nothing that a program can see depends on it: their hooks are torch's own, they share no
parameter, and they read neither values nor Python's random numbers. Gradients and FSDP2's states of the layers are as
the first microbatch left them; were they to differ from those of performed layers at the end of the step, `NotAlike` is
raised.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
import torch.distributed._meta_registrations as _meta
from torch import nn
from torch._C import _current_graph_task_id
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dsexplore.capture.recorder_in_use import in_use
from dsexplore.capture.repeated_parts import Part, hold_instead, more_calls, watched
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.fake.fake_dispatch import entered
from dsexplore.worlds.simulated.alike_layers import FIRST, Stretch, alike_layers, is_like, passed_on
from dsexplore.worlds.simulated.layer_periods import (
    LayerMark,
    LayerModules,
    UnlikePeriods,
    Way,
    check_all,
    with_all,
)
from dsexplore.worlds.simulated.torchs_hooks import has_hooks_of_torch_alone


class NotAlike(BaseException):
    """Raised in a program, out of its schedule's step, where something has to be run that was left out.

    No ``except Exception`` of the program catches it.
    """


@dataclass
class LayersLeftOut:
    """The layers of one stage in one step of a schedule.

    Args:
        stage: the module of the pipeline stage.
        on_leave_out: called where layers are left out.
    """

    stage: nn.Module
    on_leave_out: Callable[[], None]
    _stretches: list[Stretch] = field(default_factory=list)
    _is_known: bool = False
    """Whether the first forward has been run."""
    _watches: bool = False
    """Whether a part of a microbatch is run whose layers are looked at."""
    _performs_all: bool = False
    """Whether all layers are performed in it."""
    _modules: LayerModules | None = None
    """The modules of layers that are left out; None where all are performed."""
    _marks: list[LayerMark] = field(default_factory=list)
    _issued: int = 0
    """Collectives that were recorded before this part."""
    _begin: dict[int, int] = field(default_factory=dict)
    """Calls of each module before it."""
    _places: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By the identity of a layer: the numbers of its stretch and of itself."""
    _calls: dict[int, list[Any]] = field(default_factory=dict)
    """By the identity of a layer: descriptions of the arguments that it was called with in this part."""
    _left_out: list[tuple[int, int]] = field(default_factory=list)
    """Stretches and numbers of the layers that were left out of this part."""
    _patches: Patches = field(default_factory=Patches)

    def begin(self) -> None:
        """Find the alike layers of the stage, before its first microbatch."""
        mode = entered()
        own = set(map(id, self.stage.modules()))
        found = alike_layers(mode) if mode is not None else []
        self._stretches = [one for one in found if all(id(layer) in own for layer in one.layers) and _is_plain(one)]
        self._is_known = not self._stretches
        self._places = {
            id(layer): (number, index)
            for number, stretch in enumerate(self._stretches)
            for index, layer in enumerate(stretch.layers)
        }
        if self._stretches:
            self._patches.attribute(_meta, "random", random.Random())  # the program's random numbers are its own
            self._patches.attribute(nn.Module, "__call__", self._called(nn.Module.__call__))

    def end(self) -> None:
        """Leave torch as it was."""
        self._patches.undo()

    def check(self) -> None:
        """Check, at the end of the step, that layers which were left out are as those which were performed.

        Raises:
            NotAlike: they are not.
        """
        for stretch in self._stretches if self.leaves_out else ():
            if len({tuple(_state(layer)) for layer in stretch.layers[1:-1]}) > 1:
                raise NotAlike

    @property
    def leaves_out(self) -> bool:
        """Whether layers are left out of the parts that follow."""
        return self._modules is not None

    def watched(self, run: Callable[[], Any], *, all_layers: bool = False) -> tuple[Any, Part]:
        """Run a part of a microbatch; return what it returns, and what it records with all layers.

        Args:
            run: a forward or a backward.
            all_layers: perform them all in a forward.

        Raises:
            NotAlike: layers that were left out are not alike after all.
        """
        if self._is_known and not self.leaves_out:
            return watched(run)
        self._marks, self._calls, self._left_out = [], {}, []
        (recording,) = in_use().recordings
        self._issued, self._begin = len(recording.issued), in_use().modules.calls()
        state = _visible_state()
        self._performs_all = all_layers
        self._watches = True
        try:
            result, part = watched(run)
        finally:
            self._watches = False
        performed_all = len(self._calls) == len(self._places)
        if not self._is_known:
            self._is_known = True
            if performed_all and state == _visible_state() and self._may_be_left_out(part):
                self._modules = self._layer_modules()
            return result, part
        try:
            return result, self._whole(part, state)
        except UnlikePeriods:
            raise NotAlike from None

    def _whole(self, part: Part, state: Any) -> Part:
        """What a part records with all layers."""
        assert self._modules is not None
        reached = {(mark.stretch, mark.layer) for mark in self._marks}
        if len(reached) == len(self._places):
            if state != _visible_state():
                raise UnlikePeriods
            check_all(part, self._marks, self._modules)
            return part
        passed = dict.fromkeys(mark.stretch for mark in self._marks if mark.way == "forward")
        if self._left_out != [(number, index) for number in passed for index in self._stretches[number].left_out]:
            raise UnlikePeriods
        whole = with_all(part, self._marks, self._modules)
        hold_instead(part, whole)
        self.on_leave_out()
        return whole

    def _may_be_left_out(self, part: Part) -> bool:
        """Whether layers recorded the same in the first forward, were called in the same way, and return such as they
        take."""
        try:
            check_all(part, self._marks, self._layer_modules())
        except UnlikePeriods:
            return False
        for stretch in self._stretches:
            calls = [self._calls.get(id(layer)) for layer in stretch.layers[1:-1]]
            if calls[0] is None or len(calls[0]) != 1 or not calls[0][0] or any(call != calls[0] for call in calls):
                return False
        return True

    def _layer_modules(self) -> LayerModules:
        return LayerModules(self._stretches, in_use().modules.find)

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``Module.__call__`` that leaves layers out, and marks the others."""

        @wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            place = self._places.get(id(module)) if self._watches else None
            if place is None:
                return original(module, *args, **kwargs)
            number, index = place
            if _current_graph_task_id() != -1:
                self._mark(number, "recompute", index)
                return original(module, *args, **kwargs)
            stretch = self._stretches[number]
            if self.leaves_out and not self._performs_all and index in stretch.left_out:
                if [_arguments(args, kwargs)] != self._calls.get(id(stretch.layers[FIRST - 1])):
                    raise NotAlike
                self._left_out.append(place)
                return passed_on(args, kwargs)
            self._mark(number, "forward", index)
            result = original(module, *args, **kwargs)
            is_chain = is_like(result, passed_on(args, kwargs)) and result.requires_grad
            self._calls.setdefault(id(module), []).append(_arguments(args, kwargs) if is_chain else ())
            if isinstance(result, torch.Tensor) and result.requires_grad:
                self._mark_backward(result, number, index)
            return result

        return call

    def _mark_backward(self, result: torch.Tensor, stretch: int, layer: int) -> None:
        """Mark the moment at which backward reaches a layer's result, before FSDP2's hook gathers for it."""
        result.register_hook(lambda _gradient: self._mark(stretch, "backward", layer))
        hooks: Any = result._backward_hooks
        for earlier in list(hooks)[:-1]:
            hooks[earlier] = hooks.pop(earlier)

    def _mark(self, stretch: int, way: Way, layer: int) -> None:
        if self._watches:
            (recording,) = in_use().recordings
            calls = more_calls(in_use().modules.calls(), self._begin)
            self._marks.append(LayerMark(len(recording.issued) - self._issued, calls, stretch, way, layer))


def _is_plain(stretch: Stretch) -> bool:
    """Whether layers share no module or parameter, and have no hooks but torch's."""
    modules = [module for layer in stretch.layers for module in set(layer.modules())]
    parameters = [parameter for layer in stretch.layers for parameter in set(layer.parameters())]
    is_shared = any(len(set(map(id, parts))) < len(parts) for parts in (modules, parameters))
    return not is_shared and has_hooks_of_torch_alone(modules)


def _visible_state() -> tuple[Any, ...]:
    """The state by which a part of a program could differ from the next one: random numbers, and values read."""
    mode = entered()
    numpy = sys.modules.get("numpy.random")
    key, position = numpy.get_state()[1:3] if numpy is not None else (None, 0)
    drawn = (bytes(key), position) if key is not None else None
    return random.getstate(), drawn, mode.inventor.reads if mode is not None else 0


def _arguments(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """A description of a call's arguments; of objects that are neither tensors nor plain values, their identity."""
    return tuple(map(_argument, args)), tuple((name, _argument(value)) for name, value in kwargs.items())


def _argument(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        local = value._local_tensor if isinstance(value, DTensor) else value
        placements = value.placements if isinstance(value, DTensor) else None
        return tuple(value.shape), tuple(local.shape), value.dtype, placements, value.requires_grad
    if isinstance(value, (tuple, list)):
        return type(value), *map(_argument, value)
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return type(value), value
    return id(value)


def _state(layer: nn.Module) -> Iterator[Any]:
    """FSDP2's states of a layer and its parts, and which parameters have gradients."""
    for module in layer.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
                if group is not None:
                    yield group._sharded_state, group._training_state
    for parameter in layer.parameters():
        gradient = parameter.grad
        yield None if gradient is None else (tuple(gradient.shape), gradient.dtype)
