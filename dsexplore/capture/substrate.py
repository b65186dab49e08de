"""Where the recorder sees collectives: below everything that can issue one, above what carries it out.

What must hold, on success, exception and Ctrl-C:

1. each collective is seen once, whoever issues it: Python, DDP's C++ reducer, FSDP, DTensor, compiled code,
   any thread, on real, meta and fake tensors;
2. ops that do not communicate cost nothing;
3. while torch.compile traces a program, the ops on its fake tensors are not traffic;
4. after `uninstall` the dispatcher is as it was.

`KernelSubstrate` puts a kernel of its own in front of each communication op's, for as long as it is installed.
`ModeSubstrate` serves a torch whose dispatcher cannot do that from Python: a dispatch mode, with its price for every
op, its thread, and no sight of C++ callers. Another source of events needs the same two methods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any, Protocol

import torch
import torch.distributed._functional_collectives  # registers its ops
import torch.distributed._symmetric_memory  # registers its ops
import torch.distributed.tensor  # registers its ops
from torch._guards import TracingContext
from torch.compiler import is_compiling
from torch.utils._python_dispatch import TorchDispatchMode

from dsexplore.capture import ops
from dsexplore.capture.ops import Communication
from dsexplore.capture.uncompiled import leave_to_python


class Pending(Protocol):
    """A collective between its beginning and its return."""

    @property
    def needs_work(self) -> bool:
        """Whether it is timed by the ``Work`` that the backend returns."""


class Observer(Protocol):
    """Who is told of collectives; of one that fails, only the beginning."""

    def begins(self, raw_op: str, entry: Communication, args: tuple[Any, ...]) -> Any:
        """That op is about to run, with those arguments: returns a `Pending`, or None for one not to be followed."""

    def returned(self, pending: Any, result: Any) -> None:
        """It returned that: its own result, or where it called a collective inside, that one's."""


Kernel = Callable[..., Any]


class Substrate(Protocol):
    """A source of communication events."""

    def install(self, observer: Observer) -> None:
        """Begin to tell the observer of every collective."""

    def uninstall(self) -> None:
        """Leave no trace."""


_FRONT = torch._C.DispatchKey.BackendSelect
_BEHIND = torch._C._dispatch_keyset_full_after(_FRONT)
_CPU = torch._C.DispatchKey.CPU
_META = torch._C.DispatchKey.Meta
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_include = torch._C._dispatch_tls_set_dispatch_key_included
_is_included = torch._C._dispatch_tls_is_dispatch_key_included


class _Nesting(threading.local):
    """A functional collective calls its c10d twin: the outer one is the event."""

    outer: list[Any] | None = None


nesting = _Nesting()


def observed(raw_op: str, entry: Communication, kernel: Kernel, observer: Observer) -> Kernel:
    """A kernel that tells the observer, then does what the original does.

    Args:
        raw_op: the op.
        entry: how to read it.
        kernel: the original; its first argument, and that of the result, are the dispatcher's keys.
        observer: the observer.
    """
    carry_out = _telling(kernel, observer)
    begins = observer.begins

    def recorded(keys: Any, *args: Any, **kwargs: Any) -> Any:
        inner = nesting.outer
        if inner is not None:
            result = kernel(keys, *args, **kwargs)
            inner.append(result)
            return result
        if is_compiling() or ((keys is None or keys.has(_META)) and TracingContext.try_get() is not None):
            return kernel(keys, *args, **kwargs)
        return carry_out(begins(raw_op, entry, args), keys, args, kwargs)

    leave_to_python(recorded.__code__)
    return recorded


