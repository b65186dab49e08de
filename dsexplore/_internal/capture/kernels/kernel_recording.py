"""The work of a program between its collectives: FLOPs, bytes moved and bytes held, per module and phase.

A dispatch mode sees every aten op, which costs a fake step about a third of its time; so it is entered only where a
recording asks for costs. Equal ops become one row: same place between two collectives, same module, phase, op,
dtype and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import wraps
from itertools import chain, takewhile
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.kernels import op_costs
from dsexplore._internal.capture.kernels.fused_tensors import can_be_fused
from dsexplore._internal.capture.kernels.held_storage import Use
from dsexplore._internal.capture.kernels.kernel_sums import FusedKernel, KernelSums
from dsexplore._internal.capture.kernels.live_memory import LiveMemory
from dsexplore._internal.capture.kernels.op_costs import OpCost, cost_of, dense_tensors, read_op
from dsexplore._internal.capture.kernels.watched_ops import WatchedOps
from dsexplore._internal.capture.modules.compiled_modules import CompiledModules
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.values.differing_values import DifferingValues
from dsexplore._internal.torch_internals.autograd import AccumulateGrad, current_graph_task, current_node
from dsexplore._internal.torch_internals.dtensor import PROPAGATE_TENSOR_META, TO_LOCAL
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.pipelining import INPUT_PLACEHOLDER
from dsexplore._internal.torch_internals.tensors import RESIZE_STORAGE
from dsexplore._internal.trace.causes import is_fsdp2
from dsexplore._internal.trace.schema import Phase

_COPY_OUT = {"split_with_sizes_copy", "all_gather_copy_out"}
"""The ops by which FSDP2 copies gathered parameters out, after the compute stream has waited for the gather."""
_FSDP_BUFFERS = {"split_with_sizes_copy", "all_gather_copy_in", "chunk_cat"}


class Segment(NamedTuple):
    """The work between two collectives, waits or ends of steps."""

    step: int
    collectives: int
    """Number of collectives issued before it."""
    phase: Phase
    """Phase of its last op."""
    module: ModuleEntry | None


class KernelRecording:
    """The kernels and the memory of one recording.

    Args:
        modules: the modules of the recording, and which of them runs.
        issued: the recording's collectives, which grow as it runs.
        steps: how many of them had been issued at each `Trace.step`; grows too.
    """

    def __init__(self, modules: Modules, issued: Sequence[Issued], steps: Sequence[int]) -> None:
        self.modules = modules
        self.issued, self.steps = issued, steps
        self.memory = LiveMemory()
        self.differing = DifferingValues()
        self.rows: list[tuple[int, Phase, OpCost, KernelSums]] = []
        """Segment, phase, what one op costs (its FLOPs and bytes are in the sums), sums."""
        self.segments: list[Segment] = []
        self.marks: list[tuple[Any, int]] = []
        """Arguments of `mark`, with the index of the segment that begins there and continues the one before."""
        self._segment: dict[tuple[Any, ...], KernelSums] = {}
        self._continued = False
        """True if ops of this segment stand before a mark."""
        self._step = 0
        self._last: tuple[Phase, ModuleEntry | None] = ("other", None)
        self._optimizing = 0
        self.paused = 0
        """Above 0 while torch runs ops on tensors of whole DTensors, to learn the shape of a result."""
        self._newest_model: ModuleEntry | None = None
        self._has_updated = False
        """True once an optimizer has taken a step."""
        self._seen = 0
        self._gathers: list[int] = []
        self._by_storage: dict[int, int] = {}
        self._holders: dict[int, ModuleEntry | None] = {}
        self._node: tuple[Any, ModuleEntry | None] = (None, None)
        self._compiled = CompiledModules()
        self._fused = FusedKernel(self.memory.number)
        self.schedule = ""
        """The pipeline schedule that called the stages; see `pipelines.describe`."""
        self._exit = ExitStack()

    def start(self) -> None:
        """Begin to record ops and memory."""
        self._exit.callback(self.memory.release)
        self._exit.callback(self.differing.release)
        for register, hook in (
            (register_optimizer_step_pre_hook, self._before_optimizer),
            (register_optimizer_step_post_hook, self._after_optimizer),
        ):
            self._exit.callback(register(hook).remove)
        patches = Patches()
        self._exit.callback(patches.undo)
        install_all(PATCHES, {"always"}, patches, Parts(self))
        self._exit.enter_context(WatchedOps(self))

    def stop(self) -> None:
        """End the recording of ops and memory."""
        self._exit.close()
        self._end_segment()
        self._node = (None, None)

    def mark(self, label: Any) -> None:
        """Add a mark at the current place of the program.

        The segment is split there, so that rows and the peak of bytes are known on both sides; readers of `marks` join
        the parts again.
        """
        if len(self.issued) != self._seen or len(self.steps) != self._step:
            self._meet_collectives()
        self._continued = self._continued or bool(self._segment)
        self._close_segment()
        self.marks.append((label, len(self.segments)))

    def lengthen_step(self) -> None:
        """Assign the work since the end of the last step to that step."""
        self._meet_collectives()
        latest = len(self.steps)
        for number in range(len(self.segments) - 1, -1, -1):
            if self.segments[number].step != latest:
                return
            self.segments[number] = self.segments[number]._replace(step=latest - 1)

    def join_steps(self) -> None:
        """Assign all work so far to one step."""
        self._meet_collectives()
        self.segments = [segment._replace(step=0) for segment in self.segments]
        self._step = 0

    def dtensor_op(self, func: Any, given: Sequence[Any]) -> None:
        """Count an op on DTensors, which the CPU dispatches."""
        phase, module = self._where()
        self._add(_DISPATCH, phase, module).count += 1
        self.memory.met(_held_by(filter(_is_weight, tensors_in(given))), "parameters")
        if not self.paused:
            self.differing.met(given, (phase, module), read_op(func).name, self._step)

    def ran(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Record an op that has run on plain tensors."""
        op = read_op(func)
        role = op.role
        if len(self.issued) != self._seen or len(self.steps) != self._step:
            self._meet_collectives()
        given, returned = list(tensors_in([*args, *kwargs.values()])), list(tensors_in([result]))
        phase, module = self._where()
        self.differing.follow(op, args, kwargs, result, given, returned, self.issued, is_forward=phase == "forward")
        self._meet_models()
        for tensor in given:
            self._meet(tensor, phase)
        given, returned = dense_tensors(given), dense_tensors(returned)
        region = self._compiled.around(module)
        if region is not None and role == op_costs.MEMORY and can_be_fused(op, phase):
            self.memory.made_fused(returned, given, region)
        else:
            if role != op_costs.FREE:
                self.memory.read(given)
            self.memory.made(returned, "optimizer" if phase == "optimizer" else "activations")
        if phase != self._last[0] and (self._segment or self._continued):
            self._end_segment()
        self._last = phase, module
        if role == op_costs.FREE:
            return
        if role == op_costs.WAIT:
            self._wait(self._by_storage.pop(self.memory.number(given[0]), None), phase, module)
            return
        if role == op_costs.COMMUNICATION:
            self._communicated(given, returned)
            return
        if op.name in _COPY_OUT and self._gathers:
            self._wait(self._gathers.pop(0), phase, module)
        if op.name in _FSDP_BUFFERS:
            self.memory.assign([*given, *returned], "buffers")
        cost = cost_of(func, op, args, kwargs, result, given, returned)
        self._count(cost, phase, module, given, returned)

    def _meet(self, tensor: torch.Tensor, phase: Phase) -> None:
        """Count a tensor that no recorded op made as there before the recording, unless it is likely to be newer.

        So are numbers that torch makes a tensor of for an op (``x[mask] = 0``), and the batches of later steps, which
        a loader's worker or numpy makes.
        """
        held = dense_tensors([tensor])
        if self.memory.holds_all(held):
            return
        use = _use_before(tensor, phase)
        is_newer = not tensor.dim() or self._has_updated or bool(self.steps)
        meet = self.memory.made if use in ("inputs", "gradients") and is_newer else self.memory.met
        meet(held, use)

    def _count(
        self,
        cost: OpCost,
        phase: Phase,
        module: ModuleEntry | None,
        given: Sequence[torch.Tensor],
        returned: Sequence[torch.Tensor],
    ) -> None:
        sums = self._add(cost._replace(flops=0, read=0, written=0), phase, module)
        sums.count += 1
        sums.flops += cost.flops
        sums.read += cost.read
        sums.written += cost.written
        if cost.kind == "memory":
            self._fused.add(sums, cost, given, returned)
        else:
            self._fused.end(set(map(self.memory.number, given)))

    def _add(self, cost: OpCost, phase: Phase, module: ModuleEntry | None, waits_for: int | None = None) -> KernelSums:
        key = (id(module), phase, cost)
        sums = self._segment.get(key)
        if sums is None:
            sums = self._segment[key] = KernelSums(module, waits_for)
        return sums

    def _wait(self, collective: int | None, phase: Phase, module: ModuleEntry | None) -> None:
        """Record that the compute stream waits for a collective, in a segment of its own."""
        if collective is not None:
            self._end_segment()
            self._add(_WAIT, phase, module, collective).count += 1
            self._end_segment()

    def _meet_models(self) -> None:
        """Count what models hold that were called for the first time since, whether an op meets it or not."""
        models = self.modules.models
        if not models or models[-1] is self._newest_model:
            return
        new = list(takewhile(lambda model: model is not self._newest_model, reversed(models)))
        self._newest_model = models[-1]
        for model in filter(None, (built.reference() for built in new)):
            held = _held_by(chain(nn.Module.parameters(model), nn.Module.buffers(model)))
            self.memory.met(held, "parameters")
            self.memory.assign(held, "parameters")

    def _meet_collectives(self) -> None:
        """End the segment at collectives that were issued since."""
        self._end_segment()
        for number in range(self._seen, len(self.issued)):
            collective = self.issued[number]
            is_fsdp = is_fsdp2(collective.origin.cause) and collective.origin.redistribute is None
            if is_fsdp and collective.messages and collective.messages[0][0] == "all_gather":
                self._gathers.append(number)
        self._seen, self._step = len(self.issued), len(self.steps)

    def _communicated(self, given: Sequence[torch.Tensor], returned: Sequence[torch.Tensor]) -> None:
        """Record which collective wrote which storage, once its op has returned: a later op may wait for it."""
        if self.issued:
            for tensor in returned:
                self._by_storage[self.memory.number(tensor)] = len(self.issued) - 1
        if self.issued and is_fsdp2(self.issued[-1].origin.cause):
            self.memory.assign([*given, *returned], "buffers")

    def _end_segment(self) -> None:
        self._fused.end(set())
        self._close_segment()
        self._continued = False

    def _close_segment(self) -> None:
        phase, module = self._last
        number = len(self.segments)
        self.rows += [(number, key[1], key[2], sums) for key, sums in self._segment.items()]
        self._segment = {}
        self.segments.append(Segment(self._step, self._seen, phase, module))
        self.memory.end_segment()

    def _where(self) -> tuple[Phase, ModuleEntry | None]:
        """Return the phase and the running module; in backward, the module that made the running node in forward."""
        is_backward = current_graph_task() != -1
        open_calls = self.modules.own.calls.open
        if not is_backward:
            if self._optimizing:
                return "optimizer", None
            return (self.modules.own.calls.forward, open_calls[-1].module) if open_calls else ("other", None)
        if open_calls:
            return "recompute", open_calls[-1].module
        node = current_node()
        last_node, module = self._node
        if node is not last_node:
            module = self._module_of(node)
            self._node = node, module
        return "backward", module

    def _module_of(self, node: Any) -> ModuleEntry | None:
        if isinstance(node, AccumulateGrad):
            variable = id(node.variable)
            if variable not in self._holders:
                self._holders[variable] = self.modules.holder(node.variable)
            return self._holders[variable]
        return self.modules.call_of_node(node, called_here=True).module

    def _before_optimizer(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizing += 1
        self._end_segment()  # what backward made is final
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.memory.assign(_held_by(parameters), "parameters")
        self.memory.assign(_held_by(parameter.grad for parameter in parameters), "gradients")
        self.differing.check_gradients(optimizer, self.modules.place_of, self._step)

    def _after_optimizer(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._optimizing -= 1
        self._has_updated = True
        states = [value for state in optimizer.state.values() for value in state.values()]
        self.memory.assign(_held_by(states), "optimizer")
        self.differing.check_parameters(optimizer, self.modules.place_of, self._step)


def _uncounted(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    recording = parts[KernelRecording]

    @wraps(original)
    def propagate(*args: Any, **kwargs: Any) -> Any:
        recording.paused += 1
        try:
            return original(*args, **kwargs)
        finally:
            recording.paused -= 1

    return propagate


def _followed(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    memory = parts[KernelRecording].memory

    @wraps(original)
    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        memory.resized(storage)
        return result

    return resize_


def _met(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    recording = parts[KernelRecording]

    @wraps(original)
    def to_local(tensor: DTensor, *args: Any, **kwargs: Any) -> Any:
        recording.differing.met([tensor], ("forward", recording.modules.own.calls.current), "to_local", 0)
        return original(tensor, *args, **kwargs)

    return to_local


PATCHES: tuple[Entry, ...] = (
    Patch(TO_LOCAL, "what it returns differs between ranks as its placements say", _met, by_code=True),
    Patch(PROPAGATE_TENSOR_META, "an op that it runs on tensors of global shape is not the program's", _uncounted),
    Patch(INPUT_PLACEHOLDER, "its copies hold no memory and cost no device anything", _uncounted, on_import=True),
    Patch(RESIZE_STORAGE, "no dispatch mode sees FSDP2 free gathered parameters by it", _followed),
)
"""Functions that are replaced while kernels are recorded."""


_DISPATCH = OpCost("dispatch", "DTensor", "")
_WAIT = OpCost("wait", "wait", "")


def _is_weight(tensor: torch.Tensor) -> bool:
    """Return True for a tensor that is learned: a parameter, frozen or not, or a leaf that gets a gradient."""
    return isinstance(tensor, nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


def _use_before(tensor: torch.Tensor, phase: Phase) -> Use:
    """Return the purpose of a tensor made before the recording, judged by the phase of the first op that uses it."""
    if phase == "optimizer":
        return "optimizer"
    if _is_weight(tensor):
        return "parameters"
    return "gradients" if phase == "backward" else "inputs"  # as the buckets of DDP


def _held_by(values: Iterable[Any]) -> list[torch.Tensor]:
    """Return the dense tensors in which tensors are held, as a DTensor's local one; other values are omitted."""
    held: list[torch.Tensor] = []
    for value in values:
        if hasattr(type(value), "__tensor_flatten__"):
            held += _held_by(getattr(value, name) for name in value.__tensor_flatten__()[0])
        elif isinstance(value, torch.Tensor) and not is_lazy(value):
            held += dense_tensors([value])
    return held
