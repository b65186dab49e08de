"""`FirstUse`: the CPU stands in for GPUs from the first use of ``cuda`` on; programs without it pay nothing.

A use is one of

* a program's question to ``torch.cuda``, ``torch.accelerator`` or ``torch.version.cuda``; those that torch asks itself
  do not count, and are answered as on a CPU until then;
* a tensor or module that is moved there, or made there: C++ allocates what is made by few ops, which have kernels here;
  functions that ask for a GPU before are replaced here;
* a device mesh of ``cuda``; a profiler of it.

Requirements on this module: nothing of torch is slower before the first use than by a look at an argument of ``to``,
``cuda``, ``tensor`` and ``as_tensor``; it loads nothing of the stand-in.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, update_wrapper
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from dsexplore._internal.torch_internals.cuda import EMIT_NVTX, LAZY_INIT, PROFILE
from dsexplore._internal.torch_internals.function_modes import takes_default_device
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Change, Entry, Kernel, Parts, Patch, Patches, install_all
from dsexplore._internal.torch_internals.tensors import MOVE, MOVE_TO_CUDA, TENSOR_OF_DATA

_LOOK_ONLY = sys.stdlib_module_names - {"__main__"} | {
    *("torch", "triton", "dsexplore", "IPython", "ipykernel", "jedi", "traitlets", "debugpy", "_pytest", "pluggy"),
    *("cloudpickle", "dill", "typeguard", "beartype"),
}
"""Packages that look at the names of modules without using what these stand for, and torch with its compiler."""
_ALLOCATIONS = {
    "aten::empty.memory_format": torch.ops.aten.empty.memory_format,
    "aten::empty_permuted": torch.ops.aten.empty_permuted.default,
    "aten::empty_strided": torch.ops.aten.empty_strided.default,
}
"""The ops by which C++ allocates tensors."""
_ANSWERS = {torch.version: frozenset({"cuda", "hip"})}
"""The names by which a module answers; all public ones unless given."""


class FirstUse:
    """Calls `begin` at the first use of ``cuda``; there is one in each world, and one that waits for nothing elsewhere.

    Attributes:
        begin: lets the CPU stand in for GPUs; None where it does already, or never does.
    """

    def __init__(self) -> None:
        self.begin: Callable[[], None] | None = None
        self._thread = threading.get_ident()
        self._patches = Patches()

    def happens(self) -> None:
        """Make the CPU stand in for GPUs if it does not yet; of other threads than the world's nothing counts."""
        begin = self.begin
        if begin is None or not self.counts():
            return
        self.begin = None
        self._patches.undo()  # the stand-in must find torch as it is
        begin()

    def counts(self) -> bool:
        """Return True if a use that happens now is the first one: it is waited for, and this is the world's thread."""
        return self.begin is not None and threading.get_ident() == self._thread

    @contextmanager
    def awaited(self, begin: Callable[[], None]) -> Iterator[None]:
        """Watch for the first use inside the block."""
        self.begin = begin
        try:
            takes_default_device()  # torch keeps the functions that it finds at the first call
            install_all(PATCHES, {"always"}, self._patches, Parts(self))
            yield
        finally:
            self.begin = None
            self._patches.undo()


def _watch_questions(patches: Patches, parts: Parts) -> None:
    for module in (torch.cuda, torch.accelerator, torch.version):
        before = module.__class__
        module.__class__ = _asked(before, _ANSWERS.get(module), parts[FirstUse])
        patches.callback(setattr, module, "__class__", before)


def _initializing(original: Callable[[], None], parts: Parts) -> Callable[[], None]:
    use = parts[FirstUse]

    def lazy_init() -> None:
        """Skip the initialization of CUDA for C++, which then runs the op on ``cuda``; fail for ``torch.cuda``."""
        asker = str(sys._getframe(1).f_globals.get("__name__", ""))
        if asker.startswith("torch.cuda") or not use.counts():
            original()

    return lazy_init


