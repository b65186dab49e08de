"""Message bytes, dtype and elements of a profiled collective; unknown where the file does not say."""

from __future__ import annotations

from dsexplore._internal.trace.importers.op_names import dtype_in_kernel, plain_dtype
from dsexplore._internal.trace.importers.profiler_calls import ProfilerCall
from dsexplore._internal.trace.item_size import item_size
from dsexplore._internal.trace.limits import MOST_ELEMENTS

_IN_WHOLE = ("all_reduce", "broadcast", "reduce", "send", "recv")
_IN_PARTS = ("all_gather", "gather", "reduce_scatter", "scatter")
_COUNTED_PER_RANK = ("all_gather", "reduce_scatter", "all_to_all")
"""Collectives whose count, in NCCL's interface, is one rank's part."""


def message_of(call: ProfilerCall, group_size: int) -> tuple[int | None, str, int | None]:
    """Return message bytes, dtype and number of elements of the whole message.

    None, empty and None where neither the collective's arguments nor the tensors of an op say so.

    Args:
        call: the collective.
        group_size: ranks of its group; 0 if unknown.
    """
    if call.op == "barrier":
        return 0, "", None
    dtype = plain_dtype(str(call.arguments.get("dtype") or call.arguments.get("datatype") or ""))
    dtype = dtype or next((kind for _, kind in call.tensors if kind), "") or dtype_in_kernel(call.raw_op)
    elements = _stated(call, group_size)
    if elements is None:
        elements = _tensor_elements(call, group_size)
    if elements is None or elements > MOST_ELEMENTS:
        return None, dtype, None
    width = item_size(dtype)
    message_bytes = elements * width if width else (None if elements else 0)
    return message_bytes, dtype, elements


def _stated(call: ProfilerCall, group_size: int) -> int | None:
    """Return the elements of the whole message that the call's arguments state; None if they state none.

    More elements than torch's 32 bits count are stated as a negative number; 0 in and 0 out are also written where
    nothing was counted.
    """
    if "count" in call.arguments and "func" in call.arguments:
        return whole_of(call.op, _possible(call.arguments["count"]), group_size)
    ins, outs = (_possible(call.arguments.get(f"{way} msg nelems")) for way in ("In", "Out"))
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
    return (ins or outs) if call.op in _IN_WHOLE else max(ins, outs)


def whole_of(op: str, count: int | None, group_size: int) -> int | None:
    """Return the size of the whole message, from the count in NCCL's profiling interface.

    Args:
        op: the plain name of the collective.
        count: as NCCL's API takes it, in elements or bytes; None if unknown.
        group_size: ranks of its group; 0 if unknown.
    """
    if count is None or op not in _COUNTED_PER_RANK:
        return count
    return count * group_size or None


def _possible(value: object) -> int | None:
    """Return a number of elements; 0 for None, and None for what none can be."""
    number = int(value) if isinstance(value, (int, float, str)) else 0
    return number if 0 <= number <= MOST_ELEMENTS else None


def _tensor_elements(call: ProfilerCall, group_size: int) -> int | None:
    """Return the elements of the whole message according to the tensors of an op; None if they do not say it."""
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
