"""Whether all that happens around a module's forward is torch's own: FSDP2, tensor parallelism, checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from torch import nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.nn.modules import module as torchs_module

_OF_MODULES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_ALL_MODULES = tuple(f"_global{name}" for name in _OF_MODULES)


def has_hooks_of_torch_alone(modules: Iterable[nn.Module]) -> bool:
    """Whether no hook, no patched forward and no compiler of anybody else stands around the forward of a module."""
    everywhere = [hook for name in _OF_ALL_MODULES for hook in getattr(torchs_module, name).values()]
    return all(map(_is_known, everywhere)) and all(
        not isinstance(module, OptimizedModule)
        and getattr(module, "_compiled_call_impl", None) is None
        and all(map(_is_known, _around(module)))
        for module in modules
    )


def _around(module: nn.Module) -> Iterator[Any]:
    for name in _OF_MODULES:
        yield from getattr(module, name).values()
    if "forward" in vars(module):
        yield vars(module)["forward"]


def _is_known(function: Any) -> bool:
    """Whether a function, and each that it was made of, is defined in torch, or here."""
    return all(_module_of(one).split(".")[0] in ("torch", "dsexplore") for one in _made_of(function, set()))


def _module_of(function: Any) -> str:
    return str(getattr(function, "__module__", None) or type(function).__module__)


def _made_of(function: Any, seen: set[int]) -> Iterator[Callable[..., Any]]:
    """A function, and the functions that it closes over, wraps or is bound to, as far as Python shows them."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, partial):
        inner: list[Any] = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, MethodType):
        yield type(function.__self__)
        inner = [function.__func__]
    elif isinstance(function, FunctionType):
        yield function
        inner = [cell.cell_contents for cell in function.__closure__ or () if _has_content(cell)]
        inner += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    elif callable(function):
        yield function
        return
    else:
        return
    for one in inner:
        if isinstance(one, (partial, MethodType, FunctionType)):
            yield from _made_of(one, seen)


def _has_content(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty one raises
    except ValueError:
        return False
    return True