def _allocating(op: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    use = parts[FirstUse]

    def allocate(*args: Any, **kwargs: Any) -> Any:
        use.happens()
        return made_on_cpu(op, args, kwargs)

    return allocate


def _looking_at_device(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    use = parts[FirstUse]

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_cuda, args[1:])) or (kwargs and is_cuda(kwargs.get("device"))):
            use.happens()
        return original(*args, **kwargs)

    return call


def _moving(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    use = parts[FirstUse]

    def cuda(self_: Tensor, *args: Any, **kwargs: Any) -> Any:
        use.happens()
        return original(self_, *args, **kwargs)

    return cuda


def _profiling(target: TorchName, original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    use = parts[FirstUse]

    def profiling(self_: Any, *args: Any, **kwargs: Any) -> Any:
        if target is not PROFILE or kwargs.get("use_cuda") or kwargs.get("use_device") == "cuda":
            use.happens()
        now = target.get()  # the stand-in's, once it is there
        return (original if now is profiling else now)(self_, *args, **kwargs)

    return profiling


class _Method:
    """A method that replaces one of `Tensor`, and compares equal to it.

    torch hands the method to ``__torch_function__`` of subclasses, which look it up among those that they know.
    """

    def __init__(self, original: Callable[..., Any], call: Callable[..., Any]) -> None:
        self._original, self._call = original, call
        update_wrapper(self, original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, instance: Tensor | None, owner: type) -> Any:
        return self if instance is None else MethodType(self._call, instance)

    def __eq__(self, other: object) -> bool:
        return other is self or bool(other == self._original)

    def __hash__(self) -> int:
        return hash(self._original)


def made_on_cpu(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Call an op that makes a tensor on ``cuda``, once the CPU stands in for it."""
    from dsexplore._internal.worlds.cuda.device_marks import CPU, place

    device = kwargs["device"]
    result = func(*args, **{**kwargs, "device": CPU})
    place(result, device if device.index is not None else torch.device("cuda", torch.cuda.current_device()))
    return result


def is_cuda(device: Any) -> bool:
    """Return True if an argument names a CUDA device, as text, as a device, or by its number."""
    kind = type(device)
    if kind is torch.device:
        return bool(device.type == "cuda")
    return device.startswith("cuda") if kind is str else kind is int


def _asked(before: type[ModuleType], names: frozenset[str] | None, use: FirstUse) -> type[ModuleType]:
    """Return a class for a module that takes a program's question to it for a use of ``cuda``."""

    def __getattribute__(module: ModuleType, name: str) -> Any:
        if use.begin is not None and (name in names if names is not None else name[:1] != "_"):
            asker = str(sys._getframe(1).f_globals.get("__name__", ""))
            if asker.partition(".")[0] not in _LOOK_ONLY:
                use.happens()
        return before.__getattribute__(module, name)

    return type("AskedModule", (before,), {"__getattribute__": __getattribute__})


def _make_method(
    make: Callable[[Callable[..., Any], Parts], Callable[..., Any]], original: Callable[..., Any], parts: Parts
) -> _Method:
    return _Method(original, make(original, parts))


PATCHES: tuple[Entry, ...] = (
    Change("torch.cuda, torch.accelerator and torch.version", "a question to them is a use", _watch_questions),
    Patch(LAZY_INIT, "C++ calls it before the op that makes a first tensor", _initializing),
    *(Kernel(name, "CUDA", "it makes a tensor of C++", partial(_allocating, op)) for name, op in _ALLOCATIONS.items()),
    *(Patch(target, "it asks for a GPU before its op", _looking_at_device) for target in TENSOR_OF_DATA),
    *(
        Patch(target, "it asks for a GPU before any op", partial(_profiling, target))
        for target in (PROFILE, EMIT_NVTX[0])
    ),
    Patch(MOVE, "it asks for a GPU before its op", partial(_make_method, _looking_at_device)),
    Patch(MOVE_TO_CUDA, "it asks for a GPU before its op", partial(_make_method, _moving)),
)
"""What is replaced until the first use."""
