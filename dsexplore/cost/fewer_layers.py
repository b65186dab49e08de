"""A step that performs a few of a model's alike layers: a trace of these holds all that there is in the others.

The model is built, sharded and wrapped with all its layers. In the step, the call of a layer that is left out returns
what it was given, so forward and backward go from the last layer before the gap to the first behind it. Parameters of
layers that are left out get gradients like those of a layer that was performed, so that what comes after, as clipping
and the optimizer, has all of them. `repeated_layers` puts the layers that were left out back into the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal

import torch
from torch import nn
from torch._C import _current_graph_task_id
from torch._guards import active_fake_mode
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import DTensor

from dsexplore.capture.held_storage import Held, Use
from dsexplore.capture.kernel_recording import KernelRecording
from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.simulated.alike_layers import FIRST, Stretch, alike_layers, is_like, passed_on

Way = Literal["forward", "backward", "reduce"]
"""A pass through the layers: a forward; a backward; FSDP2's reductions after a pipeline's last backward."""


class UnlikeLayers(Exception):
    """A layer does not return what the next one takes, so none can be left out."""


@dataclass(frozen=True)
class Mark:
    """A place in program order.

    Attributes:
        segment: of the recorded kernels that begins there.
        stretch: the number of the stretch; −1 where gradients were given instead.
        way: what reaches a layer there.
        position: of the layer, among those that are performed.
        given: bytes of the gradients given, by use.
    """

    segment: int
    stretch: int = -1
    way: Way = "forward"
    position: int = -1
    given: dict[Use, int] = field(default_factory=dict)


@dataclass
class LeftOutLayers:
    """The layers that were left out of a step.

    Attributes:
        names: of each stretch that was met, the names of its layers.
        marks: in program order; complete when the step is over.
    """

    names: list[list[str]] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether all layers were performed."""
        return not self.marks


@contextmanager
def fewer_layers(recording: KernelRecording) -> Iterator[LeftOutLayers]:
    """Perform a few of the alike layers of each model of the open world, whose tensors must be fake.

    Args:
        recording: of the costs of the step.

    Yields:
        What is left out, filled in when the block ends without an error.

    Raises:
        UnlikeLayers: in the step, where a layer cannot be left out.
    """
    left_out, patches = LeftOutLayers(), Patches()
    mode = active_fake_mode()
    stretches = alike_layers(mode) if mode is not None else []
    if not stretches:
        yield left_out
        return
    steps = _FewerSteps(recording, stretches)
    steps.meet_parameters()
    calls = (
        (nn.Module, "__call__", steps.called),
        (torch.autograd, "backward", steps.filled_after),
        (_PipelineStageBase, "scale_grads", steps.filled_before),
        (_PipelineStageBase, "perform_reduce_grad", steps.filled_after),
        (FSDPParamGroup, "post_backward", steps.reduced),
    )
    try:
        for owner, name, build in calls:
            if hasattr(owner, name):  # of some versions of torch
                patches.attribute(owner, name, build(getattr(owner, name)))
        yield left_out
    finally:
        patches.undo()
    left_out.names, left_out.marks = steps.names(), steps.all_marks()


@dataclass(frozen=True)
class _Place:
    """The place of a performed layer: which stretch it is in, and where among that stretch's performed layers."""

    stretch: int
    position: int


