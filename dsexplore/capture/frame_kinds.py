"""The kind of each frame of a Python stack: the user's line, a module's call, autograd, an optimizer, FSDP, DTensor, …

Frames are classified by file and function name, once per code object, so that code that torch.compile has rewritten
is recognised too. `stack_reading` draws conclusions from them.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import torch
from torch._library.autograd import make_autograd_impl

from dsexplore.capture.source_lines import INSTALLED, Sources

PLUMBING: Final = -1  # our own code, and torch's between an op and a dispatch mode
INTERNAL: Final = 0  # anything else of torch and of Python that says nothing
USER: Final = 1  # the program, and packages that it uses
MODULE_CALL: Final = 2  # Module._call_impl, torch's own or the recorder's
ENGINE: Final = 3  # the call into autograd's engine that runs a backward
OPTIMIZER: Final = 4  # Optimizer.step
FSDP: Final = 5  # a parameter group of fully_shard
REDISTRIBUTE: Final = 6  # DTensor changes placements
IMPLICIT: Final = 7  # an op on DTensors redistributes its arguments
DTENSOR_OP: Final = 8  # an op on DTensors runs
OBJECT: Final = 9  # a collective of pickled objects, such as all_gather_object
P2P_BATCH: Final = 10  # batch_isend_irecv
REDISTRIBUTE_BACKWARD: Final = 11  # the backward of a redistribute
DDP_HOOK: Final = 12  # a communication hook of DistributedDataParallel
PIPELINE: Final = 13  # a pipeline schedule
BLOCKING: Final = 14  # send and recv, which wait; their op is that of isend and irecv
COMPILED: Final = 15  # what torch.compile generated, and what calls it
PIPELINE_WARM_UP: Final = 16  # pipeline stages exchange shapes before their first step
RECOMPUTE: Final = 17  # activation checkpointing runs a forward again
COMPILER: Final = 18  # torch.compile itself
OUTER_CALL: Final = 19  # Module._wrapped_call_impl, around MODULE_CALL
USER_HOOK: Final = 20  # a function of the program with a parameter "bucket", as DDP calls its hooks
START_UP: Final = 21  # sets a model, a mesh or a group up, and sends before the first step
SENDER: Final = 22  # a function of torch that sends parameters at start-up, named as the cause
FLAT_PARAMETER: Final = 23  # gathers or reduces a flat parameter of FullyShardedDataParallel

_DISPATCHER = ("_ops.py", "_compile.py", "_dynamo/eval_frame.py", "utils/_python_dispatch.py", "utils/_stats.py")
"""Files of torch between an op and a dispatch mode: like our own, their frames do not show who issued the op."""

_TORCH = str(Path(torch.__file__).parent) + os.sep
_STANDARD_LIBRARY = (sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("platstdlib") + os.sep)
_INSTALLED = tuple(folder + os.sep for folder in INSTALLED)
_OWN = str(Path(__file__).parents[1]) + os.sep
_ENGINES = ("deepspeed", "megatron.core", "numpy")
"""Packages whose lines are not the user's, like torch's own: they call the user's model and communicate for it, or, as
numpy, read tensors for it, such as those that index an array."""

_BY_NAME: dict[tuple[str, str], int] = {
    ("nn/modules/module.py", "_call_impl"): MODULE_CALL,
    # Of one call the outer frame; the only one where torch 2.15 has compiled the inner one away.
    ("nn/modules/module.py", "_wrapped_call_impl"): OUTER_CALL,
    ("autograd/graph.py", "_engine_run_backward"): ENGINE,
    ("optim/optimizer.py", "wrapper"): OPTIMIZER,
    ("distributed/tensor/_redistribute.py", "redistribute_local_tensor"): REDISTRIBUTE,
    ("distributed/tensor/_redistribute.py", "backward"): REDISTRIBUTE_BACKWARD,
    ("distributed/tensor/_dispatch.py", "redistribute_local_args"): IMPLICIT,
    ("distributed/pipelining/schedules.py", "_initialize_pp_stages"): PIPELINE_WARM_UP,
    ("nn/parallel/distributed.py", "__init__"): START_UP,
    ("distributed/fsdp/fully_sharded_data_parallel.py", "__init__"): START_UP,
    **{
        ("distributed/fsdp/_runtime_utils.py", name): FLAT_PARAMETER
        for name in (
            "_unshard",
            "_reduce_grad",
            "_reduce_grad_no_shard",
            "_prefetch_handle",
            "_pre_forward_unshard",
            "_pre_backward_hook",
            "_post_backward_hook",
        )
    },
    ("distributed/fsdp/_fully_shard/_fully_shard.py", "fully_shard"): START_UP,
    ("distributed/tensor/_api.py", "distribute_module"): START_UP,
    ("distributed/tensor/parallel/api.py", "parallelize_module"): START_UP,
    ("distributed/tensor/_random.py", "__init__"): START_UP,
    ("distributed/device_mesh.py", "__init__"): START_UP,
    ("distributed/device_mesh.py", "init_device_mesh"): START_UP,
    ("distributed/distributed_c10d.py", "init_process_group"): START_UP,
    ("distributed/distributed_c10d.py", "new_group"): START_UP,
    ("distributed/distributed_c10d.py", "split_group"): START_UP,
    ("distributed/utils.py", "_verify_param_shape_across_processes"): SENDER,
    ("distributed/utils.py", "_sync_params_and_buffers"): SENDER,
    ("distributed/tensor/_api.py", "distribute_tensor"): SENDER,
    ("utils/checkpoint.py", "recompute_fn"): RECOMPUTE,
    ("utils/checkpoint.py", "backward"): RECOMPUTE,  # of the reentrant form
    ("distributed/distributed_c10d.py", "batch_isend_irecv"): P2P_BATCH,
    ("distributed/distributed_c10d.py", "send"): BLOCKING,
    ("distributed/distributed_c10d.py", "recv"): BLOCKING,
    **{
        ("distributed/distributed_c10d.py", name): OBJECT
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
    "distributed/tensor/_dispatch.py": DTENSOR_OP,
    "distributed/fsdp/_fully_shard/_fsdp_param_group.py": FSDP,
    "distributed/pipelining/schedules.py": PIPELINE,
}
_DDP_HOOKS = "distributed/algorithms/ddp_comm_hooks/"

kinds: dict[int, int] = {}
"""The kinds known so far, by the identity of a code object: hashing one reads all of its bytecode."""
_TO_AUTOGRAD = 3
"""How many frames outside of an op's kernel torch's autograd stands, which calls that of a functional op."""
_AUTOGRAD_OF_OP = next(c for c in make_autograd_impl.__code__.co_consts if getattr(c, "co_name", "") == "autograd_impl")
_MOST_LINES = 10_000
_references: dict[int, weakref.ref[CodeType]] = {}
"""Remove a code object from `kinds` when it is freed: programs generate code, and identities are used again."""


def kind_of(code: CodeType) -> int:
    """One of the kinds above."""
    kind = kinds.get(id(code))
    return _remember(code, _classify(code)) if kind is None else kind


def _remember(code: CodeType, kind: int) -> int:
    key = id(code)

    def forget(_reference: weakref.ref[CodeType]) -> None:
        kinds.pop(key, None)
        _references.pop(key, None)

    _references[key] = weakref.ref(code, forget)
    kinds[key] = kind
    return kind


def is_called_by_engine(frame: FrameType | None) -> bool:
    """Whether autograd's C++ code issued the op that is dispatched at ``frame``, without Python in between."""
    while frame is not None:
        kind = kind_of(frame.f_code)
        if kind != PLUMBING:
            return kind == ENGINE
        frame = frame.f_back
    return True


