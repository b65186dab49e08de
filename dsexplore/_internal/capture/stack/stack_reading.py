"""Reads off the Python stack why a collective is issued.

Torch's own frames show which module is being called (by its hooks too), whether autograd or an optimizer is running,
which FSDP parameter group gathers, which DTensor op redistributes, between which placements, and whether the program
asked for that. The stack is read once per collective, which takes some 20 microseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.nn.parallel import DistributedDataParallel

from dsexplore._internal.capture.modules.autograd_nodes import NO_CALL, Backward, ModuleCall, ThreadCalls
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.stack import frame_kinds
from dsexplore._internal.capture.stack.source_lines import Sources
from dsexplore._internal.torch_internals import frames
from dsexplore._internal.torch_internals.autograd import current_graph_task, current_node
from dsexplore._internal.torch_internals.dispatch import OpOverload
from dsexplore._internal.torch_internals.fsdp import module_of_flat_parameter
from dsexplore._internal.trace.causes import PIPELINE_SCHEDULE
from dsexplore._internal.trace.schema import Phase

if TYPE_CHECKING:
    from dsexplore._internal.torch_internals.dtensor import DTensorSpec

DDP_BUCKET = "DDP gradient bucket"
"""The cause of collectives by which DDP reduces gradients."""
DDP_UNUSED = "DDP unused parameters"
"""The cause of the collective by which DDP finds parameters that no rank used."""


@dataclass(slots=True, eq=False)
class StackReading:
    """What the frames read so far show about one collective. It refers to running frames, so it must not be kept."""

    depth: int
    """The maximum number of the user's lines to find."""
    modules: Modules
    thread_calls: ThreadCalls
    """The module calls of this thread, as `module_calls` observed them."""
    graph_task: int
    """Autograd's number of the backward that runs in this thread; -1 for none."""
    phase: Phase
    phase_is_known: bool = False
    """True if a module call, autograd's engine or an optimizer was met: the innermost of them decides the phase."""
    call: ModuleCall = NO_CALL
    """The module call that runs; in backward, the one that made the running autograd node."""
    called: FrameType | None = None
    """Frame of the module call that runs, observed or not; None in backward."""
    backward: Backward | None = None
    """The backward that runs the autograd node, if this thread called it."""
    sources: Sources = ()
    """The user's lines, innermost first."""
    owner: nn.Module | None = None
    """The module whose parameters FSDP moves, or the DDP module at start-up."""
    reduced: nn.Module | None = None
    """The module whose flat parameter's gradient FSDP1 reduces."""
    hooked: nn.Module | None = None
    """The module whose method autograd has called, as a hook of a parameter or at the end of backward. A function that
    a method has defined counts too."""
    cause: str = ""
    """What torch did, ``"FSDP pre_forward"``; empty if the program called the collective itself."""
    dtensor_op: str = ""
    """The innermost op on DTensors, ``aten.add``."""
    before: DTensorSpec | None = None
    """The spec before the innermost redistribute; None outside a redistribute."""
    after: DTensorSpec | None = None
    """The spec after the innermost redistribute."""
    schedule: tuple[dict[str, Any], ...] = ()
    """Local variables of the pipeline schedule's frames, innermost first; see `pipelines`."""
    batch_position: int = 0
    """1 for the first member of a batch of point-to-point operations, 2 for the later ones; 0 outside a batch."""
    is_implicit: bool = False
    """True if it is a redistribute that the program did not ask for."""
    in_redistribute_backward: bool = False
    """True if it is the backward of a redistribute."""
    is_object: bool = False
    """True if it is part of an object collective, such as ``all_gather_object``."""
    is_blocking: bool = False
    """True for ``send`` and ``recv``, False for ``isend`` and ``irecv``, which call the same ops."""
    is_complete: bool = False
    """True if frames further out cannot add anything."""

    @property
    def module(self) -> nn.Module | None:
        """Module being called, observed or not."""
        return self.called.f_locals.get("self") if self.called is not None else None

    @property
    def redistribute_reason(self) -> str:
        """Op that needed the redistribute; ``redistribute`` if the program asked for it."""
        if self.is_implicit and self.dtensor_op:
            return self.dtensor_op
        return "redistribute backward" if self.in_redistribute_backward else "redistribute"

    def decide_phase(self, phase: Phase) -> None:
        """Set the phase, unless a frame further in has decided it."""
        if not self.phase_is_known:
            self.phase_is_known = True
            self.phase = phase

    def attribute_to_node(self, called_here: bool) -> None:
        """Attribute the collective to the module call that made the running autograd node.

        The line of that call comes first, as the line of ``loss.backward()`` does not tell modules apart.

        Args:
            called_here: whether backward is known to have been called in this thread.
        """
        self.call = self.modules.call_of_node(current_node(), called_here)
        if self.call.module is None and self.reduced is not None:  # `holder` finds no module for a flat parameter
            self.call = ModuleCall(self.modules.find(self.reduced))
        self.sources = self.call.sources + self.sources