class _FewerSteps:
    """Replacements of torch's functions during the step.

    Args:
        recording: of the costs of the step.
        stretches: whose layers are performed in part.
    """

    def __init__(self, recording: KernelRecording, stretches: list[Stretch]) -> None:
        self.recording, self.stretches = recording, stretches
        self.performed: dict[int, _Place] = {}
        self.skipped: set[int] = set()
        self.parts: dict[int, _Place | None] = {}
        """All modules inside of layers, by identity; None for those of layers that are left out."""
        for number, stretch in enumerate(stretches):
            for index, layer in enumerate(stretch.layers):
                place = None if index in stretch.left_out else _Place(number, stretch.position(index))
                if place is None:
                    self.skipped.add(id(layer))
                else:
                    self.performed[id(layer)] = place
                self.parts.update({id(part): place for part in layer.modules()})
        self.reduced_last: _Place | None = None

    def meet_parameters(self) -> None:
        """Count the memory of the layers that are left out, which no op will touch before the optimizer."""
        for stretch in self.stretches:
            for index in stretch.left_out:
                layer = stretch.layers[index]
                self.recording.memory.met(map(_plain, (*layer.parameters(), *layer.buffers())), "parameters")

    def called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``Module.__call__`` that leaves layers out, and marks the others."""

        @wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            key = id(module)
            if key in self.skipped:
                return passed_on(args, kwargs)
            place = self.performed.get(key)
            if place is None or _current_graph_task_id() != -1:
                return original(module, *args, **kwargs)
            self.recording.mark(("forward", place))
            result = original(module, *args, **kwargs)
            if place.position == FIRST - 1 and not is_like(result, passed_on(args, kwargs)):
                raise UnlikeLayers
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.register_hook(lambda _gradient: self.recording.mark(("backward", place)))
                hooks: Any = result._backward_hooks
                for earlier in list(hooks)[:-1]:  # the mark comes first: FSDP2's hook gathers the next layer
                    hooks[earlier] = hooks.pop(earlier)
            return result

        return call

    def reduced(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """``FSDPParamGroup.post_backward`` that leaves layers out, and marks the others outside of autograd."""

        @wraps(original)
        def post_backward(group: Any, *args: Any) -> Any:
            place = self.parts.get(id(group.modules[0]), _NOWHERE)
            if place is None:
                return None
            if place is not _NOWHERE and _current_graph_task_id() == -1 and group.reduce_grads:
                if place != self.reduced_last:
                    self.recording.mark(("reduce", place))
                self.reduced_last = place
            return original(group, *args)

        return post_backward

    def filled_after(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function after which the parameters of layers that are left out have gradients."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self.reduced_last = None
            self._fill_gradients()
            return result

        return call

    def filled_before(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function before which the parameters of layers that are left out have gradients."""

        @wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._fill_gradients()
            return original(*args, **kwargs)

        return call

    def _fill_gradients(self) -> None:
        """Give parameters of layers that are left out gradients that lie in memory like those of one performed."""
        given: list[torch.Tensor] = []
        self.recording.paused += 1
        try:
            for stretch in self.stretches:
                like = [one for one in stretch.layers[FIRST - 1].parameters() if one.requires_grad]
                if any(one.grad is not None for one in like):
                    for index in stretch.left_out:
                        given += _fill_like(
                            [one for one in stretch.layers[index].parameters() if one.requires_grad], like
                        )
        finally:
            self.recording.paused -= 1
        if given:
            found: list[Held] = []
            self.recording.mark(("given", found))
            found += self.recording.memory.holds(given)

    def names(self) -> list[list[str]]:
        """The names of the layers, by stretch; none of one that the step did not meet."""
        find = self.recording.modules.find
        met = {what.stretch for (kind, what), _ in self.recording.marks if kind != "given"}
        return [
            [find(layer).name for layer in stretch.layers] if number in met else []
            for number, stretch in enumerate(self.stretches)
        ]

    def all_marks(self) -> list[Mark]:
        """The marks of the recording."""
        found = []
        for (kind, what), segment in self.recording.marks:
            if kind == "given":
                bytes_by_use: dict[Use, int] = {}
                for held in what:
                    bytes_by_use[held.use] = bytes_by_use.get(held.use, 0) + held.size
                found.append(Mark(segment, given=bytes_by_use))
            else:
                found.append(Mark(segment, what.stretch, kind, what.position))
        return found


_NOWHERE: Any = object()


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that holds the memory of one."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def _fill_like(parameters: list[nn.Parameter], others: list[nn.Parameter]) -> list[torch.Tensor]:
    """Give parameters without gradients such as others have.

    Returns:
        one plain tensor for each storage that was made.
    """
    made: dict[int, torch.Tensor] = {}
    for parameter, other in zip(parameters, others, strict=True):
        gradient = other.grad
        if parameter.grad is not None or gradient is None or not is_like(parameter, other):
            continue
        local = _plain(gradient)
        storage = local.untyped_storage()
        key = storage._cdata
        if key not in made:
            made[key] = torch.empty(storage.nbytes() // local.element_size(), dtype=local.dtype, device=local.device)
        part: Any = made[key].as_strided(local.shape, local.stride(), local.storage_offset())
        wrapped: Any = DTensor
        parameter.grad = wrapped(part, gradient._spec, requires_grad=False) if isinstance(gradient, DTensor) else part
    return list(made.values())
