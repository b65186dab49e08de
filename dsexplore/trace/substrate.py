"""Where the recorder sees collectives: below everything that can issue one, above what carries it out.

What must hold, on success, exception and Ctrl-C:

1. each collective is seen once, whoever issues it: Python, DDP's C++ reducer, FSDP, DTensor, compiled code,
   any thread, on real, meta and fake tensors;
2. ops that do not communicate cost nothing;
3. while torch.compile traces a program, the ops on its fake tensors are not traffic;
4. after `uninstall` the dispatcher is as it was.

`KernelSubstrate` replaces the kernels of the communication ops for as long as it is installed and calls the
originals. `ModeSubstrate` serves a torch without ``torch.library.get_kernel``: a dispatch mode, with its price for
every op, its thread, and no sight of C++ callers. Another source of events needs the same two methods.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed._functional_collectives  # registers its ops
import torch.distributed._symmetric_memory  # registers its ops
import torch.distributed.tensor  # registers its ops
from torch._guards import TracingContext
from torch.utils._python_dispatch import TorchDispatchMode

from dsexplore.trace import registry
from dsexplore.trace.registry import Communication
from dsexplore.trace.uncompiled import leave_to_python

Observer = Callable[[str, Communication, tuple[Any, ...]], Callable[[Any], None] | None]
"""Called with the raw op, its entry and its arguments before it runs; returns what to call with its result."""

Kernel = Callable[..., Any]


class Substrate(Protocol):
    """A source of communication events."""

    def install(self, observe: Observer) -> None:
        """Begin to call ``observe`` for every collective."""

    def uninstall(self) -> None:
        """Leave no trace."""


class _Nesting(threading.local):
    """A functional collective calls its c10d twin: the outer one is the event."""

    outer: list[Any] | None = None


nesting = _Nesting()


def observed(raw_op: str, entry: Communication, kernel: Kernel, observe: Observer) -> Kernel:
    """A kernel that tells the observer, then does what the original does."""

    def recorded(*args: Any, **kwargs: Any) -> Any:
        if nesting.outer is not None:
            result = kernel(*args, **kwargs)
            nesting.outer.append(result)
            return result
        if TracingContext.try_get() is not None or torch.compiler.is_compiling():
            return kernel(*args, **kwargs)
        done = observe(raw_op, entry, args)
        inner: list[Any] = []
        nesting.outer = inner
        try:
            result = kernel(*args, **kwargs)
        finally:
            nesting.outer = None
        if done is not None:
            done(inner[-1] if inner else result)
        return result

    leave_to_python(recorded.__code__)
    return recorded


_DEVICE_KEYS = ("CPU", "CUDA", "XPU", "HPU", "MTIA", "PrivateUse1", "SparseCPU", "SparseCUDA")


class KernelSubstrate:
    """Replaces dispatcher kernels; see the module's text."""

    def __init__(self) -> None:
        self._libraries: list[torch.library.Library] = []
        self._local_tensor = LocalTensorSubstrate()

    def install(self, observe: Observer) -> None:
        libraries: dict[str, torch.library.Library] = {}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # "Overriding a previously registered kernel"
                for raw_op in registry.op_names():
                    entry = registry.lookup(raw_op)
                    if entry is None:
                        continue
                    namespace, _, name = raw_op.partition("::")
                    if namespace not in libraries:
                        libraries[namespace] = torch.library.Library(namespace, "IMPL")
                        self._libraries.append(libraries[namespace])
                    for key, kernel in _kernels(raw_op):
                        replacement = observed(raw_op, entry, kernel, observe)
                        libraries[namespace].impl(name, replacement, key, allow_override=True)
            self._local_tensor.install(observe)
        except BaseException:
            self.uninstall()
            raise

    def uninstall(self) -> None:
        self._local_tensor.uninstall()
        while self._libraries:
            self._libraries.pop()._destroy()


