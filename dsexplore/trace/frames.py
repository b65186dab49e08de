"""Why a collective was issued, read off the Python stack at the moment it is issued.

Nothing is patched for this: torch's own frames say which module is being called (hooks of the module
included), whether autograd or an optimizer is running, which FSDP parameter group gathers, which DTensor op
redistributes what to what, and whether anybody asked for it.

The walk costs a few microseconds, and is done once per collective. Frames are classified by file and function
name, once per code object, so that code that torch.compile has rewritten is recognised too.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import torch
from torch.fx import GraphModule

from dsexplore import placements

_PLUMBING: Final = -1
_INTERNAL: Final = 0
_USER: Final = 1
_MODULE_CALL: Final = 2
_ENGINE: Final = 3
_OPTIMIZER: Final = 4
_FSDP: Final = 5
_REDISTRIBUTE: Final = 6
_IMPLICIT: Final = 7
_DTENSOR_OP: Final = 8
_OBJECT: Final = 9
_P2P_BATCH: Final = 10
_REDISTRIBUTE_BACKWARD: Final = 11
_DDP_HOOK: Final = 12
_PIPELINE: Final = 13
_BLOCKING: Final = 14
_COMPILED: Final = 15
_PIPELINE_WARM_UP: Final = 16
_RECOMPUTE: Final = 17
_COMPILER: Final = 18
_OUTER_CALL: Final = 19

_DISPATCHER = ("_ops.py", "_compile.py", "_dynamo/eval_frame.py", "utils/_python_dispatch.py")
"""torch's way from an op to a dispatch mode: like our own code, it says nothing of who issued the op."""

_TORCH = str(Path(torch.__file__).parent) + os.sep
_STANDARD_LIBRARY = (sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep)
_INSTALLED = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)
_OWN = str(Path(__file__).parents[1]) + os.sep

_BY_NAME: dict[tuple[str, str], int] = {
    ("nn/modules/module.py", "_call_impl"): _MODULE_CALL,
    # Of one call the outer frame; the only one where torch 2.15 has compiled the inner one away.
    ("nn/modules/module.py", "_wrapped_call_impl"): _OUTER_CALL,
    ("autograd/graph.py", "_engine_run_backward"): _ENGINE,
    ("optim/optimizer.py", "wrapper"): _OPTIMIZER,
    ("distributed/tensor/_redistribute.py", "redistribute_local_tensor"): _REDISTRIBUTE,
    ("distributed/tensor/_redistribute.py", "backward"): _REDISTRIBUTE_BACKWARD,
    ("distributed/tensor/_dispatch.py", "redistribute_local_args"): _IMPLICIT,
    ("distributed/pipelining/schedules.py", "_initialize_pp_stages"): _PIPELINE_WARM_UP,
    ("utils/checkpoint.py", "recompute_fn"): _RECOMPUTE,
    ("utils/checkpoint.py", "backward"): _RECOMPUTE,  # of the reentrant form
    ("distributed/distributed_c10d.py", "batch_isend_irecv"): _P2P_BATCH,
    ("distributed/distributed_c10d.py", "send"): _BLOCKING,
    ("distributed/distributed_c10d.py", "recv"): _BLOCKING,
    **{
        ("distributed/distributed_c10d.py", name): _OBJECT
        for name in (
            "all_gather_object",
            "gather_object",
            "scatter_object_list",
            "broadcast_object_list",
            "send_object_list",
            "recv_object_list",
        )
    },
}
_BY_FILE: dict[str, int] = {
    "distributed/tensor/_dispatch.py": _DTENSOR_OP,
    "distributed/fsdp/_fully_shard/_fsdp_param_group.py": _FSDP,
    "distributed/pipelining/schedules.py": _PIPELINE,
}
_DDP_HOOKS = "distributed/algorithms/ddp_comm_hooks/"

_FSDP_REASONS = {
    "_prefetch_unshard": "prefetch",
    "pre_forward": "pre_forward",
    "pre_backward": "pre_backward",
    "post_backward": "post_backward",
    "finalize_backward": "post_backward",
}

Source = tuple[str, int]
"""File and line."""

_kinds: dict[int, int] = {}
"""By the identity of a code object: hashing one reads all of its bytecode."""
_classified: list[CodeType] = []
"""Keeps those identities from being used again."""


