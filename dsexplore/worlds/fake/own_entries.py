"""Entries for ops of which torch's fake-tensor cache keeps none, although their results depend on shapes alone.

torch keeps entries of its own ops. What FSDP2 copies before and after a collective, and the wait for one, are ops of
other namespaces: each call on fake tensors takes 0.4 to 4 ms, and a training step has hundreds of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch._subclasses.fake_tensor import (
    FakeTensor,
    _DispatchCacheEntryOutputInfo,
    _DispatchCacheValidEntry,
    extract_tensor_metadata,
)
from torch.utils import _pytree as pytree

_OPS = frozenset(
    {
        "_c10d_functional::wait_tensor",
        "fsdp::all_gather_copy_in",
        "fsdp::chunk_cat",
        "fsdp::split_with_sizes_copy",
    }
)


def can_have_entry(func: Any) -> bool:
    """Whether what an op returns depends on its arguments' shapes alone, though torch keeps no entry of it."""
    return func.name() in _OPS


def entry_of(result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _DispatchCacheValidEntry | None:
    """The entry of a call that left its arguments as they were; None where a result has more to it than a shape.

    Args:
        result: None, a tensor, or a tuple of tensors.
        args: of the call.
        kwargs: of the call.
    """
    parts = result if isinstance(result, tuple) else (result,)
    infos = [_info(part, args, kwargs) for part in parts]
    if any(info is None for info in infos):
        return None
    return _DispatchCacheValidEntry(output_infos=tuple(infos), is_output_tuple=isinstance(result, tuple))  # type: ignore[arg-type]


def _info(part: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _DispatchCacheEntryOutputInfo | None:
    """One result: an argument, a view of one, or a new tensor; None for what is none of these."""
    if part is None:
        return _DispatchCacheEntryOutputInfo(inplace_idx=None, metadata=None, view_idx=None, constant_value=None)
    if type(part) is not FakeTensor or part.constant is not None:
        return None
    for index, arg in enumerate(args):
        if arg is part:
            return _DispatchCacheEntryOutputInfo(inplace_idx=index, metadata=None, view_idx=None)
    source = next((index for index, arg in enumerate(args) if _share_memory(arg, part)), None)
    if source is None and any(_share_memory(arg, part) for arg in pytree.arg_tree_leaves(*args, **kwargs)):
        return None
    return _DispatchCacheEntryOutputInfo(inplace_idx=None, metadata=extract_tensor_metadata(part), view_idx=source)


def _share_memory(arg: Any, part: FakeTensor) -> bool:
    return isinstance(arg, FakeTensor) and arg.untyped_storage()._cdata == part.untyped_storage()._cdata