def read_stack(depth: int, innermost: FrameType | None, modules: Modules) -> StackReading:
    """Read the stack of a collective that is about to be issued.

    Args:
        depth: the maximum number of the user's lines to find.
        innermost: the innermost frame to read.
        modules: the modules and their calls observed so far; most readings end at the innermost call.
    """
    graph_task = current_graph_task()
    reading = StackReading(
        depth,
        modules,
        thread_calls=modules.own.calls,
        graph_task=graph_task,
        phase="other" if graph_task == -1 else "backward",
    )
    kinds, internal = frame_kinds.kinds, frames.INTERNAL
    frame = innermost
    while frame is not None:
        kind = kinds.get(id(frame.f_code))
        if kind is None:
            kind = frame_kinds.kind_of(frame.f_code)
        if kind > internal:
            _READERS[kind](reading, frame)
            if reading.is_complete:
                break
        frame = frame.f_back
    if graph_task != -1 and reading.called is None and reading.backward is None:
        reading.attribute_to_node(called_here=False)
    if reading.before is None and not reading.cause:
        if reading.dtensor_op:
            reading.cause = reading.dtensor_op
        else:  # of torch's C++ code, only DDP's reducer calls c10d
            issuer = frame_kinds.kind_of_issuer(innermost)
            if graph_task != -1 and issuer == frames.ENGINE:
                reading.cause = DDP_BUCKET
            elif issuer == frames.DDP_FORWARD:  # it rebuilds its buckets once, before the second forward
                reading.cause, reading.phase = "DDP bucket order", "between steps"
    if graph_task == -1 and reading.phase == "other" and (not reading.cause or reading.is_implicit):
        # An evaluation gathers objects without gradients, a checkpoint with gradients enabled.
        is_checkpoint = reading.is_object and torch.is_grad_enabled()
        reading.phase = "other" if is_checkpoint else reading.thread_calls.outside
    return reading


def _read_user(reading: StackReading, frame: FrameType) -> None:
    """Add a line of the user, and note a module whose method autograd has called."""
    if reading.graph_task != -1 and not reading.phase_is_known and reading.hooked is None:
        module = frame.f_locals.get("self")
        reading.hooked = module if isinstance(module, nn.Module) else None
    if len(reading.sources) < reading.depth:
        reading.sources += ((frame.f_code, frame.f_lasti),)
    reading.is_complete = reading.phase_is_known and len(reading.sources) >= reading.depth


def _read_user_hook(reading: StackReading, frame: FrameType) -> None:
    _read_user(reading, frame)
    if reading.graph_task != -1 and not reading.phase_is_known and not reading.cause:
        reading.cause = DDP_BUCKET


def _read_user_saves(reading: StackReading, frame: FrameType) -> None:
    if reading.graph_task == -1:
        reading.decide_phase("between steps")
    _read_user(reading, frame)


def _read_between_steps(reading: StackReading, _frame: FrameType) -> None:
    if reading.graph_task == -1:
        reading.decide_phase("between steps")


def _is_of(call: ModuleCall, frame: FrameType | None) -> bool:
    """Return True if a frame of kind MODULE_CALL or OUTER_CALL belongs to an observed call.

    The frame of `module_calls` is this one, or one of the next two further out: it calls torch's
    ``_wrapped_call_impl``, which calls ``_call_impl``.
    """
    for _ in range(3):
        if id(frame) == call.frame:
            return True
        frame = frame.f_back if frame is not None else None
    return False


def _read_module_call(reading: StackReading, frame: FrameType) -> None:
    """Set phase and call by the innermost module call; a call that was observed has the line further out."""
    if reading.phase_is_known:
        return
    reading.phase_is_known = True
    reading.phase = reading.thread_calls.forward if reading.graph_task == -1 else "recompute"
    reading.called = frame
    call = reading.thread_calls.open[-1] if reading.thread_calls.open else NO_CALL
    if _is_of(call, frame):  # else this call was not observed
        reading.call = call
        if len(reading.sources) + 1 == reading.depth:
            reading.sources += call.sources
        reading.is_complete = len(reading.sources) >= reading.depth


def _read_engine(reading: StackReading, frame: FrameType) -> None:
    """Attribute a collective in backward to its autograd node, and add the lines that called backward."""
    if not reading.phase_is_known and reading.graph_task != -1:
        reading.attribute_to_node(called_here=True)
        thread_calls = reading.thread_calls
        backward = thread_calls.backward
        if backward is None or backward.number != reading.graph_task or backward.depth < reading.depth:
            backward = thread_calls.backward = _read_backward(reading, frame)
        reading.backward = backward
        reading.sources += backward.sources
        reading.is_complete = True
    reading.phase_is_known = True


def _read_backward(reading: StackReading, engine: FrameType) -> Backward:
    lines = frame_kinds.user_lines(engine.f_back, reading.depth)
    return Backward(reading.graph_task, frames.makes_graph(engine), lines, reading.depth)