def _kernels(raw_op: str) -> list[tuple[str, Kernel]]:
    """Pairs of dispatch key and original kernel, for every device that has one."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(raw_op, "CompositeExplicitAutograd")
    found: list[tuple[str, Kernel]] = []
    for key in _DEVICE_KEYS:
        own = torch._C._dispatch_has_kernel_for_dispatch_key(raw_op, key)
        if own or (composite and key in ("CPU", "CUDA", "PrivateUse1")):
            found.append((key, _boxed(raw_op, key)))
    if torch._C._dispatch_has_kernel_for_dispatch_key(raw_op, "Meta"):
        # Under a fake mode, a boxed kernel that is a Python function finds its own replacement: call the function.
        function = _python_meta(raw_op)
        if function is not None:
            found.append(("Meta", function))
        elif not _is_python_meta(raw_op):
            found.append(("Meta", _boxed(raw_op, "Meta")))
    return found


def _boxed(raw_op: str, key: str) -> Kernel:
    kernel = torch.library.get_kernel(raw_op, key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    call = kernel.call_boxed

    def original(*args: Any, **kwargs: Any) -> Any:
        return call(keys, *args, **kwargs)

    return original


def _python_meta(raw_op: str) -> Kernel | None:
    """The Python function that torch registers as an op's Meta kernel."""
    namespace, _, name = raw_op.partition("::")
    if namespace == "c10d":
        from torch.distributed import _meta_registrations

        return _meta_registrations._META_FUNCTIONS.get(name)
    if namespace == "symm_mem":
        home: Any = torch.distributed._symmetric_memory
        names = (f"_{name}_fallback", f"_{name}_meta", f"{name}_meta")
        return next((getattr(home, function) for function in names if hasattr(home, function)), None)
    functional = torch.distributed._functional_collectives
    candidates = [(functional, f"_{name}_native_meta"), (functional, f"_{name}_meta")]
    if namespace == "_dtensor":
        candidates.insert(0, (torch.distributed.tensor._collective_utils, f"_{name}_meta"))
    for home, attribute in candidates:
        function = getattr(home, attribute, None)
        if function is not None:
            return function  # type: ignore[no-any-return]
    return None


def _is_python_meta(raw_op: str) -> bool:
    """Whether an op's Meta kernel is a Python function, of whatever name."""
    lines = torch._C._dispatch_dump(raw_op).splitlines()
    return any(line.startswith("Meta:") and ".py:" in line for line in lines)


class LocalTensorSubstrate:
    """torch's ``LocalTensorMode`` computes collectives itself, for all ranks at once: observes its functions."""

    def __init__(self) -> None:
        self._originals: dict[str, Kernel] = {}

    def install(self, observe: Observer) -> None:
        try:
            from torch.distributed._local_tensor import _c10d
        except ImportError:
            return
        for raw_op, entry in registry.COMMUNICATION.items():
            for name in _local_names(raw_op):
                function = getattr(_c10d, name, None)
                if function is not None and name not in self._originals:
                    self._originals[name] = function
                    setattr(_c10d, name, observed(raw_op, entry, function, observe))

    def uninstall(self) -> None:
        if self._originals:
            from torch.distributed._local_tensor import _c10d

            for name, function in self._originals.items():
                setattr(_c10d, name, function)
            self._originals.clear()


_LOCAL_NAMES = {
    "allreduce_": "_local_all_reduce_",
    "allgather_": "_local_all_gather_",
    "_allgather_base_": "_local_allgather_base_",
    "_reduce_scatter_base_": "_local_reduce_scatter_base_",
}


def _local_names(raw_op: str) -> tuple[str, ...]:
    namespace, _, name = raw_op.partition("::")
    if namespace == "c10d":
        return (_LOCAL_NAMES.get(name, f"_local_{name}"),)
    return (f"_local_functional_{name}",)


class ModeSubstrate:
    """A dispatch mode: for a torch without ``torch.library.get_kernel``."""

    def __init__(self) -> None:
        self._mode: TorchDispatchMode | None = None

    def install(self, observe: Observer) -> None:
        self._mode = _ObservingMode(observe)
        self._mode.__enter__()  # type: ignore[no-untyped-call] # torch leaves it untyped

    def uninstall(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None


class _ObservingMode(TorchDispatchMode):
    def __init__(self, observe: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._observe = observe

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in registry.NAMESPACES:
            raw_op = f"{func.namespace}::{func._schema.name.partition('::')[2]}"
            entry = registry.lookup(raw_op)
            if entry is not None:
                return observed(raw_op, entry, func, self._observe)(*args, **kwargs)
        return func(*args, **kwargs)


def best_available() -> Substrate:
    """The substrate for this torch."""
    return KernelSubstrate() if hasattr(torch.library, "get_kernel") else ModeSubstrate()
