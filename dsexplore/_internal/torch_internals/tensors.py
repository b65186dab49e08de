"""Tensors, parameters and storages: their identity, their classes, and the methods by which they are made and read."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

from dsexplore._internal.torch_internals.names import TorchName, internal

no_torch_function: Callable[[], Any] = internal("torch:DisableTorchFunction")
"""Return a context in which torch calls neither ``__torch_function__`` of tensors nor function modes."""

can_take_data: Callable[[torch.Tensor, torch.Tensor], bool] = internal(
    "torch:_has_compatible_shallow_copy_type", otherwise=lambda tensor, data: type(tensor) is type(data)
)
"""Return True if ``tensor.data = data`` is possible, because both are of one kind."""

storage_number: Callable[[Any], int] = attrgetter("_cdata")
"""Return a number that identifies an untyped storage while it exists; a fake one has no address that could."""

allowed_when_uninitialized: frozenset[Any] = frozenset(
    internal("torch.nn.parameter:UninitializedTensorMixin._allowed_methods", otherwise=())
)
"""Functions of torch that accept a parameter without a shape."""


def parts_of_sparse(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of indices and values of a sparse tensor; empty if it is not sparse."""
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def count_elements(storage: torch.TypedStorage) -> int:
    """Return the number of elements of a typed storage, without torch's warning that such storages are deprecated."""
    count: int = storage._size()
    return count


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version, its number of in-place writes; -1 for a tensor of inference mode, which has none."""
    return -1 if tensor.is_inference() else tensor._version


def mark_as_parameter(tensor: torch.Tensor) -> None:
    """Make ``isinstance(tensor, nn.Parameter)`` true, as it is for parameters that are tensor subclasses."""
    vars(tensor)["_is_param"] = True


MAKE_SUBCLASS = TorchName("torch:Tensor._make_subclass")
NEW_PARAMETER = TorchName("torch.nn.parameter:Parameter.__new__")
DATA_LOADER_INIT = TorchName("torch.utils.data:DataLoader.__init__")
NESTED_TENSORS = tuple(
    TorchName(f"torch.nested:{name}")
    for name in ("nested_tensor", "as_nested_tensor", "nested_tensor_from_jagged", "masked_select")
)
TENSOR_TOLIST = TorchName("torch:Tensor.tolist")
TENSOR_OF_DATA = tuple(TorchName(f"torch:{name}") for name in ("tensor", "as_tensor", "asarray"))
"""Functions that make a tensor from Python's values."""

MOVE = TorchName("torch:Tensor.to")
MOVE_TO_CUDA = TorchName("torch:Tensor.cuda")

TYPED_ELEMENT = TorchName("torch.storage:TypedStorage._getitem")
UNTYPED_ELEMENT = TorchName("torch.storage:UntypedStorage.__getitem__")
"""Methods that read an element of a storage."""

RESIZE_STORAGE = TorchName("torch:UntypedStorage.resize_")

MAKE_WRAPPER = TorchName("torch:Tensor._make_wrapper_subclass")
RECORD_STREAM = TorchName("torch:Tensor.record_stream")

GROUP_BY_DEVICE = TorchName("torch.utils._foreach_utils:_group_tensors_by_device_and_dtype")
"""Function by which gradient clipping and other users of foreach ops group tensors."""

TENSOR_READS = tuple(
    TorchName(f"torch:Tensor.{name}") for name in ("item", "tolist", "__bool__", "__int__", "__float__", "__index__")
)
"""Methods that read the values of a tensor into Python."""

TENSOR_COMPARISONS = tuple(
    TorchName(f"torch:Tensor.{name}") for name in ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
)

no_subclass_function: Callable[[], Any] = internal("torch:DisableTorchFunctionSubclass")
"""Return a context in which torch does not call ``__torch_function__`` of tensors."""
