"""Keys under which is kept what an op returned: all by which its arguments differ from those of other calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
_LISTS = frozenset({list, tuple, torch.Size})

Append = Callable[[list[object], Any], bool]
"""Appends to a key all by which a tensor differs from others; False where that is not known."""


def append_arguments(
    key: list[object], args: Iterable[Any], kwargs: Mapping[str, Any], of: type, append: Append
) -> bool:
    """Append to a key all by which the arguments of a call differ from others; False where that is not known.

    Args:
        key: extended; of no use where False is returned.
        args: by position.
        kwargs: by name, in the order given.
        of: the type of the tensors, or of what stands for them.
        append: for values of that type.
    """
    if not _append_all(key, args, of, append):
        return False
    key += kwargs
    return _append_all(key, kwargs.values(), of, append)


def _append_all(key: list[object], args: Iterable[Any], of: type, append: Append) -> bool:
    for arg in args:
        kind = type(arg)
        if kind is of:
            if not append(key, arg):
                return False
        elif kind in _PLAIN:
            key += (kind, arg)  # 1 and 1.0 are equal, but what they return is not
        elif kind in _LISTS:
            key += (kind, len(arg))
            if not _append_all(key, arg, of, append):
                return False
        else:
            return False
    return True
