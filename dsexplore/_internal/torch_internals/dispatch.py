"""The dispatcher: keys, kernels, ops and dispatch modes; and functions that keep torch.compile from compiling code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from operator import attrgetter
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from dsexplore._internal.torch_internals.names import internal, is_there

if TYPE_CHECKING:
    from torch._C import DispatchKey as DispatchKey
    from torch._C import DispatchKeySet as DispatchKeySet
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
else:
    DispatchKey = internal("torch:DispatchKey")
    DispatchKeySet = internal("torch:DispatchKeySet")
    OpOverload = internal("torch.library:OpOverload")
    OpOverloadPacket = type(torch.ops.aten.add)
    TorchDispatchMode = internal("torch.utils._python_dispatch:TorchDispatchMode")


class PlainDispatchMode(TorchDispatchMode):
    """A dispatch mode that torch does not wrap for the compiler; the wrapper takes a fifth of an op's time.

    While a compiler evaluates frames (`eval_frame_callback`), ``__torch_dispatch__`` has to disable it itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


BACKEND_SELECT: DispatchKey = internal("torch:DispatchKey.BackendSelect")
"""The key that every call has right before the kernel of a device is chosen."""
CPU: DispatchKey = internal("torch:DispatchKey.CPU")
META: DispatchKey = internal("torch:DispatchKey.Meta")

_keys_after = internal("torch._C:_dispatch_keyset_full_after")
AFTER_BACKEND_SELECT: DispatchKeySet = (
    _keys_after(BACKEND_SELECT) if is_there(_keys_after) and is_there(BACKEND_SELECT) else _keys_after
)
"""The keys of all kernels that a call may reach after `BACKEND_SELECT`."""
META_ALONE: Any = DispatchKeySet(META) if is_there(META) and is_there(DispatchKeySet) else DispatchKeySet
"""The keys of a call on meta tensors that goes straight to its kernel."""

exclude_key: Callable[[DispatchKey, bool], None] = internal("torch._C:_dispatch_tls_set_dispatch_key_excluded")
include_key: Callable[[DispatchKey, bool], None] = internal("torch._C:_dispatch_tls_set_dispatch_key_included")
"""Exclude or include a key in the calls of this thread: ``(key, whether)``."""
is_key_excluded: Callable[[DispatchKey], bool] = internal(
    "torch._C:_dispatch_tls_is_dispatch_key_excluded", otherwise=lambda key: False
)
is_key_included: Callable[[DispatchKey], bool] = internal("torch._C:_dispatch_tls_is_dispatch_key_included")
CAN_SKIP_KEYS = all(map(is_there, (exclude_key, include_key, is_key_excluded, is_key_included)))
"""True if the installed torch has the functions by which calls skip the kernels of a key."""

active_dispatch_modes: Callable[[], list[Any]] = internal(
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack"
)
"""Return the dispatch modes that are active in this thread, outermost first."""

with_torch_function: Callable[[], Any] = internal("torch._C:_EnableTorchFunction")
"""Return a context in which torch calls ``__torch_function__``, also inside a context that disables it."""

without_modes: Callable[[], Any] = internal(
    "torch.utils._python_dispatch:_disable_current_modes", otherwise=nullcontext
)
"""Return a context in which no dispatch mode is active in this thread; one without effect if torch has none."""

no_torch_dispatch: Callable[[], Any] = internal("torch._C:_DisableTorchDispatch")
"""Return a context in which ops reach the kernels of their device, without dispatch modes and tensor subclasses."""

current_tracing_context: Callable[[], Any] = internal("torch._guards:TracingContext.try_get", otherwise=lambda: None)
"""Return the context in which the compiler traces a program in this thread; None if it does not trace."""

all_op_names: Callable[[], list[str]] = internal("torch._C:_dispatch_get_all_op_names", otherwise=list)
"""Return the names of all ops, ``"aten::add.Tensor"``; empty if torch cannot list them. It takes milliseconds."""