def _kind(code: CodeType) -> int:
    kind = _kinds[id(code)] = _classify(code)
    _classified.append(code)
    return kind


def _classify(code: CodeType) -> int:
    file, name = code.co_filename, code.co_name
    if name == "__torch_dispatch__":
        return _PLUMBING
    if file.startswith(_TORCH):
        part = file[len(_TORCH) :].replace(os.sep, "/")
        if part in _DISPATCHER:
            return _PLUMBING
        if part.startswith(_DDP_HOOKS):
            return _DDP_HOOK
        if part.startswith("distributed/tensor/") and "op_call" in code.co_varnames[: code.co_argcount]:
            return _DTENSOR_OP
        if part.startswith("_functorch/_aot_autograd/"):
            return _COMPILED
        if part.startswith("_dynamo/"):
            return _COMPILER
        return _BY_NAME.get((part, name), _BY_FILE.get(part, _INTERNAL))
    if file.startswith(_OWN):
        return _PLUMBING
    if file.startswith(("<frozen ", "<eval_with_key>")) or file == "<string>":
        return _INTERNAL
    if "torchinductor" in file:
        return _COMPILED
    return _INTERNAL if _is_plumbing(file) else _USER


def _is_plumbing(file: str) -> bool:
    """Whether a file is Python's own, or the home of torch's decorators."""
    if file.endswith("typing_extensions.py"):
        return True
    return file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)


@dataclass(slots=True)
class Context:
    """What the stack says about one collective."""

    phase: str = "other"
    module: Any = None
    """The module being called; None in backward, where the autograd node tells it."""
    owner: Any = None
    """The module whose parameters move, where the stack knows it."""
    cause: str = ""
    implicit: bool = False
    is_object: bool = False
    is_blocking: bool = False
    """``send`` and ``recv``, which wait; their op is that of ``isend`` and ``irecv``."""
    batch: int = 0
    """1 for the first member of a batch of point-to-point operations, 2 for the next ones."""
    mesh: Any = None
    schedule: tuple[dict[str, Any], ...] = ()
    """Local names of the pipeline schedule's frames, innermost first; see `pipelines`."""
    node: Any = None
    """The autograd node that is running, in backward."""
    sources: list[Source] = field(default_factory=list)


def mark_ddp_hook(hook: CodeType) -> None:
    """Tell that what this code sends are DDP's gradient buckets."""
    _kinds[id(hook)] = _DDP_HOOK
    _classified.append(hook)


def look(depth: int) -> Context:
    """Read the stack above the caller.

    Args:
        depth: how many of the user's frames to keep, innermost first.
    """
    context = Context()
    in_backward = torch._C._current_graph_task_id() != -1
    if in_backward:
        context.node = torch._C._current_autograd_node()
        context.phase = "backward"
    settled = False  # the innermost of module call, autograd engine and optimizer decides phase and module
    redistribute: dict[str, Any] | None = None
    redistribute_backward = False
    dtensor_op = ""
    below_engine = True  # no frame of a caller so far
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(id(code))
        if kind is None:
            kind = _kind(code)
        if kind == _INTERNAL:
            pass  # most of them: asked first
        elif kind == _USER:
            if len(context.sources) < depth:
                context.sources.append((code.co_filename, frame.f_lineno))
            if settled and len(context.sources) == depth:
                break
            if in_backward and not settled and not context.cause and "bucket" in code.co_varnames[: code.co_argcount]:
                context.cause = "DDP gradient bucket"
        elif kind in (_MODULE_CALL, _OUTER_CALL):
            if not settled:
                settled = True
                context.module = frame.f_locals.get("self")
                context.phase = "recompute" if in_backward else "forward"
        elif kind == _ENGINE:
            if not settled:
                if below_engine and not context.cause:
                    context.cause = "DDP gradient bucket"  # only the reducer calls c10d from C++
                settled = True
        elif kind == _RECOMPUTE:
            if not settled:
                settled = True
                context.phase = "recompute"
        elif kind == _OPTIMIZER:
            if not settled:
                settled = True
                context.phase = "optimizer"
        elif kind == _FSDP:
            _read_fsdp(frame, context)
        elif kind == _REDISTRIBUTE:
            if redistribute is None:
                redistribute = frame.f_locals
        elif kind == _REDISTRIBUTE_BACKWARD:
            redistribute_backward = redistribute_backward or redistribute is not None
        elif kind == _IMPLICIT:
            context.implicit = True
        elif kind == _DTENSOR_OP:
            if not dtensor_op:
                dtensor_op = _op_called(frame)
        elif kind == _OBJECT:
            context.is_object = True
        elif kind == _BLOCKING:
            context.is_blocking = True
        elif kind == _COMPILED:
            context.cause = "compiled"
            if isinstance(context.module, GraphModule):  # the compiled graph, and no module of the program
                settled, context.module = False, None
                context.phase = "backward" if in_backward else "other"
        elif kind == _P2P_BATCH:
            names = frame.f_locals
            context.batch = 1 if names.get("p2p_op") is names["p2p_op_list"][0] else 2
        elif kind == _DDP_HOOK:
            context.cause = "DDP gradient bucket"
        elif kind == _PIPELINE:
            if not settled:
                context.cause = "pipeline schedule"
                context.schedule += (frame.f_locals,)
        elif kind == _PIPELINE_WARM_UP and not settled:
            context.cause = "pipeline warm-up"
            context.schedule = ()
            settled = True
        if kind != _PLUMBING:
            below_engine = False
        frame = frame.f_back
    if redistribute is not None:
        _read_redistribute(redistribute, dtensor_op, redistribute_backward, context)
    elif dtensor_op and not context.cause:
        context.cause = dtensor_op
    return context


