"""Custom ops whose implementation communicates, such as those of context parallelism for FlexAttention.

What a custom op returns for fake tensors is described by a function that makes the result and sends nothing. So where
the Python function that implements the op calls collectives, it is that function which runs on fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

from dsexplore._internal.torch_internals.dispatch import python_function_of

_TORCH = "torch.distributed"
_COLLECTIVES = (
    *("all_gather", "all_reduce", "all_to_all", "barrier", "batch_isend_irecv", "broadcast", "gather", "irecv"),
    *("isend", "permute_tensor", "recv", "reduce", "scatter", "send"),
)
"""How the names of torch's collectives begin."""


@cache
def implementation(op: Any) -> Callable[..., Any] | None:
    """Return the Python function of a custom op that calls collectives; None for all other ops."""
    function = python_function_of(op)
    return function if isinstance(function, FunctionType) and _communicates(function, set()) else None


def _communicates(function: FunctionType, seen: set[CodeType]) -> bool:
    """Return True if a function, or one of its module that it calls, names a collective of torch."""
    if function.__code__ in seen:
        return False
    seen.add(function.__code__)
    names = set(_names(function.__code__))
    values = [function.__globals__.get(name) for name in names]
    is_named = any(name.startswith(_COLLECTIVES) for name in names)
    if is_named and ("distributed" in names or any(_is_torchs(value) for value in values)):
        return True
    functions = [
        value for value in values if isinstance(value, FunctionType) and value.__module__ == function.__module__
    ]
    return any(_communicates(function, seen) for function in functions)


def _is_torchs(value: Any) -> bool:
    """Return True if a global is a module of torch.distributed or a function imported from one."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and name.startswith(_TORCH)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes in a code object and in those nested inside it."""
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names(value)
