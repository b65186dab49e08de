"""Where the recorder sees collectives: below everything that can issue one, above what carries it out.

What must hold, on success, exception and Ctrl-C:

1. each collective is seen once, whoever issues it: Python, DDP's C++ reducer, FSDP, DTensor, compiled code,
   any thread, on real, meta and fake tensors;
2. ops that do not communicate cost nothing;
3. while torch.compile traces a program, the ops on its fake tensors are not traffic;
4. after `uninstall` the dispatcher is as it was.

`KernelSubstrate` puts a kernel of its own in front of the kernels of each communication op, for as long as it is
installed. Another source of events needs the same two methods, `Substrate`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed._functional_collectives  # registers its ops
import torch.distributed._symmetric_memory  # registers its ops
import torch.distributed.tensor  # registers its ops
from torch._guards import TracingContext
from torch._library.simple_registry import singleton as registered_fakes
from torch._subclasses.fake_tensor import FakeTensor
from torch.compiler import is_compiling

from dsexplore.capture import ops
from dsexplore.capture.ops import Communication
from dsexplore.capture.uncompiled import leave_to_python


class Pending(Protocol):
    """A collective between its issue and its return."""

    @property
    def needs_work(self) -> bool:
        """Whether it is timed by the ``Work`` that its backend returns."""


class Observer(Protocol):
    """Receives every collective: when it is about to be issued, and again once it has returned."""

    def begins(self, raw_op: str, entry: Communication, args: tuple[Any, ...]) -> Pending | None:
        """An op is about to run with these arguments; returns None for one that is not to be followed."""

    def returned(self, pending: Any, result: Any, tensors: Any = None) -> None:
        """The op has returned; not called for one that raised.

        Args:
            pending: what `begins` returned.
            result: the op's result; where it called a collective inside, the result of that one.
            tensors: what the op itself returned where it called one inside: the program waits for these.
        """


Kernel = Callable[..., Any]


class Substrate(Protocol):
    """A source of communication events."""

    def install(self, observer: Observer) -> None:
        """Begin to report every collective to the observer."""

    def uninstall(self) -> None:
        """Remove everything that was installed."""


FRONT = torch._C.DispatchKey.BackendSelect
BEHIND = torch._C._dispatch_keyset_full_after(FRONT)
_CPU = torch._C.DispatchKey.CPU
_META = torch._C.DispatchKey.Meta
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_include = torch._C._dispatch_tls_set_dispatch_key_included
_is_included = torch._C._dispatch_tls_is_dispatch_key_included


class _Nesting(threading.local):
    """The observed collective that runs in this thread: what is issued inside of it is no event of its own."""

    results: list[Any] | None = None
    """The results of the collectives issued inside; None while no collective is observed."""


nesting = _Nesting()


def observed(
    raw_op: str,
    entry: Communication,
    kernel: Kernel,
    observer: Observer,
    redispatch: Kernel | None = None,
) -> Kernel:
    """A kernel that reports to the observer, and otherwise does what the original does.

    Args:
        raw_op: the op.
        entry: how to read it.
        kernel: the original; its first argument, and that of the result, are the dispatcher's keys.
        observer: the observer.
        redispatch: given for a functional op: calls its kernel for other keys. On CPU tensors the c10d twin inside it
            then passes our kernel by, and the result cannot be timed. A second Python kernel would cost 1.6 % of a
            training step of a small tensor-parallel Llama (`benchmarks/trace_overhead.py`, b).
    """
    begins, returned = observer.begins, observer.returned

    def recorded(keys: Any, *args: Any, **kwargs: Any) -> Any:
        outer = nesting.results
        if outer is not None:  # a functional collective calls its c10d twin: the outer one is the event
            result = kernel(keys, *args, **kwargs)
            outer.append(result)
            return result
        if is_compiling() or ((keys is None or keys.has(_META)) and TracingContext.try_get() is not None):
            return kernel(keys, *args, **kwargs)
        pending = begins(raw_op, entry, args)
        if redispatch is not None and pending is not None and not pending.needs_work and keys.has(_CPU):
            result = pass_kernels_by(redispatch, keys & BEHIND, *args, **kwargs)
            returned(pending, result)
            return result
        inner: list[Any] = []
        nesting.results = inner
        try:
            result = kernel(keys, *args, **kwargs)
        finally:
            nesting.results = None
        if pending is not None:
            if inner:
                returned(pending, inner[-1], result)
            else:
                returned(pending, result)
        return result

    leave_to_python(recorded.__code__)
    return recorded


class KernelSubstrate:
    """Puts a kernel in front of each op's own.

    The dispatcher passes the key ``BackendSelect`` on every call, in every thread and mode, right before it chooses
    the kernel of a device; torch uses it for functions that make tensors, and has nothing there for communication.
    From there a call goes on to whatever kernel it would have reached.
    """

    def __init__(self) -> None:
        self._libraries: dict[str, torch.library.Library] = {}
        self._local_tensor = LocalTensorSubstrate()
        self._fake_tensor = FakeTensorSubstrate()

    def install(self, observer: Observer) -> None:
        try:
            for raw_op, overload in ops.overloads():
                entry = ops.lookup(raw_op)
                if entry is not None:
                    self._put(raw_op, overload, entry, observer)
            self._local_tensor.install(observer)
            self._fake_tensor.install(observer)
        except BaseException:
            self.uninstall()
            raise

    def _put(self, raw_op: str, overload: str, entry: Communication, observer: Observer) -> None:
        namespace, _, name = raw_op.partition("::")
        library = self._libraries.get(namespace)
        if library is None:
            library = self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
        op = getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        redispatch = op._handle.redispatch_boxed

        def original(keys: Any, *args: Any, **kwargs: Any) -> Any:
            return redispatch(keys & BEHIND, *args, **kwargs)

        recorded = observed(raw_op, entry, original, observer, None if namespace == "c10d" else redispatch)
        library.impl(f"{name}.{overload}" if overload else name, recorded, FRONT.name, with_keyset=True)

    def uninstall(self) -> None:
        self._local_tensor.uninstall()
        self._fake_tensor.uninstall()
        while self._libraries:
            self._libraries.popitem()[1]._destroy()


def pass_kernels_by(function: Kernel, *args: Any, **kwargs: Any) -> Any:
    """Call a function of tensors on the CPU whose collectives are recorded already, past the kernels put in front.

    What makes tensors inside it needs the key of those kernels to find its device, so the CPU is included instead.
    """
    included = _is_included(_CPU)  # what two of torch's guards would do, without making them
    try:  # from the first of them on: Ctrl-C may come after any call
        _include(_CPU, True)
        _exclude(FRONT, True)
        return function(*args, **kwargs)
    finally:
        try:
            _exclude(FRONT, False)
        finally:
            _include(_CPU, included)


class LocalTensorSubstrate:
    """Observes the functions of torch's ``LocalTensorMode``, which computes collectives for all ranks at once."""

    def __init__(self) -> None:
        self._originals: dict[str, Kernel] = {}

    def install(self, observer: Observer) -> None:
        try:
            from torch.distributed._local_tensor import _c10d
        except ImportError:
            return
        for raw_op, entry in ops.COMMUNICATION.items():
            name = _local_name(raw_op)
            function = getattr(_c10d, name, None)
            if function is not None and name not in self._originals:
                self._originals[name] = function
                recorded = observed(raw_op, entry, _without_keys(function), observer)
                setattr(_c10d, name, partial(recorded, None))

    def uninstall(self) -> None:
        if self._originals:
            from torch.distributed._local_tensor import _c10d

            for name, function in self._originals.items():
                setattr(_c10d, name, function)
            self._originals.clear()