def meaningful(frame: FrameType | None) -> Iterator[tuple[int, FrameType]]:
    """The frames of a stack that say something, with their kinds, innermost first.

    Left out are those of kind `PLUMBING` and `INTERNAL`, which make up most of a stack.
    """
    while frame is not None:
        code = frame.f_code
        kind = kinds.get(id(code))
        if kind is None:
            kind = kind_of(code)
        if kind > INTERNAL:
            yield kind, frame
        frame = frame.f_back


def threads_in_engine() -> set[int]:
    """The threads that wait in autograd's engine for a backward they called."""
    return {thread for thread, frame in sys._current_frames().items() if kind_of(frame.f_code) == ENGINE}


def _classify(code: CodeType) -> int:
    file, name = code.co_filename, code.co_name
    if name == "__torch_dispatch__":
        return PLUMBING
    if file.startswith(_TORCH):
        part = file[len(_TORCH) :].replace(os.sep, "/")
        if part in _DISPATCHER:
            return PLUMBING
        if part.startswith(_DDP_HOOKS):
            return DDP_HOOK
        if part.startswith("distributed/tensor/") and "op_call" in code.co_varnames[: code.co_argcount]:
            return DTENSOR_OP
        if part.startswith("_functorch/_aot_autograd/"):
            return COMPILED
        if part.startswith("_dynamo/"):
            return COMPILER
        return _BY_NAME.get((part, name), _BY_FILE.get(part, INTERNAL))
    if file.startswith(_OWN):
        return PLUMBING
    if file.startswith(("<frozen ", "<eval_with_key>")) or file == "<string>":
        return INTERNAL
    if "torchinductor" in file:
        return COMPILED
    if _is_plumbing(file) or _is_of_engine(file):
        return INTERNAL
    return USER_HOOK if "bucket" in code.co_varnames[: code.co_argcount] else USER


