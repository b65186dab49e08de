"""Records the work of a program between its collectives: FLOPs, bytes moved and bytes held, per module and phase.

A dispatch mode sees every aten op. That takes a third of the time of a step on fake tensors, so it is entered only if a
recording asks for costs. Ops with the same segment, module, phase, name, dtype and shape become one row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from itertools import chain, takewhile
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from dsexplore._internal.capture.collectives.issued_collective import Issued
from dsexplore._internal.capture.collectives.ops import tensors_in
from dsexplore._internal.capture.kernels import op_costs
from dsexplore._internal.capture.kernels.fused_tensors import can_be_fused
from dsexplore._internal.capture.kernels.kernel_sums import FusedKernel, KernelRow, KernelSums, Segment
from dsexplore._internal.capture.kernels.live_memory import (
    LiveMemory,
    dense_tensors_of,
    is_weight,
    use_before_recording,
)
from dsexplore._internal.capture.kernels.op_costs import OpCost, cost_of, dense_tensors, read_op
from dsexplore._internal.capture.kernels.watched_ops import WatchedOps
from dsexplore._internal.capture.modules.compiled_modules import CompiledModules
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.values.differing_values import DifferingValues
from dsexplore._internal.torch_internals.autograd import AccumulateGrad, current_node, is_in_backward
from dsexplore._internal.torch_internals.dtensor import PROPAGATE_TENSOR_META, TO_LOCAL
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.pipelining import INPUT_PLACEHOLDER
from dsexplore._internal.torch_internals.tensors import RESIZE_STORAGE
from dsexplore._internal.trace.causes import is_fsdp2
from dsexplore._internal.trace.schema import Phase

_COPY_OUT = {"split_with_sizes_copy", "all_gather_copy_out"}
"""The ops by which FSDP2 copies gathered parameters out, after the compute stream has waited for the gather."""
_FSDP_BUFFERS = {"split_with_sizes_copy", "all_gather_copy_in", "chunk_cat"}
"""The ops by which FSDP2 copies parameters and gradients to and from the buffers of its collectives."""


class KernelRecording:
    """The kernels and the memory of one recording.

    Args:
        modules: the modules of the recording, and which of them runs.
        issued: the recording's collectives, a list that grows.
        steps: the number of collectives issued by the end of each step, a list that grows.
    """

    def __init__(self, modules: Modules, issued: Sequence[Issued], steps: Sequence[int]) -> None:
        self.modules = modules
        self.issued, self.steps = issued, steps
        self.memory = LiveMemory()
        self.differing = DifferingValues()
        self.rows: list[KernelRow] = []
        self.segments: list[Segment] = []
        self.marks: list[tuple[Any, int]] = []
        """(argument of `mark`, index of the segment that begins there and continues the one before)."""
        self._segment: dict[tuple[int, Phase, OpCost], KernelSums] = {}
        """{(identity of the module, phase, cost): sums} of the current segment."""
        self._continued = False
        """True if the current segment has ops before a mark."""
        self._step = 0
        """The current step."""
        self._last: tuple[Phase, ModuleEntry | None] = ("other", None)
        """Phase and module of the last op."""
        self._optimizing = 0
        """Number of optimizer steps that run, one inside the other."""
        self.paused = 0
        """Above 0 while torch runs ops on tensors of global shape, to learn the shape of a result."""
        self._newest_model: ModuleEntry | None = None
        """The newest model whose parameters have been counted."""
        self._has_updated = False
        """True once an optimizer has taken a step."""
        self._seen = 0
        """Number of collectives that earlier segments have ended at."""
        self._gathers: list[int] = []
        """Indices of FSDP2's all_gathers whose results have not been copied out."""
        self._by_storage: dict[int, int] = {}
        """{number of a storage: index of the collective that wrote it}."""
        self._holders: dict[int, ModuleEntry | None] = {}
        """{identity of a parameter: module that holds it}."""
        self._node: tuple[Any, ModuleEntry | None] = (None, None)
        """The last autograd node that ran, and its module."""
        self._compiled = CompiledModules()
        self._fused = FusedKernel(self.memory.number)
        self.schedule = ""
        """The pipeline schedule that called the stages; see `pipelines.describe`."""
        self._exit = ExitStack()

    def start(self) -> None:
        """Begin to record ops and memory."""
        self._exit.callback(self.memory.release)
        self._exit.callback(self.differing.release)
        self._exit.callback(register_optimizer_step_pre_hook(self._before_optimizer).remove)
        self._exit.callback(register_optimizer_step_post_hook(self._after_optimizer).remove)
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
        """Split the current segment and label its second half, so that readers of `marks` know both halves."""
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
        """Count the dispatch of an op on DTensors, which takes CPU time."""
        phase, module = self._where()
        self._add(_DISPATCH, phase, module).count += 1
        self.memory.met(dense_tensors_of(filter(is_weight, tensors_in(given))), "parameters")
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
        self.differing.follow(
            op,
            args=args,
            kwargs=kwargs,
            result=result,
            given=given,
            returned=returned,
            issued=self.issued,
            is_forward=phase == "forward",
        )
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
        last_phase, _ = self._last
        if phase != last_phase and (self._segment or self._continued):
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
        cost = cost_of(func, op, args=args, kwargs=kwargs, result=result, sources=given, returned=returned)
        self._count(cost, phase, module, given, returned)

    def _meet(self, tensor: torch.Tensor, phase: Phase) -> None:
        """Count a tensor that no recorded op made: as made before the recording, or as made now if that is likely.

        Newer than the recording are numbers that torch wraps in a tensor (``x[mask] = 0``), and the batches of later
        steps, which a loader's worker or numpy made.
        """
        held = dense_tensors([tensor])
        if self.memory.holds_all(held):
            return
        use = use_before_recording(tensor, phase)
        is_newer = not tensor.dim() or self._has_updated or bool(self.steps)
        if use in ("inputs", "gradients") and is_newer:
            self.memory.made(held, use)
        else:
            self.memory.met(held, use)

    def _count(
        self,
        cost: OpCost,
        phase: Phase,
        module: ModuleEntry | None,
        given: Sequence[torch.Tensor],
        returned: Sequence[torch.Tensor],
    ) -> None:
        """Add an op to its row, and to the kernel that a compiler would make of it and its neighbors."""
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
        """Return the sums of a row of the current segment, which is new if there is none yet."""
        key = (id(module), phase, cost)
        sums = self._segment.get(key)
        if sums is None:
            sums = self._segment[key] = KernelSums(module, waits_for)
        return sums

    def _wait(self, collective: int | None, phase: Phase, module: ModuleEntry | None) -> None:
        """Record that the compute stream waits for a collective, as a separate segment; None waits for nothing."""
        if collective is not None:
            self._end_segment()
            self._add(_WAIT, phase, module, collective).count += 1
            self._end_segment()

    def _meet_models(self) -> None:
        """Count parameters and buffers of models that were called for the first time since, used by ops or not."""
        models = self.modules.models
        if not models or models[-1] is self._newest_model:
            return
        new = list(takewhile(lambda model: model is not self._newest_model, reversed(models)))
        self._newest_model = models[-1]
        for entry in new:
            model = entry.reference()
            if model is not None:
                held = dense_tensors_of(chain(nn.Module.parameters(model), nn.Module.buffers(model)))
                self.memory.met(held, "parameters")
                self.memory.assign(held, "parameters")

    def _meet_collectives(self) -> None:
        """End the segment at collectives that were issued since."""
        self._end_segment()
        for number in range(self._seen, len(self.issued)):
            collective = self.issued[number]
            is_fsdp = is_fsdp2(collective.origin.cause) and collective.origin.redistribute is None
            if is_fsdp and collective.messages and collective.messages[0].op == "all_gather":
                self._gathers.append(number)
        self._seen, self._step = len(self.issued), len(self.steps)

    def _communicated(self, given: Sequence[torch.Tensor], returned: Sequence[torch.Tensor]) -> None:
        """Record which storages the latest collective wrote, as a later op may wait for them."""
        if self.issued:
            for tensor in returned:
                self._by_storage[self.memory.number(tensor)] = len(self.issued) - 1
        if self.issued and is_fsdp2(self.issued[-1].origin.cause):
            self.memory.assign([*given, *returned], "buffers")

    def _end_segment(self) -> None:
        """End the segment, and the kernel that a compiler would make of its last ops."""
        self._fused.end(set())
        self._close_segment()
        self._continued = False

    def _close_segment(self) -> None:
        """Add the rows of the segment, and begin the next one."""
        phase, module = self._last
        number = len(self.segments)
        for (_, phase_of_row, cost), sums in self._segment.items():
            self.rows.append(KernelRow(segment=number, phase=phase_of_row, cost=cost, sums=sums))
        self._segment = {}
        self.segments.append(Segment(step=self._step, collectives=self._seen, phase=phase, module=module))
        self.memory.end_segment()

    def _where(self) -> tuple[Phase, ModuleEntry | None]:
        """Return the phase and the running module; in backward, the module that made the running node in forward."""
        is_backward = is_in_backward()
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
        """Return the module that made an autograd node, or that holds the parameter whose gradient it accumulates."""
        if isinstance(node, AccumulateGrad):
            variable = id(node.variable)
            if variable not in self._holders:
                self._holders[variable] = self.modules.holder(node.variable)
            return self._holders[variable]
        return self.modules.call_of_node(node, called_here=True).module

    def _before_optimizer(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Assign parameters and gradients to their uses, and check the gradients; torch calls this as a hook."""
        self._optimizing += 1
        self._end_segment()
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.memory.assign(dense_tensors_of(parameters), "parameters")
        self.memory.assign(dense_tensors_of(parameter.grad for parameter in parameters), "gradients")
        self.differing.check_gradients(optimizer, self.modules.place_of, self._step)

    def _after_optimizer(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Assign the optimizer's state to its use, and check the parameters; torch calls this as a hook."""
        self._optimizing -= 1
        self._has_updated = True
        states = [value for state in optimizer.state.values() for value in state.values()]
        self.memory.assign(dense_tensors_of(states), "optimizer")
        self.differing.check_parameters(optimizer, self.modules.place_of, self._step)


def _uncounted(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a function to pause the recording while it runs."""
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
    """Wrap the ``resize_`` of storages to count the change of their bytes."""
    memory = parts[KernelRecording].memory

    @wraps(original)
    def resize_(storage: torch.UntypedStorage, size: int) -> Any:
        result = original(storage, size)
        memory.resized(storage)
        return result

    return resize_


def _met(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``DTensor.to_local`` to read the placements of the DTensor."""
    recording = parts[KernelRecording]

    @wraps(original)
    def to_local(tensor: DTensor, *args: Any, **kwargs: Any) -> Any:
        recording.differing.met([tensor], ("forward", recording.modules.own.calls.current), "to_local", 0)
        return original(tensor, *args, **kwargs)

    return to_local


PATCHES: tuple[Entry, ...] = (
    Patch(TO_LOCAL, "the DTensor's placements say among which ranks its result differs", _met, by_code=True),
    Patch(PROPAGATE_TENSOR_META, "the program does not run the ops that it calls on global shapes", _uncounted),
    Patch(INPUT_PLACEHOLDER, "its copies take no memory and no time of a device", _uncounted, on_import=True),
    Patch(RESIZE_STORAGE, "FSDP2 frees gathered parameters by it, which no dispatch mode sees", _followed),
)
"""Functions that are replaced while kernels are recorded."""


_DISPATCH = OpCost("dispatch", "DTensor", "")
_WAIT = OpCost("wait", "wait", "")
