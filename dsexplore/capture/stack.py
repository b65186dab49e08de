"""Why a collective was issued, read off the Python stack at the moment it is issued.

Nothing is patched for this: torch's own frames say which module is being called (hooks of the module included),
whether autograd or an optimizer is running, which FSDP parameter group gathers, which DTensor op redistributes what
to what, and whether anybody asked for it.

The walk costs a few microseconds, and is done once per collective; what it finds is put into words when a table is
made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch._C import _current_autograd_node, _current_graph_task_id
from torch.distributed.device_mesh import DeviceMesh
from torch.fx import GraphModule

from dsexplore.capture import frame_kinds
from dsexplore.capture.autograd_nodes import Backward, Boundaries, site
from dsexplore.capture.issued import Placements
from dsexplore.capture.modules import Module, Modules
from dsexplore.capture.source_lines import Sources
from dsexplore.trace.schema import Phase

FSDP_CAUSES = {
    "_prefetch_unshard": "FSDP prefetch",
    "pre_forward": "FSDP pre_forward",
    "pre_backward": "FSDP pre_backward",
    "post_backward": "FSDP post_backward",
    "finalize_backward": "FSDP post_backward",
}
"""By the name of FSDP's function; the innermost one that is here tells."""


@dataclass(slots=True, eq=False)
class Context:
    """What the stack says about one collective; it holds on to what is running, so it must not be kept."""

    depth: int
    modules: Modules
    here: Boundaries
    """What the hooks have told of module calls in this thread."""
    sources: Sources = ()
    phase: Phase = "other"
    trigger: Module | None = None
    """The module that was running."""
    call: FrameType | None = None
    """Where a module is being called; None in backward, where the autograd node tells the module."""
    owner: nn.Module | None = None
    """The module whose parameters move, where the stack knows it."""
    cause: str = ""
    asked_by: str = ""
    """What asked for a redistribute, whose placements before and after are the next two."""
    before: Placements = ()
    after: Placements = ()
    implicit: bool = False
    is_object: bool = False
    is_blocking: bool = False
    """``send`` and ``recv``, which wait; their op is that of ``isend`` and ``irecv``."""
    batch: int = 0
    """1 for the first member of a batch of point-to-point operations, 2 for the next ones."""
    mesh: DeviceMesh | None = None
    schedule: tuple[dict[str, Any], ...] = ()
    """Local names of the pipeline schedule's frames, innermost first; see `pipelines`."""
    stage: nn.Module | None = None
    """The stage whose message it is, once the schedule told."""
    node: Any = None
    """The autograd node that is running, in backward."""
    node_number: int = -1
    """Autograd's number for it, where a module's call among `boundaries` made it."""
    boundaries: Boundaries | None = None
    backward: Backward | None = None
    """What is running it, where it was called in this thread."""
    found: bool = False
    """Whether nothing further out can tell more."""
    graph_task: int = -1
    """The number of the backward that is running; -1 for none."""
    in_backward: bool = False
    settled: bool = False
    """The innermost of module call, autograd engine and optimizer decides phase and module."""
    redistribute: dict[str, Any] | None = None
    """Local names of the innermost redistribute."""
    redistribute_backward: bool = False
    op: str = ""
    """The innermost op on DTensors."""

    @property
    def module(self) -> nn.Module | None:
        """The module being called."""
        return self.call.f_locals.get("self") if self.call is not None else None

    def settle(self, phase: Phase) -> None:
        """That is the phase, unless a frame further in has told it."""
        if not self.settled:
            self.settled = True
            self.phase = phase

    def ask_node(self, called_here: bool) -> None:
        """Let the running autograd node tell the module; most need not be looked up before a table is made."""
        self.trigger, self.boundaries = self.modules.maker(self.node, called_here)
        if self.boundaries is not None:
            self.node_number = self.node._sequence_nr()

    def called(self) -> tuple[Module | None, Sources]:
        """In backward: the module whose node is running, and what called it."""
        if self.boundaries is None:
            return self.trigger, ()
        call = self.boundaries.at(self.node_number)
        return call[0], site(call)


def look(depth: int, frame: FrameType | None, modules: Modules) -> Context:
    """Read the stack.

    Args:
        depth: how many of the user's frames to keep, innermost first.
        frame: where to begin.
        modules: what the hooks have told of module calls; with it, most walks end at the module's call.
    """
    # Here too each further function costs about a microsecond: the usual way is written out.
    context = Context(depth, modules, modules.here.mine)
    graph_task = _current_graph_task_id()
    if graph_task != -1:
        context.graph_task, context.in_backward, context.phase = graph_task, True, "backward"
        context.node = _current_autograd_node()
    kinds = frame_kinds.kinds
    innermost = frame
    while frame is not None and not context.found:
        code = frame.f_code
        kind = kinds.get(id(code))
        if kind is None:
            kind = frame_kinds.kind_of(code)
        if kind > frame_kinds.INTERNAL:
            _READERS[kind](context, frame)
        frame = frame.f_back
    if context.call is None and context.backward is None and context.node is not None:
        context.ask_node(called_here=False)
    redistribute = context.redistribute
    if redistribute is not None:
        before, after = redistribute["current_spec"], redistribute["target_spec"]
        backward = "redistribute backward" if context.redistribute_backward else "redistribute"
        context.asked_by = context.op if context.implicit and context.op else backward
        context.mesh, context.before, context.after = before.mesh, before.placements, after.placements
    elif context.op and not context.cause:
        context.cause = context.op
    elif context.in_backward and not context.cause and frame_kinds.is_called_by_engine(innermost):
        context.cause = "DDP gradient bucket"  # only the reducer calls c10d from C++
    return context


