"""Known values of fake tensors: all of them, or a typical element.

They are stored with the storage, so that views share them, and a write through one tensor is seen through all others of
the same memory:

* exact values that the program gave (``torch.tensor``, ``arange``, ``linspace``, ``randperm``), and small results
  computed from them: ``(arange(8).view(2, 4) == rank).nonzero()`` is the position of a rank;
* otherwise a typical `Element`: the fill value of ``zeros`` or ``full``, 1.0 if nothing is known. Results of ``topk``,
  ``argmax`` or ``randint`` are assumed to be uniform, so that comparing them with one of E experts is true for one
  element in E;
* whether any op has written to the memory: not to that of ``torch.empty``.
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
"""Maximal number of elements for which values are kept: enough for the order of a large data set."""
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


@contextmanager
def on_real_tensors() -> Iterator[None]:
    """Run the block on real tensors, outside of all dispatch modes."""
    with no_torch_function(), no_torch_dispatch():
        yield


def is_known(tensor: torch.Tensor) -> bool:
    """Return True if the values of a tensor are known, or a typical element is."""
    content = _content(tensor)
    return content is not None and content is not _UNWRITTEN


def values_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor as a real tensor that shares their memory; None if they are unknown."""
    content = _content(tensor)
    return _view(tensor, content) if isinstance(content, torch.UntypedStorage) else None


def element_of(value: Any) -> Element | None:
    """Return a typical element of a tensor or number; None if nothing is known."""
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


def elements_of(tensor: torch.Tensor) -> tuple[float, ...] | Element | None:
    """Return the values of a tensor if they are known and few, else its typical element, if there is one."""
    content = _content(tensor)
    if content is None or isinstance(content, Element):
        return content
    if content is _UNWRITTEN or tensor.numel() > MOST_FLOATS or tensor.is_complex():
        return element_of(tensor)
    with on_real_tensors():
        return tuple(_view(tensor, content).flatten().tolist())


def set_values(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Set the values of a fake tensor; other parts of its storage keep theirs, or become zero if unwritten."""
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
    """Set the typical element of a fake tensor; for a part of a storage, update that of the whole in proportion."""
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
    """Mark the memory of a fake tensor as not yet written, as that of ``torch.empty``."""
    storage = _storage(tensor)
    if storage is not None:
        setattr(storage, _CONTENT, _UNWRITTEN)


def set_written(tensors: Iterable[Any]) -> None:
    """Mark tensors as possibly written by an op; other knowledge of them is kept."""
    for tensor in tensors:
        if is_unwritten(tensor):
            forget(tensor)


def is_unwritten(tensor: Any) -> bool:
    """Return True if no op has written to the memory of a fake tensor."""
    return _content(tensor) is _UNWRITTEN


def forget(tensor: Any) -> None:
    """Drop the known values of a fake tensor's memory, as they have changed."""
    storage = _storage(tensor)
    if storage is not None and hasattr(storage, _CONTENT):
        delattr(storage, _CONTENT)


def mixed(share: float, mean: float, other: float) -> float:
    """Return the weighted mean of two means, which may be infinite; `share` is the weight of the first."""
    if share in (0.0, 1.0):
        return mean if share else other
    return other + (mean - other) * share if math.isfinite(other) else other


def whole_number(mean: float, place: int) -> int:
    """Return the integer at a position of a row with this mean; every prefix sum is exact up to rounding."""
    return math.floor(mean * (place + 1) + 1e-9) - math.floor(mean * place + 1e-9)


def _storage(tensor: Any) -> torch.UntypedStorage | None:
    """Return the storage of a fake tensor; None for others, and for tensors without storage, such as sparse ones."""
    try:
        return tensor.untyped_storage() if isinstance(tensor, FakeTensor) else None
    except NotImplementedError:
        return None


def _content(tensor: Any) -> Any:
    """Return `_CONTENT` of a fake tensor's storage, if the size still matches; for a real tensor, its storage."""
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