def _telling(kernel: Kernel, observer: Observer) -> Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]:
    """Calls the kernel, and tells the observer what it or a collective inside it returned."""
    returned = observer.returned

    def carry_out(pending: Pending | None, keys: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inner: list[Any] = []
        nesting.outer = inner
        try:
            result = kernel(keys, *args, **kwargs)
        finally:
            nesting.outer = None
        if pending is not None:
            returned(pending, inner[-1] if inner else result)
        return result

    return carry_out


def without_keys(function: Kernel) -> Kernel:
    """A function in the place of a kernel that `observed` calls."""
    return lambda _keys, *args, **kwargs: function(*args, **kwargs)


class KernelSubstrate:
    """Puts a kernel in front of each op's own.

    The dispatcher passes the key ``BackendSelect`` on every call, in every thread and mode, right before it chooses
    the kernel of a device; torch uses it for functions that make tensors, and has nothing there for communication.
    From there a call goes on to whatever kernel it would have reached. A functional op on the CPU goes on without that
    key, so that the c10d op inside it passes our kernel by; what makes tensors in there is told the device instead.
    """

    def __init__(self) -> None:
        self._libraries: dict[str, torch.library.Library] = {}
        self._local_tensor = LocalTensorSubstrate()

    def install(self, observer: Observer) -> None:
        try:
            for raw_op, overload in ops.overloads():
                entry = ops.lookup(raw_op)
                if entry is not None:
                    self._put(raw_op, overload, entry, observer)
            self._local_tensor.install(observer)
        except BaseException:
            self.uninstall()
            raise

    def _put(self, raw_op: str, overload: str, entry: Communication, observer: Observer) -> None:
        namespace, _, name = raw_op.partition("::")
        library = self._libraries.get(namespace)
        if library is None:
            library = self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        recorded = _in_front(raw_op, entry, op._handle.redispatch_boxed, observer)
        library.impl(f"{name}.{overload}" if overload else name, recorded, _FRONT.name, with_keyset=True)

    def uninstall(self) -> None:
        self._local_tensor.uninstall()
        while self._libraries:
            self._libraries.popitem()[1]._destroy()


def _in_front(raw_op: str, entry: Communication, onward: Kernel, observer: Observer) -> Kernel:
    """What `KernelSubstrate` puts in front of an op.

    Most of what is traced are functional ops on the CPU, and in a simulation any ops on fake tensors: these are told of
    and carried out in one function, as each further one costs about a microsecond. Whatever else there is goes the way
    of `observed`.

    Args:
        raw_op: the op.
        entry: how to read it.
        onward: calls the op's kernel for the keys given to it.
        observer: the observer.
    """

    def original(keys: Any, *args: Any, **kwargs: Any) -> Any:
        return onward(keys & _BEHIND, *args, **kwargs)

    anywhere = observed(raw_op, entry, original, observer)
    carry_out = _telling(original, observer)
    begins, returned = observer.begins, observer.returned
    namespace = raw_op.partition("::")[0]
    is_functional = namespace != "c10d"
    only_tells_shapes = namespace != "symm_mem"  # without data; a fused op of symmetric memory calls its parts

    def recorded(keys: Any, *args: Any, **kwargs: Any) -> Any:
        if nesting.outer is not None or is_compiling():
            return anywhere(keys, *args, **kwargs)
        if keys.has(_META):
            if not only_tells_shapes or TracingContext.try_get() is not None:
                return anywhere(keys, *args, **kwargs)
            calls_twin = False
        elif is_functional and keys.has(_CPU):
            calls_twin = True
        else:
            return anywhere(keys, *args, **kwargs)
        pending = begins(raw_op, entry, args)
        if pending is None or pending.needs_work:
            return carry_out(pending, keys, args, kwargs)
        if not calls_twin:
            result = onward(keys & _BEHIND, *args, **kwargs)
            returned(pending, result)
            return result
        included = _is_included(_CPU)  # what two of torch's guards would do, without making them
        try:  # from the first of them on: Ctrl-C may come after any call
            _include(_CPU, True)
            _exclude(_FRONT, True)
            result = onward(keys & _BEHIND, *args, **kwargs)
        finally:
            try:
                _exclude(_FRONT, False)
            finally:
                _include(_CPU, included)
        returned(pending, result)
        return result

    leave_to_python(recorded.__code__)
    return recorded


class LocalTensorSubstrate:
    """torch's ``LocalTensorMode`` computes collectives itself, for all ranks at once: observes its functions."""

    def __init__(self) -> None:
        self._originals: dict[str, Kernel] = {}

    def install(self, observer: Observer) -> None:
        try:
            from torch.distributed._local_tensor import _c10d
        except ImportError:
            return
        for raw_op, entry in ops.COMMUNICATION.items():
            for name in _local_names(raw_op):
                function = getattr(_c10d, name, None)
                if function is not None and name not in self._originals:
                    self._originals[name] = function
                    recorded = observed(raw_op, entry, without_keys(function), observer)
                    setattr(_c10d, name, partial(recorded, None))

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
    """A dispatch mode: for a torch whose kernels cannot be told the dispatcher's keys."""

    def __init__(self) -> None:
        self._mode: TorchDispatchMode | None = None

    def install(self, observer: Observer) -> None:
        self._mode = _ObservingMode(observer)
        self._mode.__enter__()  # type: ignore[no-untyped-call] # torch leaves it untyped

    def uninstall(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None


class _ObservingMode(TorchDispatchMode):
    def __init__(self, observer: Observer) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch leaves it untyped
        self._observer = observer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace in ops.NAMESPACES:
            raw_op = f"{func.namespace}::{func._schema.name.partition('::')[2]}"
            entry = ops.lookup(raw_op)
            if entry is not None:
                return observed(raw_op, entry, without_keys(func), self._observer)(None, *args, **kwargs)
        return func(*args, **kwargs)


def best_available() -> Substrate:
    """The substrate for this torch."""
    can_go_on = "with_keyset" in signature(torch.library.Library.impl).parameters
    return KernelSubstrate() if can_go_on else ModeSubstrate()
