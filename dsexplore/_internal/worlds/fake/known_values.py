"""Known values of fake tensors: all values, or a typical element.

They are stored with the storage, so views share them, and a write through one tensor changes the others. A storage has

* exact values, if the program gave them (``torch.tensor``, ``arange``, ``linspace``, ``randperm``), or if they are few
  and computed from such values: ``(arange(8).view(2, 4) == rank).nonzero()`` is the position of a rank;
* or a typical `Element`, such as the fill value of ``zeros`` or ``full``. Results of ``topk``, ``argmax`` or
  ``randint`` are assumed to be uniform, so comparing them with one of E experts is true for one element in E;
* or the mark that no op has written to it, as after ``torch.empty``.

`values_of` returns the first, `element_of` either of the first two as an `Element`; `typical` has a default for both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from dsexplore._internal.torch_internals.dispatch import no_torch_dispatch
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.torch_internals.tensors import no_torch_function

_CONTENT = "_dsexplore_content"
"""Attribute of a storage: a storage with its values, an `Element`, or `_UNWRITTEN`."""
_UNWRITTEN = object()
LARGEST_KNOWN = 1 << 24
"""Maximal number of elements of a tensor whose values are stored: enough for the order of a large data set."""
LARGEST_COMPUTED = 1 << 16
"""Maximal size of integer tensors whose values are computed: a grid of ranks, or the lengths of a batch."""
MOST_FLOATS = 1 << 10
"""Maximal size of floating-point tensors whose values are computed."""


class Element(NamedTuple):
    """A typical element of a fake tensor.

    Attributes:
        mean: mean over all elements; for booleans, the fraction that is true.
        choices: number of equally likely values, 0 to ``choices`` - 1; 0 if the distribution is not uniform.
    """

    mean: float
    choices: int = 0

    def weighted_values(self, is_bool: bool) -> list[tuple[float, float]]:
        """Return the values that an element may have, each with its weight; `is_bool` for a tensor of booleans."""
        if is_bool:
            return [(value, weight) for value, weight in ((1.0, self.mean), (0.0, 1 - self.mean)) if weight]
        if self.choices:
            return [(value, 1.0) for value in range(self.choices)]
        return [(self.mean, 1.0)]


@contextmanager
def on_real_tensors() -> Iterator[None]:
    """Run the block on real tensors, outside of all dispatch modes."""
    with no_torch_function(), no_torch_dispatch():
        yield


def is_known(tensor: torch.Tensor) -> bool:
    """Return True if the values or a typical element of a tensor are known."""
    content = _content(tensor)
    return content is not None and content is not _UNWRITTEN


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor as a real tensor, which is no copy; None if they are unknown."""
    content = _content(tensor)
    return _view(tensor, content) if isinstance(content, torch.UntypedStorage) else None


def element_of(value: Any) -> Element | None:
    """Return a typical element of a tensor or number, the mean if values are known; None if nothing is known."""
    if not isinstance(value, torch.Tensor):
        return Element(float(value) if isinstance(value, (int, float)) else 1.0)
    content = _content(value)
    if not isinstance(content, torch.UntypedStorage):
        return content if isinstance(content, Element) else None
    if not 0 < value.numel() <= LARGEST_KNOWN or value.is_complex():
        return None
    with on_real_tensors():
        return Element(float(_view(value, content).double().mean()))


def typical(value: Any) -> Element:
    """Return a typical element of a tensor or number; 1.0 if nothing is known."""
    return element_of(value) or Element(1.0)


