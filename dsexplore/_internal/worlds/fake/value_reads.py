"""Patches of methods that read fake tensors without an op: text, lists, arrays, elements of storages, addresses."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.storage import TypedStorage, UntypedStorage

from dsexplore._internal.torch_internals.dtensor import local_tensor
from dsexplore._internal.torch_internals.fake_tensors import (
    FAKE_ARRAY,
    FAKE_DATA_PTR,
    FAKE_FORMAT,
    FAKE_NUMPY,
    FakeTensor,
)
from dsexplore._internal.torch_internals.fsdp import SAME_STORAGE
from dsexplore._internal.torch_internals.modules import CTC_LOSS
from dsexplore._internal.torch_internals.patches import Change, Entry, Parts, Patch, Patches
from dsexplore._internal.torch_internals.tensors import (
    TENSOR_TOLIST,
    TYPED_ELEMENT,
    UNTYPED_ELEMENT,
    count_elements,
    storage_number,
)
from dsexplore._internal.worlds.fake.invented_values import Inventor


def _format(original: Callable[..., str], _parts: Parts) -> Callable[..., str]:
    """Wrap ``FakeTensor.__format__`` to format the value of a scalar where a format is given."""

    def formatted(self: FakeTensor, format_spec: str) -> str:
        if self.dim() == 0 and format_spec:
            return format(self.item(), format_spec)
        return original(self, format_spec)

    return formatted


def _numpy(_original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Replace ``FakeTensor.numpy`` by a method that returns known or invented values."""

    def numpy(self: FakeTensor, *, force: bool = False) -> Any:
        return parts[Inventor].array(self)

    return numpy


def _array(_original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Replace ``FakeTensor.__array__`` by a method that returns known or invented values."""

    def array(self: FakeTensor, dtype: Any = None) -> Any:
        values = parts[Inventor].array(self)
        return values if dtype is None else values.astype(dtype, copy=False)

    return array


def _tolist(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``Tensor.tolist`` to return known or invented values for a fake tensor."""

    def tolist(self: torch.Tensor) -> Any:
        return parts[Inventor].values(self) if isinstance(self, FakeTensor) else original(self)

    return tolist


def _inherit_tolist(patches: Patches, _parts: Parts) -> None:
    """Remove ``FakeTensor.tolist``, so that `_tolist` is called."""
    patches.inherited(FakeTensor, "tolist")


def _element(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    """Wrap ``tensor.storage()[0]`` to invent a value, for which only the dtype is known."""

    def element(storage: TypedStorage | UntypedStorage, /, *args: Any, **kwargs: Any) -> Any:
        index = args[0] if args else kwargs.get("idx")
        if storage.device.type != "meta" or type(index) is not int:
            return original(storage, *args, **kwargs)
        if isinstance(storage, TypedStorage):
            size, dtype = count_elements(storage), storage.dtype
        else:
            size, dtype = storage.nbytes(), torch.uint8
        if not -size <= index < size:
            raise IndexError(f"index {index} out of range for storage of size {size}")
        return parts[Inventor].value(torch.empty((), dtype=dtype))

    return element


def _address(_original: Callable[..., int], _parts: Parts) -> Callable[..., int]:
    """Replace ``data_ptr`` by a number that is unique to each memory, and 0 for an empty one.

    torch returns 0 for all fake tensors. Programs that tell parameters apart by their address, as accelerate does for
    an optimizer's, would take all of them for the same one.
    """

    def data_ptr(tensor: FakeTensor) -> int:
        storage = tensor.untyped_storage()
        offset: Any = tensor.storage_offset() * tensor.element_size()
        return storage_number(storage) + offset if storage.nbytes() else 0

    return data_ptr


def _same_storage(_original: Callable[..., bool], _parts: Parts) -> Callable[..., bool]:
    """Replace FSDP2's check of whether two tensors share memory by one that reads no addresses."""

    def same_storage(a: torch.Tensor, b: torch.Tensor) -> bool:
        first, second = (local_tensor(x) if isinstance(x, DTensor) else x for x in (a, b))
        return storage_number(first.untyped_storage()) == storage_number(second.untyped_storage())

    return same_storage


def _ctc_loss(original: Callable[..., torch.Tensor], _parts: Parts) -> Callable[..., torch.Tensor]:
    """Wrap ``ctc_loss`` to convert lengths in tuples to tensors here, since C++ would write them to memory."""
    parameters = signature(original)

    def ctc_loss(*args: Any, **kwargs: Any) -> torch.Tensor:
        arguments = parameters.bind(*args, **kwargs).arguments
        for name in ("input_lengths", "target_lengths"):
            arguments[name] = torch.as_tensor(arguments[name], dtype=torch.int64)
        return original(**arguments)

    return ctc_loss


PATCHES: tuple[Entry, ...] = (
    Patch(FAKE_FORMAT, "it writes no number", _format, when="fake"),
    Patch(FAKE_ARRAY, "it reads memory", _array, when="fake"),
    Patch(FAKE_NUMPY, "it reads memory", _numpy, when="fake"),
    Patch(TENSOR_TOLIST, "it reads memory", _tolist, when="fake"),
    Change("FakeTensor.tolist", "it reads element by element: minutes for a data set", _inherit_tolist, when="fake"),
    Patch(FAKE_DATA_PTR, "it is 0 for all fake tensors", _address, when="fake"),
    Patch(TYPED_ELEMENT, "it reads memory", _element, when="fake"),
    Patch(UNTYPED_ELEMENT, "it reads memory", _element, when="fake"),
    Patch(CTC_LOSS, "lengths in tuples are written to memory", _ctc_loss, when="fake", by_code=True),
    Patch(
        SAME_STORAGE,
        "it reads addresses of storages, which torch warns about",
        _same_storage,
        when="fake",
        by_code=True,
        on_import=True,
    ),
)
