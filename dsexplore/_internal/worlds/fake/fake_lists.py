"""`ListMode`: ``torch.tensor`` and ``torch.as_tensor`` for lists that contain fake tensors.

torch copies the tensors of a list from memory, which fake tensors do not have. Scripts create such lists from what they
counted: ``torch.tensor([correct, total], device="cuda")``. A function mode reads the tensors first; the functions
themselves are not replaced, as torch's compilers know them. Under the CUDA stand-in, its function mode does this. Else
`ListMode` is entered for scripts only, because a step takes a tenth longer under a function mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dsexplore._internal.torch_internals.fake_tensors import without_fake_mode


class ListMode(TorchFunctionMode):
    """A function mode that reads the fake tensors in the lists that ``torch.tensor`` gets."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, with numbers in place of fake tensors if it creates a tensor from a list."""
        kwargs = kwargs or {}
        if func is torch.tensor or func is torch.as_tensor:
            args, kwargs = with_numbers(func, args, kwargs)
        return func(*args, **kwargs)


def with_numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``torch.tensor`` with numbers in place of the fake tensors in its list.

    Args:
        func: ``torch.tensor`` or ``torch.as_tensor``.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.

    Returns:
        Positional arguments, and keyword arguments with the ``dtype`` that torch infers from the list, unless given.
    """
    if not args or not isinstance(args[0], (list, tuple)) or not _holds_tensors(args[0]):
        return args, kwargs
    read = _read(args[0])
    with without_fake_mode():
        values = func(read)
    return (values.tolist(), *args[1:]), {"dtype": values.dtype, **kwargs}


def _holds_tensors(data: Sequence[Any]) -> bool:
    return any(
        isinstance(item, torch.Tensor) or (isinstance(item, (list, tuple)) and _holds_tensors(item)) for item in data
    )


def _read(data: Any) -> Any:
    """Return a list with real tensors of one number in place of fake ones, at any depth."""
    if isinstance(data, (list, tuple)):
        return [_read(item) for item in data]
    if not isinstance(data, torch.Tensor):
        return data
    value = data.item()
    with without_fake_mode():
        return torch.full((), value, dtype=data.dtype)