redispatch_of: Callable[[Any], Callable[..., Any]] = attrgetter("_handle.redispatch_boxed")
"""Return the function of an op that calls the kernel for a set of keys, which is its first argument."""

schema_of: Callable[[Any], Any] = attrgetter("_schema")
"""Return the schema of an op, with its ``name``, ``arguments`` and ``returns``."""


_custom_ops = internal("torch._library.custom_ops:OPDEFS", otherwise={})


def python_function_of(op: Any) -> Any:
    """Return the Python function that implements an op of ``torch.library.custom_op``; None for another op."""
    return getattr(_custom_ops.get(schema_of(op).name), "_init_fn", None)


def find_op(name: str) -> Any:
    """Return the op with the dispatcher's name ``"c10d::allreduce_"``, with its overloads; None if there is none."""
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op, None)


def ops_defined_in_python() -> Iterable[str]:
    """Return the schemas of all ops that Python code has defined, also of those that were removed since."""
    return getattr(torch.library, "_defs", ())


def remove_kernels(library: torch.library.Library) -> None:
    """Unregister everything that was registered through a library."""
    library._destroy()


_make_autograd_impl = internal("torch._library.autograd:make_autograd_impl")
_constants = getattr(getattr(_make_autograd_impl, "__code__", None), "co_consts", ())
AUTOGRAD_OF_OP: CodeType | None = next(
    (constant for constant in _constants if getattr(constant, "co_name", "") == "autograd_impl"), None
)
"""Code of torch's function that calls the op of a functional collective for autograd; None if torch has none."""

eval_frame_callback: Callable[[], Any] = internal(
    "torch._C._dynamo.eval_frame:get_eval_frame_callback", otherwise=lambda: None
)
"""Return the compiler's frame callback of this thread; None if there is none."""

uncompiled: Callable[[Any], Any] = internal("torch._compile:_disable_dynamo", otherwise=torch.compiler.disable)
"""Return a function that the compiler does not compile, nor what it calls. This does not import the compiler."""

_set_strategy = internal("torch._C._dynamo.eval_frame:set_code_exec_strategy")
_Strategy = internal("torch._C._dynamo.eval_frame:_FrameExecStrategy")
_Action = internal("torch._C._dynamo.eval_frame:_FrameAction")


def leave_to_python(code: CodeType) -> None:
    """Keep torch.compile from compiling a function, and the functions that it calls, as graphs of their own.

    When torch.compile leaves a frame to Python, it still tries to compile every function that the frame calls. An
    observer would then become a graph of its own. A graph of the user that calls the function may still contain it.
    """
    _leave(code, with_calls=True)


def leave_frame_to_python(code: CodeType) -> None:
    """Keep torch.compile from compiling a function as a graph of its own; functions that it calls may become graphs."""
    _leave(code, with_calls=False)


def _leave(code: CodeType, with_calls: bool) -> None:
    if is_there(_set_strategy) and is_there(_Strategy) and is_there(_Action):  # otherwise there is only one more graph
        action_of_calls = _Action.SKIP if with_calls else _Action.DEFAULT
        _set_strategy(code, _Strategy(_Action.SKIP, action_of_calls))


has_kernel_for: Callable[[str, str], bool] = internal("torch._C:_dispatch_has_kernel_for_dispatch_key")
"""Return True if an op, ``"aten::mm"``, has a kernel for a dispatch key, ``"CPU"``.

Raises:
    RuntimeError: there is no op of that name.
"""


def has_op(name: str) -> bool:
    """Return True if there is an op of that name, or if torch cannot tell."""
    if not is_there(has_kernel_for):
        return True
    try:
        has_kernel_for(name, "CPU")
    except RuntimeError:
        return False
    return True


def load_compiler() -> None:
    """Import the part of torch.compile that stores references to functions of torch when it is imported."""
    internal("torch._dynamo")
