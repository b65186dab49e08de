"""`ListMode`: ``torch.tensor`` and ``torch.as_tensor`` of lists that hold fake tensors.

torch copies such tensors from their memory, which fake ones have not. Scripts make such lists of what they counted:
``torch.tensor([correct, total], device="cuda")``. A function mode reads the tensors first; replaced functions would be
others than those that torch's compilers know. Where a CPU stands in for a GPU, its mode does so; else this one is
entered for scripts alone, as a step takes a tenth longer under a function mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dsexplore._internal.torch_internals.fake_tensors import without_fake_mode


class ListMode(TorchFunctionMode):
    """A function mode that reads the fake tensors in a list that becomes a tensor."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch, with numbers in place of fake tensors where it makes a tensor of a list."""
        kwargs = kwargs or {}
        if func is torch.tensor or func is torch.as_tensor:
            args, kwargs = with_numbers(func, args, kwargs)
        return func(*args, **kwargs)


def with_numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of ``torch.tensor`` with numbers in place of the fake tensors in its list.

    Args:
        func: ``torch.tensor`` or ``torch.as_tensor``.
        args: its positional arguments.
        kwargs: its other arguments; ``dtype`` is added, the one that torch finds for the list, unless it is given.
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
    """Return lists of real tensors and numbers for lists of fake tensors."""
    if isinstance(data, (list, tuple)):
        return [_read(item) for item in data]
    if not isinstance(data, torch.Tensor):
        return data
    value = data.item()
    with without_fake_mode():
        return torch.full((), value, dtype=data.dtype)