def inside_compiled() -> bool:
    """Whether what runs now was called by torch.compile, or by what it compiled."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        kind = _kinds.get(id(frame.f_code))
        if kind is None:
            kind = _kind(frame.f_code)
        if kind in (_COMPILED, _COMPILER, _USER):
            return kind != _USER
        frame = frame.f_back
    return False


def _op_called(frame: FrameType) -> str:
    op = frame.f_locals.get("op_call")
    return f"{op.namespace}.{op._opname}" if isinstance(op, torch._ops.OpOverload) else ""


def _read_fsdp(frame: FrameType, context: Context) -> None:
    reason = _FSDP_REASONS.get(frame.f_code.co_name)
    if context.owner is None:
        group = frame.f_locals.get("self")
        modules = getattr(group, "modules", None)
        context.owner = modules[0] if modules else None
        context.cause = "FSDP"
    if reason is not None and context.cause == "FSDP":
        context.cause = f"FSDP {reason}"


def _read_redistribute(names: dict[str, Any], op: str, backward: bool, context: Context) -> None:
    before, after = names["current_spec"], names["target_spec"]
    context.mesh = before.mesh
    change = placements.change(before.placements, after.placements)
    asked = op if context.implicit and op else "redistribute backward" if backward else "redistribute"
    within = f"{context.cause}: " if context.cause else ""
    context.cause = f"{within}{asked} {change}"


def call_site() -> Source | None:
    """The user's line that is running, innermost."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(id(code))
        if kind is None:
            kind = _kind(code)
        if kind == _USER:
            return code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def calls_in_progress() -> int:
    """How many module calls are on the stack."""
    calls = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        kind = _kinds.get(id(frame.f_code))
        if kind is None:
            kind = _kind(frame.f_code)
        calls += kind == _MODULE_CALL
        frame = frame.f_back
    return calls


_names: dict[str, str] = {}


def source_text(sources: list[Source]) -> str:
    """``"train.py:12"``, outermost last, joined by `` ← ``."""
    return " ← ".join(f"{file_name(file)}:{line}" for file, line in sources)


def file_name(file: str) -> str:
    """A source file as a person knows it: ``In[3]`` for a notebook cell, ``transformers/…/modeling_llama.py`` for
    an installed package, a path below the working directory where it is there."""
    known = _names.get(file)
    if known is None:
        known = _names[file] = _shorten(file)
    return known


def _shorten(file: str) -> str:
    cell = _cell_number(file)
    if cell is not None:
        return f"In[{cell}]"
    path = Path(file)
    for root in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path.cwd())):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return file


def _cell_number(file: str) -> int | None:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    names = getattr(getattr(shell, "compile", None), "_filename_map", {})
    number = names.get(file)
    return int(number) if number is not None else None
