"""`FirstUse`: starts the CUDA stand-in at the first use of ``cuda``, so that programs without it pay nothing.

A use is one of

* an attribute of ``torch.cuda``, ``torch.accelerator`` or ``torch.version`` that the program reads; until then, torch's
  own reads are answered as on a CPU and do not count;
* a tensor or module created on ``cuda`` or moved there. C++ allocates tensors by a few ops, which get kernels here;
  functions that ask for a GPU before they call such an op are replaced here;
* a device mesh of ``cuda``, or a profiler of it.

Requirements on this module: before the first use, it costs no more than a check of the arguments of ``to``, ``cuda``,
``tensor`` and ``as_tensor``; and it imports nothing of the stand-in.
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
"""Packages whose reads of ``torch.cuda`` are no use of it: torch itself, and those that inspect modules by name."""
_ALLOCATIONS = {
    "aten::empty.memory_format": torch.ops.aten.empty.memory_format,
    "aten::empty_permuted": torch.ops.aten.empty_permuted.default,
    "aten::empty_strided": torch.ops.aten.empty_strided.default,
}
"""The ops by which C++ allocates tensors."""
_ANSWERS = {torch.version: frozenset({"cuda", "hip"})}
"""The attributes of a module of which a read is a use; all public ones for modules that are not listed."""


class FirstUse:
    """Calls `begin` at the first use of ``cuda``. Each world has one; outside worlds, one that never calls.

    Attributes:
        begin: starts the stand-in; None if it has started, or never starts.
    """

    def __init__(self) -> None:
        self.begin: Callable[[], None] | None = None
        self._thread = threading.get_ident()
        self._patches = Patches()

    def happens(self) -> None:
        """Start the stand-in unless it has started; ignore uses by other threads than the world's."""
        begin = self.begin
        if begin is None or not self.counts():
            return
        self.begin = None
        self._patches.undo()  # the stand-in must find torch as it is
        begin()

    def counts(self) -> bool:
        """Return True if a use now would be the first one, on the world's thread."""
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


def _watch_reads(patches: Patches, parts: Parts) -> None:
    """Replace the classes of three modules of torch, so that a read of their attributes counts as the first use."""
    for module in (torch.cuda, torch.accelerator, torch.version):
        before = module.__class__
        module.__class__ = _asked(before, _ANSWERS.get(module), parts[FirstUse])
        patches.callback(setattr, module, "__class__", before)


def _initializing(original: Callable[[], None], parts: Parts) -> Callable[[], None]:
    """Wrap ``torch.cuda._lazy_init``: for C++, skip it, so that the op on ``cuda`` runs; for ``torch.cuda``, fail."""
    use = parts[FirstUse]

    def lazy_init() -> None:
        caller = str(sys._getframe(1).f_globals.get("__name__", ""))
        if caller.startswith("torch.cuda") or not use.counts():
            original()

    return lazy_init


def _allocating(op: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Return a CUDA kernel of an op that creates a tensor: the call counts as the first use, and runs on the CPU."""
    use = parts[FirstUse]

    def allocate(*args: Any, **kwargs: Any) -> Any:
        use.happens()
        return made_on_cpu(op, args, kwargs)

    return allocate


def _looking_at_device(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a function with a ``device`` argument, so that a call with a CUDA device counts as the first use."""
    use = parts[FirstUse]

    def call(*args: Any, **kwargs: Any) -> Any:
        if any(map(is_cuda, args[1:])) or (kwargs and is_cuda(kwargs.get("device"))):
            use.happens()
        return original(*args, **kwargs)

    return call


def _moving(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``Tensor.cuda``, so that a call of it counts as the first use."""
    use = parts[FirstUse]

    def cuda(self_: Tensor, *args: Any, **kwargs: Any) -> Any:
        use.happens()
        return original(self_, *args, **kwargs)

    return cuda


def _profiling(target: TorchName, original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap a method of a profiler to count as a use if it profiles ``cuda``, and then call the stand-in's method."""
    use = parts[FirstUse]

    def profiling(self_: Any, *args: Any, **kwargs: Any) -> Any:
        if target is not PROFILE or kwargs.get("use_cuda") or kwargs.get("use_device") == "cuda":
            use.happens()
        current = target.get()  # the stand-in's method, once it has started
        return (original if current is profiling else current)(self_, *args, **kwargs)

    return profiling


class _Method:
    """Replacement of a method of `Tensor` that compares equal to it.

    torch hands the method to ``__torch_function__`` of subclasses, which look it up among the methods they handle.
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
    """Call a factory op with ``device="cuda"`` on the CPU, and mark the result with that device."""
    from dsexplore._internal.worlds.cuda.device_marks import CPU, place

    device = kwargs["device"]
    result = func(*args, **{**kwargs, "device": CPU})
    place(result, device if device.index is not None else torch.device("cuda", torch.cuda.current_device()))
    return result


def is_cuda(device: Any) -> bool:
    """Return True if an argument names a CUDA device, as text, as a device, or by its index."""
    kind = type(device)
    if kind is torch.device:
        return bool(device.type == "cuda")
    if kind is str:
        return bool(device.startswith("cuda"))
    return kind is int


def _asked(before: type[ModuleType], names: frozenset[str] | None, use: FirstUse) -> type[ModuleType]:
    """Return a subclass of a module's class in which the program's reads of these names are a use of ``cuda``."""

    def __getattribute__(module: ModuleType, name: str) -> Any:
        is_watched = not name.startswith("_") if names is None else name in names
        if is_watched and use.begin is not None:
            reader = str(sys._getframe(1).f_globals.get("__name__", ""))
            if reader.partition(".")[0] not in _LOOK_ONLY:
                use.happens()
        return before.__getattribute__(module, name)

    return type("AskedModule", (before,), {"__getattribute__": __getattribute__})


def _make_method(
    make: Callable[[Callable[..., Any], Parts], Callable[..., Any]], original: Callable[..., Any], parts: Parts
) -> _Method:
    """Wrap a method of a C++ class with the replacement that `make` returns."""
    return _Method(original, make(original, parts))


PATCHES: tuple[Entry, ...] = (
    Change("torch.cuda, torch.accelerator and torch.version", "a read of them is a use", _watch_reads),
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
"""Everything that is replaced until the first use."""