def set_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Set the values of a fake tensor; the rest of its storage keeps its values, or becomes zero if unwritten."""
    storage = _storage(tensor)
    if storage is None:
        return
    content = _content(tensor)
    if not isinstance(content, torch.UntypedStorage):
        if content is not _UNWRITTEN and _share(tensor, storage) < 1:
            set_element(tensor, typical(values))
            return
        with on_real_tensors():
            content = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
        setattr(storage, _CONTENT, content)
    view = _view(tensor, content)
    with on_real_tensors(), torch.no_grad():
        view.copy_(values)


def share_values(tensor: torch.Tensor, real: torch.Tensor) -> None:
    """Make a fake tensor that is a view of a real one share its memory."""
    storage = _storage(tensor)
    if storage is not None:
        setattr(storage, _CONTENT, real.untyped_storage())


def set_element(tensor: torch.Tensor, element: Element) -> None:
    """Set the typical element of a fake tensor; for a part of a storage, update the storage's in proportion."""
    storage = _storage(tensor)
    if storage is None:
        return
    if tensor.dtype == torch.bool and not 0 <= element.mean <= 1:
        element = Element(1.0)
    share = _share(tensor, storage)
    if share < 1:
        content = getattr(storage, _CONTENT, None)
        if content is None:
            return
        if isinstance(content, torch.UntypedStorage):
            with on_real_tensors():
                content = typical(torch.empty(0, dtype=tensor.dtype).set_(content))
        if content is not _UNWRITTEN:
            element = Element(mixed(share, element.mean, content.mean))
    setattr(storage, _CONTENT, element)


def set_unwritten(tensor: torch.Tensor) -> None:
    """Mark the memory of a fake tensor as unwritten, as after ``torch.empty``."""
    storage = _storage(tensor)
    if storage is not None:
        setattr(storage, _CONTENT, _UNWRITTEN)


def set_written(tensors: Iterable[Any]) -> None:
    """Remove the mark of unwritten memory from tensors; known values stay."""
    for tensor in tensors:
        if is_unwritten(tensor):
            forget(tensor)


def is_unwritten(tensor: Any) -> bool:
    """Return True if no op has written to the memory of a fake tensor."""
    return _content(tensor) is _UNWRITTEN


def forget(tensor: Any) -> None:
    """Remove the known values of a fake tensor's storage, as they have changed."""
    storage = _storage(tensor)
    if storage is not None and hasattr(storage, _CONTENT):
        delattr(storage, _CONTENT)


def mixed(share: float, mean: float, other: float) -> float:
    """Return the weighted mean of two means, which may be infinite; `share` is the weight of the first."""
    if share == 0:
        return other
    if share == 1:
        return mean
    return other + (mean - other) * share if math.isfinite(other) else other


def whole_number(mean: float, place: int) -> int:
    """Return the integer at a position of a row of integers with this mean; prefix sums are exact up to rounding."""
    return math.floor(mean * (place + 1) + 1e-9) - math.floor(mean * place + 1e-9)


def _storage(tensor: Any) -> torch.UntypedStorage | None:
    """Return the storage of a fake tensor; None for other values, and for a sparse fake tensor, which has none."""
    try:
        return tensor.untyped_storage() if isinstance(tensor, FakeTensor) else None
    except NotImplementedError:
        return None


def _content(tensor: Any) -> Any:
    """Return `_CONTENT` of a fake tensor's storage, unless the storage was resized; for a real tensor, its storage."""
    if type(tensor) is torch.Tensor:
        return None if tensor.is_meta or tensor.numel() > LARGEST_KNOWN else tensor.untyped_storage()
    storage = _storage(tensor)
    content = getattr(storage, _CONTENT, None)
    if content is None or isinstance(content, Element) or content is _UNWRITTEN or storage is None:
        return content
    return content if content.nbytes() == storage.nbytes() else None


def _view(tensor: torch.Tensor, content: torch.UntypedStorage) -> torch.Tensor:
    with no_torch_function(), no_torch_dispatch():
        return torch.empty(0, dtype=tensor.dtype).set_(content, tensor.storage_offset(), tensor.shape, tensor.stride())


def _share(tensor: torch.Tensor, storage: torch.UntypedStorage) -> float:
    return tensor.numel() * tensor.element_size() / max(storage.nbytes(), 1)
