"""Fake tensors: their class and mode, the constants they carry, and the registered fake implementations of ops."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dsexplore._internal.torch_internals.names import TorchName, internal, is_there

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
else:
    FakeTensor = internal("torch._subclasses.fake_tensor:FakeTensor")
    FakeTensorMode = internal("torch._subclasses.fake_tensor:FakeTensorMode")

without_fake_mode: Callable[[], AbstractContextManager[Any]] = internal(
    "torch._subclasses.fake_tensor:unset_fake_temporarily"
)
"""Return a context in which no mode of fake tensors is active in this thread."""

active_fake_mode: Callable[[], FakeTensorMode | None] = internal(
    "torch._guards:active_fake_mode", otherwise=lambda: None
)
"""Return the mode of fake tensors that is active in this thread; None if none is."""

_exceptions = [
    internal(f"torch._subclasses.fake_tensor:{name}")
    for name in ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException")
]
VALUES_NEEDED: tuple[type[Exception], ...] = tuple(exception for exception in _exceptions if is_there(exception))
"""Exceptions for an op that needs the values of fake tensors; the op is their ``func``."""

has_symbolic_sizes: Callable[[Any], bool] = attrgetter("_has_symbolic_sizes_strides")
"""Return True if sizes of a fake tensor are symbols, as when the compiler traces a program."""

_registered = internal("torch._library.simple_registry:singleton")


def registered_fake_impl(op: str) -> Any:
    """Return the entry of ``torch.library.register_fake`` for an op; None if nothing was registered.

    Its ``kernel`` is the function that is called, and ``kernels`` are all that were registered, the newest last.
    """
    entry = _registered._data.get(op) if is_there(_registered) else None
    fake_impl = entry.fake_impl if entry is not None else None
    return fake_impl if fake_impl is not None and fake_impl.kernel is not None else None


def share_constant(tensor: Any, source: Any) -> None:
    """Give a fake tensor the constant of the tensor whose data it has taken; a write to either drops both constants."""
    tensor.constant = source.constant if isinstance(source, FakeTensor) else None
    if tensor.constant is not None:
        tensor.fake_mode.fake_tensor_converter.add_constant_storage_mapping(tensor)


FAKE_DATA = TorchName("torch._subclasses.fake_tensor:FakeTensor.data")
"""Attribute that takes the data of another tensor."""

FAKE_DEEPCOPY = TorchName("torch._subclasses.fake_tensor:FakeTensor.__deepcopy__")
FAKE_REDUCE = TorchName("torch._subclasses.fake_tensor:FakeTensor.__reduce_ex__")
"""Methods that copy and pickle a fake tensor."""

FAKE_FORMAT = TorchName("torch._subclasses.fake_tensor:FakeTensor.__format__")
FAKE_ARRAY = TorchName("torch._subclasses.fake_tensor:FakeTensor.__array__")
FAKE_NUMPY = TorchName("torch._subclasses.fake_tensor:FakeTensor.numpy")
FAKE_DATA_PTR = TorchName("torch._subclasses.fake_tensor:FakeTensor.data_ptr")
"""Methods that read values or the memory's address, which a fake tensor does not have."""

FAKE_DEVICE = TorchName("torch._subclasses.fake_tensor:FakeTensor.device")
"""Device of a fake tensor."""

FAKE_DISPATCH = TorchName("torch._subclasses.fake_tensor:FakeTensorMode.dispatch")
"""Method by which the mode runs an op."""
FAKE_FROM_REAL = TorchName("torch._subclasses.fake_tensor:FakeTensorMode.from_tensor")
"""Method that makes a fake tensor like a real one."""
TRACING_DISPATCH = TorchName("torch.fx.experimental.proxy_tensor:ProxyTorchDispatchMode.__torch_dispatch__")
"""Method by which the mode of `torch.export` traces an op."""
