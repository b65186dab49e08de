"""The dispatcher (keys, kernels, ops, dispatch modes), and how torch.compile's frame evaluation is kept away."""

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
    """A dispatch mode that torch does not wrap for the compiler, which costs a fifth of what an op costs here.

    Where a compiler looks at frames (`eval_frame_callback`), ``__torch_dispatch__`` has to keep it away itself.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


BACKEND_SELECT: DispatchKey = internal("torch:DispatchKey.BackendSelect")
"""The key that every call passes right before the kernel of a device is chosen."""
CPU: DispatchKey = internal("torch:DispatchKey.CPU")
META: DispatchKey = internal("torch:DispatchKey.Meta")

_keys_after = internal("torch._C:_dispatch_keyset_full_after")
AFTER_BACKEND_SELECT: DispatchKeySet = (
    _keys_after(BACKEND_SELECT) if is_there(_keys_after) and is_there(BACKEND_SELECT) else _keys_after
)
"""The keys of all kernels that a call may still reach behind `BACKEND_SELECT`."""
META_ALONE: Any = DispatchKeySet(META) if is_there(META) and is_there(DispatchKeySet) else DispatchKeySet
"""The keys of a call on meta tensors that goes straight to its kernel."""

exclude_key: Callable[[DispatchKey, bool], None] = internal("torch._C:_dispatch_tls_set_dispatch_key_excluded")
include_key: Callable[[DispatchKey, bool], None] = internal("torch._C:_dispatch_tls_set_dispatch_key_included")
"""Include a key in the calls of this thread, or no longer."""
is_key_excluded: Callable[[DispatchKey], bool] = internal(
    "torch._C:_dispatch_tls_is_dispatch_key_excluded", otherwise=lambda key: False
)
is_key_included: Callable[[DispatchKey], bool] = internal("torch._C:_dispatch_tls_is_dispatch_key_included")
CAN_PASS_KEYS_BY = all(map(is_there, (exclude_key, include_key, is_key_excluded, is_key_included)))
"""Whether calls can be made to pass the kernels of a key by."""

active_dispatch_modes: Callable[[], list[Any]] = internal(
    "torch.utils._python_dispatch:_get_current_dispatch_mode_stack"
)
"""Return the dispatch modes that are active in this thread, outermost first."""

with_torch_function: Callable[[], Any] = internal("torch._C:_EnableTorchFunction")
"""Return a context in which torch calls ``__torch_function__`` again, also inside of one in which it does not."""

without_modes: Callable[[], Any] = internal(
    "torch.utils._python_dispatch:_disable_current_modes", otherwise=nullcontext
)
"""Return a context in which no dispatch mode is active in this thread, where torch can make one."""

no_torch_dispatch: Callable[[], Any] = internal("torch._C:_DisableTorchDispatch")
"""Return a context in which ops reach the kernels of their device: no dispatch mode, and no subclass, sees them."""

current_tracing_context: Callable[[], Any] = internal("torch._guards:TracingContext.try_get", otherwise=lambda: None)
"""Return the context in which the compiler traces a program in this thread; None where it does not."""

all_op_names: Callable[[], list[str]] = internal("torch._C:_dispatch_get_all_op_names", otherwise=list)
"""Return the names of all ops, ``"aten::add.Tensor"``, which takes milliseconds; none where torch does not say."""

redispatch_of: Callable[[Any], Callable[..., Any]] = attrgetter("_handle.redispatch_boxed")
"""Return the function of an op that calls the kernel of its first argument, a set of keys."""

schema_of: Callable[[Any], Any] = attrgetter("_schema")
"""Return the schema of an op, with its ``name``, ``arguments`` and ``returns``."""


_custom_ops = internal("torch._library.custom_ops:OPDEFS", otherwise={})


def python_function_of(op: Any) -> Any:
    """Return the Python function that implements an op, where ``torch.library.custom_op`` defined it; else None."""
    return getattr(_custom_ops.get(schema_of(op).name), "_init_fn", None)


def find_op(name: str) -> Any:
    """Return the op of a name as the dispatcher has it, ``"c10d::allreduce_"``, with its overloads; None for none."""
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op, None)


def ops_defined_in_python() -> Iterable[str]:
    """Return the schemas of the ops that Python code has defined, also of those that are gone again."""
    return getattr(torch.library, "_defs", ())


def remove_kernels(library: torch.library.Library) -> None:
    """Unregister everything that was registered through a library."""
    library._destroy()


_of_autograd = internal("torch._library.autograd:make_autograd_impl")
AUTOGRAD_OF_OP: CodeType | None = next(
    (
        constant
        for constant in getattr(getattr(_of_autograd, "__code__", None), "co_consts", ())
        if getattr(constant, "co_name", "") == "autograd_impl"
    ),
    None,
)
"""The code of torch's function that calls a functional collective's op on behalf of autograd."""

eval_frame_callback: Callable[[], Any] = internal(
    "torch._C._dynamo.eval_frame:get_eval_frame_callback", otherwise=lambda: None
)
"""Return the compiler's frame callback of this thread; None if there is none."""

uncompiled: Callable[[Any], Any] = internal("torch._compile:_disable_dynamo", otherwise=torch.compiler.disable)
"""Return a function that the compiler leaves alone, with all that it calls. The compiler is not imported for it."""

_set_strategy = internal("torch._C._dynamo.eval_frame:set_code_exec_strategy")
_Strategy = internal("torch._C._dynamo.eval_frame:_FrameExecStrategy")
_Action = internal("torch._C._dynamo.eval_frame:_FrameAction")


def leave_to_python(code: CodeType) -> None:
    """Keep torch.compile from compiling a function, and what it calls, as a graph of its own.

    Where torch.compile leaves a frame to Python, it still tries to compile every function called from there, ours
    included: an observer would become a graph of its own. A graph of the user's that calls the function may still
    contain it.
    """
    _leave(code, with_calls=True)


def leave_frame_to_python(code: CodeType) -> None:
    """Keep torch.compile from compiling a function as a graph of its own; what the function calls may become one."""
    _leave(code, with_calls=False)


def _leave(code: CodeType, with_calls: bool) -> None:
    if is_there(_set_strategy) and is_there(_Strategy) and is_there(_Action):  # else a graph more is all that happens
        called = _Action.SKIP if with_calls else _Action.DEFAULT
        _set_strategy(code, _Strategy(_Action.SKIP, called))


has_kernel_for: Callable[[str, str], bool] = internal("torch._C:_dispatch_has_kernel_for_dispatch_key")
"""Return True if an op, ``"aten::mm"``, has a kernel for a dispatch key, ``"CPU"``.

Raises:
    RuntimeError: there is no op of that name.
"""


def has_op(name: str) -> bool:
    """Return True if there is an op of that name, or if torch cannot say."""
    if not is_there(has_kernel_for):
        return True
    try:
        has_kernel_for(name, "CPU")
    except RuntimeError:
        return False
    return True


def load_compiler() -> None:
    """Import the part of torch.compile that keeps functions of torch as it finds them."""
    internal("torch._dynamo")
