"""What most collectives of a sharded model are: DTensor's redistributes and FSDP's own, in a module's call or backward.

`context` reads any stack, with a function for each kind of frame. Here the few kinds that such a collective stands in
are read in one function, and all other stacks left to `context`: after computations that have emptied the processor's
caches each further function costs about a microsecond. A test compares the two.
"""

from __future__ import annotations

from types import FrameType
from typing import Any

from torch._C import _current_autograd_node, _current_graph_task_id

from dsexplore.capture import frame_kinds
from dsexplore.capture.groups import Groups
from dsexplore.capture.issued import Issued, Placements, is_async
from dsexplore.capture.modules import AccumulateGrad, Module, Modules
from dsexplore.capture.ops import Communication, OfTensor
from dsexplore.capture.source_lines import Sources
from dsexplore.capture.stack import FSDP_CAUSES
from dsexplore.trace.schema import Phase


def read_sharded(
    raw_op: str, entry: Communication, args: tuple[Any, ...], issuer: FrameType, modules: Modules, groups: Groups
) -> Issued | None:
    """Describe a collective that DTensor's redistribute or FSDP issued, with one line of the user's.

    Args:
        raw_op: the op.
        entry: how to read it.
        args: its arguments.
        issuer: where to begin to look.
        modules: what the hooks have told of module calls.
        groups: those met so far.

    Returns:
        None where the stack shows anything else too, or what was not met before.
    """
    if type(entry.messages) is not OfTensor:
        return None
    kinds = frame_kinds.kinds
    here = modules.here.mine
    graph_task = _current_graph_task_id()
    phase: Phase
    trigger: Module | None = None
    owner: Module | None = None
    node_number = -1
    redistribute: dict[str, Any] | None = None
    cause = asked_by = ""
    sources: Sources = ()
    frame: FrameType | None = issuer
    while frame is not None:
        kind = kinds.get(id(frame.f_code))
        if kind is None:
            return None
        if kind > frame_kinds.INTERNAL:
            if kind == frame_kinds.MODULE_CALL:
                if not here.stack:
                    return None
                trigger, _, call, code, offset = here.stack[-1]
                if call != id(frame.f_back) and call != id(frame):
                    return None  # no hook told of this call
                phase = "forward" if graph_task == -1 else "recompute"
                if not sources:
                    if code is None:
                        return None
                    sources = ((code, offset),)
                break
            if kind == frame_kinds.ENGINE:
                backward, node = here.backward, _current_autograd_node()
                if backward is None or backward.number != graph_task or backward.makes_graph or not here.numbers:
                    return None
                if node is None or isinstance(node, AccumulateGrad):
                    return None
                phase = "backward"
                node_number = node._sequence_nr()
                sources += backward.sources
                break
            if kind == frame_kinds.REDISTRIBUTE:
                if redistribute is not None or owner is not None:
                    return None
                redistribute, asked_by = frame.f_locals, "redistribute"
            elif kind == frame_kinds.FSDP:
                if owner is None:
                    held = getattr(frame.f_locals.get("self"), "modules", None)
                    if not held:
                        return None
                    owner, cause = modules.find(held[0]), "FSDP"
                if cause == "FSDP":
                    cause = FSDP_CAUSES.get(frame.f_code.co_name, "FSDP")
            elif kind == frame_kinds.REDISTRIBUTE_BACKWARD:
                asked_by = asked_by and "redistribute backward"
            elif kind != frame_kinds.USER:
                return None
            elif not sources:
                sources = ((frame.f_code, frame.f_lasti),)
        frame = frame.f_back
    else:
        return None
    before: Placements = ()
    after: Placements = ()
    if redistribute is not None:
        specs = redistribute["current_spec"], redistribute["target_spec"]
        groups.add_mesh(specs[0].mesh)
        before, after = specs[0].placements, specs[1].placements
    elif owner is None:
        return None
    group = groups.find(args[entry.group])
    messages = entry.messages(args, group.size, entry.op)
    owner = owner or trigger
    issued = Issued(raw_op, messages, group, phase, trigger, owner, sources, cause, asked_by, before, after)
    issued.is_async = entry.async_op is None or is_async(entry, args)
    if node_number >= 0:
        here.ask(issued, node_number)
    return issued