def _read_compiled(reading: StackReading, frame: FrameType) -> None:
    reading.cause = "compiled"
    if isinstance(reading.module, GraphModule):  # the compiled graph, which is no module of the program
        reading.phase_is_known, reading.called, reading.call = False, None, NO_CALL
        reading.phase = "other" if reading.graph_task == -1 else "backward"


def _read_batch(reading: StackReading, frame: FrameType) -> None:
    reading.batch_position = 1 if frames.is_first_of_batch(frame.f_locals) else 2


def _read_pipeline(reading: StackReading, frame: FrameType) -> None:
    if not reading.phase_is_known:
        reading.cause = reading.cause if reading.owner is not None else PIPELINE_SCHEDULE
        reading.schedule += (frame.f_locals,)


def _read_pipeline_warm_up(reading: StackReading, frame: FrameType) -> None:
    if not reading.phase_is_known:
        reading.cause = "pipeline warm-up"
        reading.schedule = ()
        reading.decide_phase("start-up")


def _read_start_up(reading: StackReading, frame: FrameType) -> None:
    reading.decide_phase("start-up")
    module = frame.f_locals.get("self")
    if isinstance(module, DistributedDataParallel):
        reading.owner = module


def _read_sender(reading: StackReading, frame: FrameType) -> None:
    reading.cause = reading.cause or frames.SENDER_CAUSES[frame.f_code.co_name]


def _read_redistribute(reading: StackReading, frame: FrameType) -> None:
    if reading.before is None:
        reading.before, reading.after = frames.specs_of_redistribute(frame.f_locals)


def _read_dtensor_op(reading: StackReading, frame: FrameType) -> None:
    if not reading.dtensor_op:
        op = frame.f_locals.get(frames.OP_OF_DTENSOR)
        if isinstance(op, OpOverload):
            reading.dtensor_op = f"{op.namespace}.{op.__name__.partition('.')[0]}"


def _read_fsdp(reading: StackReading, frame: FrameType) -> None:
    if reading.owner is None:
        modules = getattr(frame.f_locals.get("self"), "modules", None)
        reading.owner = modules[0] if modules else None
        reading.cause = "FSDP"
    if reading.cause == "FSDP":
        reading.cause = frames.FSDP_CAUSES.get(frame.f_code.co_name, "FSDP")


def _read_flat_parameter(reading: StackReading, frame: FrameType) -> None:
    name, handle = frame.f_code.co_name, frame.f_locals.get("handle")
    if reading.owner is None and handle is not None:
        reading.owner, reading.cause = module_of_flat_parameter(handle), "FSDP1"
    if reading.cause == "FSDP1":
        reading.cause = frames.FSDP1_CAUSES.get(name, "FSDP1")
    if name == frames.FSDP1_POST_BACKWARD:
        reading.reduced = reading.owner


def _read_ddp_hook(reading: StackReading, _frame: FrameType) -> None:
    reading.cause = DDP_BUCKET
    if reading.phase == "other":
        reading.phase = "backward"  # a hook's callback, which runs in a thread of the backend


def _read_implicit(reading: StackReading, _frame: FrameType) -> None:
    reading.is_implicit = True


def _read_redistribute_backward(reading: StackReading, _frame: FrameType) -> None:
    reading.in_redistribute_backward = True


def _read_object(reading: StackReading, _frame: FrameType) -> None:
    reading.is_object = True


def _read_blocking(reading: StackReading, _frame: FrameType) -> None:
    reading.is_blocking = True


_READERS: dict[int, Callable[[StackReading, FrameType], None]] = {
    frame_kinds.USER: _read_user,
    frame_kinds.USER_HOOK: _read_user_hook,
    frame_kinds.USER_SAVES: _read_user_saves,
    frames.MODULE_CALL: _read_module_call,
    frames.OUTER_CALL: _read_module_call,
    frames.ENGINE: _read_engine,
    frames.OPTIMIZER: lambda reading, _frame: reading.decide_phase("optimizer"),
    frames.RECOMPUTE: lambda reading, _frame: reading.decide_phase("recompute"),
    frames.FSDP: _read_fsdp,
    frames.FLAT_PARAMETER: _read_flat_parameter,
    frames.REDISTRIBUTE: _read_redistribute,
    frames.REDISTRIBUTE_BACKWARD: _read_redistribute_backward,
    frames.IMPLICIT: _read_implicit,
    frames.DTENSOR_OP: _read_dtensor_op,
    frames.OBJECT: _read_object,
    frames.BLOCKING: _read_blocking,
    frames.P2P_BATCH: _read_batch,
    frames.DDP_HOOK: _read_ddp_hook,
    frames.PIPELINE: _read_pipeline,
    frames.PIPELINE_WARM_UP: _read_pipeline_warm_up,
    frames.START_UP: _read_start_up,
    frames.SENDER: _read_sender,
    frames.BETWEEN_STEPS: _read_between_steps,
    frames.COMPILED: _read_compiled,
    frames.COMPILER: lambda _reading, _frame: None,
    frames.DDP_FORWARD: lambda _reading, _frame: None,
}
