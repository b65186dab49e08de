"""Compute message bytes, dtype and number of elements of a profiled collective from its arguments and tensors."""

from __future__ import annotations

from typing import NamedTuple

from dsexplore._internal.trace.importers.op_names import dtype_in_kernel, plain_dtype
from dsexplore._internal.trace.importers.profiler_calls import ProfilerCall
from dsexplore._internal.trace.item_size import item_size
from dsexplore._internal.trace.limits import MOST_ELEMENTS

_IN_WHOLE = ("all_reduce", "broadcast", "reduce", "send", "recv")
"""Collectives in which each rank has the whole message."""
_IN_PARTS = ("all_gather", "gather", "reduce_scatter", "scatter")
_COUNTED_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives whose count, in NCCL's interface, is one rank's part."""


class ProfiledMessage(NamedTuple):
    """The whole message of a profiled collective."""

    message_bytes: int | None
    """None if unknown."""
    dtype: str
    """torch's name of the dtype; empty if unknown."""
    elements: int | None
    """Number of elements; None if unknown."""


def message_of(call: ProfilerCall, group_size: int) -> ProfiledMessage:
    """Return the message of a collective, from its arguments or else from the tensors of an op.

    Args:
        call: the collective.
        group_size: number of ranks of its group; 0 if unknown.
    """
    if call.op == "barrier":
        return ProfiledMessage(0, "", None)
    dtype = plain_dtype(str(call.arguments.get("dtype") or call.arguments.get("datatype") or ""))
    dtype = dtype or next((of_tensor for _, of_tensor in call.tensors if of_tensor), "") or dtype_in_kernel(call.raw_op)
    elements = _stated_elements(call, group_size)
    if elements is None:
        elements = _tensor_elements(call, group_size)
    if elements is None or elements > MOST_ELEMENTS:
        return ProfiledMessage(None, dtype, None)
    size = item_size(dtype)
    if elements and size is None:
        return ProfiledMessage(None, dtype, elements)
    return ProfiledMessage(elements * (size or 0), dtype, elements)


def _stated_elements(call: ProfilerCall, group_size: int) -> int | None:
    """Return the elements of the whole message that the call's arguments state; None if they state none.

    torch states more elements than 32 bits can count as a negative number, and 0 in and 0 out if it has not counted.
    """
    if "count" in call.arguments and "func" in call.arguments:
        return whole_of(call.op, _possible(call.arguments["count"]), group_size)
    ins = _possible(call.arguments.get("In msg nelems"))
    outs = _possible(call.arguments.get("Out msg nelems"))
    if ins is None or outs is None or not (ins or outs):
        return None
    match call.op:
        case "all_gather":
            return max(outs, ins * group_size) or None
        case "reduce_scatter":
            return max(ins, outs * group_size) or None
        case "gather":
            return ins * group_size or None
        case "scatter":
            return outs * group_size or None
    if call.op in _IN_WHOLE:
        return ins or outs
    return max(ins, outs)


def whole_of(op: str, count: int | None, group_size: int) -> int | None:
    """Return the size of the whole message, from the count in NCCL's profiling interface.

    Args:
        op: plain name of the collective.
        count: count as NCCL's API takes it, in elements or bytes; None if unknown.
        group_size: number of ranks of the group; 0 if unknown.
    """
    if count is None or op not in _COUNTED_PER_RANK:
        return count
    return count * group_size or None


def _possible(value: object) -> int | None:
    """Return a number of elements; 0 if the file states none, and None if no message can have that many."""
    number = int(value) if isinstance(value, (int, float, str)) else 0
    return number if 0 <= number <= MOST_ELEMENTS else None


def _tensor_elements(call: ProfilerCall, group_size: int) -> int | None:
    """Return the elements of the whole message according to the tensors of an op; None if these do not tell them."""
    elements = max((count for count, _ in call.tensors if count <= MOST_ELEMENTS), default=None)
    if elements is None or not _is_part_of_rank(call):
        return elements
    return elements * group_size or None  # lists of all ranks' parts are not in the file


def _is_part_of_rank(call: ProfilerCall) -> bool:
    """Return True if the op's tensors are one rank's part of a larger message."""
    if call.tensors_of.startswith("c10d::"):
        return not call.tensors_of.endswith("base_") and call.op in _IN_PARTS
    if "::" in call.tensors_of:
        return call.op in ("all_gather", "gather") and len(call.tensors) == 1
    return call.op in ("all_gather", "gather")  # a range's tensors are the inputs
