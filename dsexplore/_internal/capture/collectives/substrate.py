"""Observes collectives in torch's dispatcher: below everything that can issue one, above the kernels that run it.

Requirements, on success, exception and Ctrl-C:

1. each collective is seen once, whoever issues it: Python, DDP's C++ reducer, FSDP, DTensor, compiled code,
   any thread, on real, meta and fake tensors;
2. ops that do not communicate are not slowed down;
3. ops on the fake tensors with which torch.compile traces a program are not traffic;
4. `uninstall` restores the dispatcher.

While it is installed, `KernelSubstrate` has a kernel in front of the kernels of each communication op.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import torch

from dsexplore._internal.capture.collectives import ops
from dsexplore._internal.capture.collectives.group_methods import GroupMethods
from dsexplore._internal.capture.collectives.mode_collectives import ModeCollectives
from dsexplore._internal.capture.collectives.observed_op import Kernel, Observer, observed
from dsexplore._internal.capture.collectives.ops import Communication
from dsexplore._internal.torch_internals.dispatch import (
    AFTER_BACKEND_SELECT,
    BACKEND_SELECT,
    CPU,
    META,
    find_op,
    redispatch_of,
    remove_kernels,
)
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor, registered_fake_impl
from dsexplore._internal.torch_internals.names import is_there, needed
from dsexplore._internal.torch_internals.patches import Patches
from dsexplore._internal.torch_internals.process_groups import LOCAL_TENSOR_COLLECTIVES, register_ops

register_ops()


class Substrate(Protocol):
    """A source of communication events."""

    def install(self, observer: Observer) -> None:
        """Begin to report every collective to the observer."""

    def uninstall(self) -> None:
        """Remove everything that was installed."""


class KernelSubstrate:
    """Registers a kernel in front of the kernels of each communication op.

    Its dispatch key is ``BackendSelect``, which every call passes, in every thread and mode, right before the kernel of
    a device is selected. torch uses this key for factory functions, and not for communication. The call then continues
    to the kernel that it would have reached otherwise.
    """

    def __init__(self) -> None:
        self._libraries: dict[str, torch.library.Library] = {}
        self._local_tensor = LocalTensorSubstrate()
        self._fake_tensor = FakeTensorSubstrate()
        self._methods = GroupMethods()
        self._modes = ModeCollectives()

    def install(self, observer: Observer) -> None:
        for name in (BACKEND_SELECT, AFTER_BACKEND_SELECT, CPU, META):
            needed(name, "a trace")
        try:
            for raw_op, overload in ops.overloads():
                entry = ops.lookup(raw_op)
                if entry is not None:
                    self._put(raw_op, overload, entry, observer)
            self._local_tensor.install(observer)
            self._fake_tensor.install(observer)
            self._methods.install(observer)
            self._modes.install(observer)
        except BaseException:
            self.uninstall()
            raise

    def _put(self, raw_op: str, overload: str, entry: Communication, observer: Observer) -> None:
        """Register the kernel of one op; ``overload`` is empty for the default one."""
        namespace, _, name = raw_op.partition("::")
        library = self._libraries.get(namespace)
        if library is None:
            library = self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
        op = getattr(find_op(raw_op), overload or "default")
        recorded = observed(raw_op, entry, redispatch_of(op), observer, calls_twin=namespace != "c10d")
        library.impl(f"{name}.{overload}" if overload else name, recorded, BACKEND_SELECT.name, with_keyset=True)

    def uninstall(self) -> None:
        self._modes.uninstall()
        self._methods.uninstall()
        self._local_tensor.uninstall()
        self._fake_tensor.uninstall()
        while self._libraries:
            remove_kernels(self._libraries.popitem()[1])


class LocalTensorSubstrate:
    """Observes the functions by which torch's ``LocalTensorMode`` computes a collective for all ranks at once."""

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, observer: Observer) -> None:
        functions = LOCAL_TENSOR_COLLECTIVES.get()
        for raw_op, entry in ops.COMMUNICATION_OPS.items() if is_there(functions) else ():
            name = _local_name(raw_op)
            function = getattr(functions, name, None)
            if function is not None:
                recorded = observed(raw_op, entry, _drop_keys(function), observer)
                self._patches.attribute(functions, name, partial(recorded, None))

    def uninstall(self) -> None:
        self._patches.undo()


class FakeTensorSubstrate:
    """Observes the ops that have a fake implementation (``torch.library.register_fake``).

    `FakeTensorMode` calls it instead of a kernel, so it is replaced while this is installed. On meta tensors a kernel
    calls it, and `KernelSubstrate` has observed that kernel.
    """

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, observer: Observer) -> None:
        for raw_op, entry in ops.COMMUNICATION_OPS.items():
            holder = registered_fake_impl(raw_op)
            if holder is not None:
                wrapped = type(holder.kernel)(_wrap_fake_impl(raw_op, entry, holder.kernel, observer), __name__)
                self._patches.callback(holder.kernels.remove, wrapped)
                holder.kernels.append(wrapped)

    def uninstall(self) -> None:
        self._patches.undo()


def _wrap_fake_impl(raw_op: str, entry: Communication, fake_impl: Kernel, observer: Observer) -> Kernel:
    """Wrap the fake implementation of an op to observe the op if its tensors are fake."""
    recorded = observed(raw_op, entry, _drop_keys(fake_impl), observer)

    def on_fake_tensors(*args: Any) -> Any:
        is_fake = any(isinstance(arg, FakeTensor) for arg in args)
        return recorded(None, *args) if is_fake else fake_impl(*args)

    return on_fake_tensors


def _drop_keys(function: Kernel) -> Kernel:
    """Wrap a function as a kernel, which gets dispatch keys as its first argument and ignores them."""
    return lambda _keys, *args, **kwargs: function(*args, **kwargs)


_LOCAL_NAMES = {
    "allreduce_": "_local_all_reduce_",
    "allgather_": "_local_all_gather_",
    "_allgather_base_": "_local_allgather_base_",
    "_reduce_scatter_base_": "_local_reduce_scatter_base_",
}
"""{c10d op: name of its function in ``LocalTensorMode``}, for those that do not follow the rule in `_local_name`."""


def _local_name(raw_op: str) -> str:
    """Return the name of the function in ``LocalTensorMode`` that computes an op."""
    namespace, _, name = raw_op.partition("::")
    if namespace == "c10d":
        return _LOCAL_NAMES.get(name, f"_local_{name}")
    return f"_local_functional_{name}"