class FakeTensorSubstrate:
    """Observes the ops whose result on fake tensors ``torch.library.register_fake`` describes.

    `FakeTensorMode` calls that description itself, and no kernel. A newer description stands before it while this is
    installed. On meta tensors the description is called by a kernel, whose call `KernelSubstrate` has seen.
    """

    def __init__(self) -> None:
        self._added: list[tuple[list[Any], Any]] = []

    def install(self, observer: Observer) -> None:
        for raw_op, entry in ops.COMMUNICATION.items():
            known = registered_fakes._data.get(raw_op)
            holder = known.fake_impl if known is not None else None
            if holder is not None and holder.kernel is not None:
                described = type(holder.kernel)(_of_fake_tensors(raw_op, entry, holder.kernel, observer), __name__)
                self._added.append((holder.kernels, described))
                holder.kernels.append(described)

    def uninstall(self) -> None:
        while self._added:
            kernels, described = self._added.pop()
            kernels.remove(described)


def _of_fake_tensors(raw_op: str, entry: Communication, description: Kernel, observer: Observer) -> Kernel:
    """A description of an op that observes it where its tensors are fake."""
    recorded = observed(raw_op, entry, _without_keys(description), observer)

    def on_fake_tensors(*args: Any) -> Any:
        is_fake = any(isinstance(arg, FakeTensor) for arg in args)
        return recorded(None, *args) if is_fake else description(*args)

    return on_fake_tensors


def _without_keys(function: Kernel) -> Kernel:
    """A function in the place of a kernel that `observed` calls."""
    return lambda _keys, *args, **kwargs: function(*args, **kwargs)


_LOCAL_NAMES = {
    "allreduce_": "_local_all_reduce_",
    "allgather_": "_local_all_gather_",
    "_allgather_base_": "_local_allgather_base_",
    "_reduce_scatter_base_": "_local_reduce_scatter_base_",
}


def _local_name(raw_op: str) -> str:
    """The name of the function of ``LocalTensorMode`` that carries an op out."""
    namespace, _, name = raw_op.partition("::")
    if namespace == "c10d":
        return _LOCAL_NAMES.get(name, f"_local_{name}")
    return f"_local_functional_{name}"