def _is_plumbing(file: str) -> bool:
    """Whether a file belongs to Python's standard library, or is the one that torch's decorators run in."""
    if file.endswith("typing_extensions.py"):
        return True
    return file.startswith(_STANDARD_LIBRARY) and not file.startswith(_INSTALLED)


def _is_of_engine(file: str) -> bool:
    """Whether a file belongs to one of the packages of `_ENGINES` that this process has imported."""
    packages = (sys.modules.get(name) for name in _ENGINES)
    return any(file.startswith(folder + os.sep) for package in packages for folder in getattr(package, "__path__", ()))


def mark_ddp_hook(hook: CodeType) -> None:
    """Classify this code as a DDP communication hook: what it sends are gradient buckets."""
    _remember(hook, DDP_HOOK)


def mark_start_up(code: CodeType) -> None:
    """Classify a function as one that sends before the first step."""
    _remember(code, START_UP)


def mark_module_call(code: CodeType) -> None:
    """Classify a function as one that calls a module: the recorder's own."""
    _remember(code, MODULE_CALL)


def inside_compiled() -> bool:
    """Whether what runs now was called by torch.compile, or by what it compiled."""
    for kind, _ in meaningful(sys._getframe(1)):
        if kind in (USER, USER_HOOK):
            return False
        if kind in (COMPILED, COMPILER):
            return True
    return False


def caller_of_op(frames: int) -> FrameType:
    """The frame from which to read the stack of a collective: outside the observer of its op, and torch's autograd.

    Args:
        frames: how many frames further out than the function that asks there is the observer's outermost one.

    Python makes an object of each frame that is looked at, and frees it when the frame ends. So the frames of torch's
    autograd between a functional op without gradient and its kernel are passed over.
    """
    try:
        frame = sys._getframe(1 + frames + _TO_AUTOGRAD)
    except ValueError:  # called from C++ in a thread of its own
        return sys._getframe(1 + frames)
    return frame if frame.f_code is _AUTOGRAD_OF_OP else sys._getframe(1 + frames)


def user_lines(frame: FrameType | None, depth: int) -> Sources:
    """The innermost of the user's lines outwards from a frame, at most ``depth``."""
    found: Sources = ()
    while frame is not None and len(found) < depth:
        if kind_of(frame.f_code) in (USER, USER_HOOK):
            found += ((frame.f_code, frame.f_lasti),)
        frame = frame.f_back
    return found


class UserLines:
    """Finds the user's lines of frames, and gives the same object for the same line: a program has few of them that
    call a module, and Python's garbage collector has to look at each object."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], Sources] = {}
        """By the identity of the code, which is kept alive, and the offset of the instruction."""

    def innermost(self, frame: FrameType | None) -> Sources:
        """The innermost of the user's lines outwards from a frame; empty where there is none."""
        if len(self._known) >= _MOST_LINES:  # a program that makes code as it runs
            self._known.clear()
        line = user_lines(frame, 1)
        for code, offset in line:
            return self._known.setdefault((id(code), offset), line)
        return line

    def release(self) -> None:
        """Drop all references to the program's code."""
        self._known.clear()