def _read_user(context: Context, frame: FrameType) -> None:
    if len(context.sources) < context.depth:
        context.sources += ((frame.f_code, frame.f_lasti),)
    context.found = context.settled and len(context.sources) >= context.depth


def _read_user_hook(context: Context, frame: FrameType) -> None:
    _read_user(context, frame)
    if context.in_backward and not context.settled and not context.cause:
        context.cause = "DDP gradient bucket"


def _read_call(context: Context, frame: FrameType) -> None:
    if context.settled:
        return
    context.call = frame
    context.settled = True
    context.phase = "recompute" if context.in_backward else "forward"
    here = context.here
    if here.stack and here.stack[-1][2] in (id(frame), id(frame.f_back)):
        context.trigger = here.stack[-1][0]
        if len(context.sources) + 1 == context.depth:
            context.sources += site(here.stack[-1])
        context.found = len(context.sources) >= context.depth


def _read_engine(context: Context, frame: FrameType) -> None:
    if not context.settled and context.in_backward:
        context.ask_node(called_here=True)
        here = context.here
        backward = here.backward
        if backward is None or backward.number != context.graph_task or backward.depth < context.depth:
            backward = here.backward = _read_backward(context, frame)
        context.backward = backward
        context.sources += backward.sources
        context.found = True
    context.settled = True


def _read_backward(context: Context, engine: FrameType) -> Backward:
    makes_graph = engine.f_locals["args"][2:3] == (True,)
    return Backward(context.graph_task, makes_graph, frame_kinds.users(engine.f_back, context.depth), context.depth)


def _read_compiled(context: Context, frame: FrameType) -> None:
    context.cause = "compiled"
    if isinstance(context.module, GraphModule):  # the compiled graph, and no module of the program
        context.settled, context.call = False, None
        context.phase = "backward" if context.in_backward else "other"


def _read_batch(context: Context, frame: FrameType) -> None:
    names = frame.f_locals
    context.batch = 1 if names.get("p2p_op") is names["p2p_op_list"][0] else 2


def _read_pipeline(context: Context, frame: FrameType) -> None:
    if not context.settled:
        context.cause = "pipeline schedule"
        context.schedule += (frame.f_locals,)


def _read_warm_up(context: Context, frame: FrameType) -> None:
    if not context.settled:
        context.cause = "pipeline warm-up"
        context.schedule = ()
        context.settled = True


def _read_redistribute(context: Context, frame: FrameType) -> None:
    if context.redistribute is None:
        context.redistribute = frame.f_locals


def _read_redistribute_backward(context: Context, frame: FrameType) -> None:
    if context.redistribute is not None:
        context.redistribute_backward = True


def _read_op(context: Context, frame: FrameType) -> None:
    if not context.op:
        op = frame.f_locals.get("op_call")
        if isinstance(op, torch._ops.OpOverload):
            context.op = f"{op.namespace}.{op._opname}"


def _read_fsdp(context: Context, frame: FrameType) -> None:
    if context.owner is None:
        group = frame.f_locals.get("self")
        modules = getattr(group, "modules", None)
        context.owner = modules[0] if modules else None
        context.cause = "FSDP"
    if context.cause == "FSDP":
        context.cause = FSDP_CAUSES.get(frame.f_code.co_name, "FSDP")


def _noting(name: str, value: Any) -> Callable[[Context, FrameType], None]:
    """A reader to which the frame's being there says everything."""

    def read(context: Context, _frame: FrameType) -> None:
        setattr(context, name, value)

    return read


_READERS: dict[int, Callable[[Context, FrameType], None]] = {
    frame_kinds.USER: _read_user,
    frame_kinds.USER_HOOK: _read_user_hook,
    frame_kinds.MODULE_CALL: _read_call,
    frame_kinds.OUTER_CALL: _read_call,
    frame_kinds.ENGINE: _read_engine,
    frame_kinds.OPTIMIZER: lambda context, _frame: context.settle("optimizer"),
    frame_kinds.RECOMPUTE: lambda context, _frame: context.settle("recompute"),
    frame_kinds.FSDP: _read_fsdp,
    frame_kinds.REDISTRIBUTE: _read_redistribute,
    frame_kinds.REDISTRIBUTE_BACKWARD: _read_redistribute_backward,
    frame_kinds.IMPLICIT: _noting("implicit", True),
    frame_kinds.DTENSOR_OP: _read_op,
    frame_kinds.OBJECT: _noting("is_object", True),
    frame_kinds.BLOCKING: _noting("is_blocking", True),
    frame_kinds.P2P_BATCH: _read_batch,
    frame_kinds.DDP_HOOK: _noting("cause", "DDP gradient bucket"),
    frame_kinds.PIPELINE: _read_pipeline,
    frame_kinds.PIPELINE_WARM_UP: _read_warm_up,
    frame_kinds.COMPILED: _read_compiled,
    frame_kinds.COMPILER: lambda context, _frame: None,
}
