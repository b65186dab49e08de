"""Every communication op of torch's dispatcher: its collective, its message, and the argument with its group.

Each op of a communication namespace has an entry in `COMMUNICATION_OPS` or a reason in `NOT_COMMUNICATION`, which a
test checks for the installed torch. `lookup` gives an unknown op a generic entry, so that none is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from math import prod
from typing import Any, NamedTuple

import torch

from dsexplore._internal.torch_internals.dispatch import all_op_names, find_op, has_op, ops_defined_in_python
from dsexplore._internal.torch_internals.tensors import parts_of_sparse

NAMESPACES = (
    "c10d",
    "_c10d_functional",
    "_c10d_functional_autograd",
    "c10d_functional",
    "_dtensor",
    "fsdp",
    "symm_mem",
)


class Message(NamedTuple):
    """What one event sends; not the tensor itself, which must not be kept alive."""

    op: str
    """Plain name of the collective, ``"all_reduce"``."""
    nbytes: int
    """Message bytes, see `trace.collectives`."""
    dtype: torch.dtype | None
    """None for a message without a tensor."""
    shape: Sequence[int]


Messages = Callable[[Sequence[Any], int, str], Sequence[Message]]
"""Returns an op's messages, several if calls were coalesced, from its positional arguments, its group's size and the
plain name of its collective."""


@dataclass(frozen=True, slots=True)
class Communication:
    """How to read the calls of one dispatcher op."""

    op: str
    """Plain name of the collective, ``"all_reduce"``."""
    messages: Messages
    _: KW_ONLY
    group: int
    """Position of the argument with the process group or its name; -1 if it is unknown."""
    async_op: int | None = None
    """Position of ``async_op``; None if the op has none and returns before the collective is done."""
    always_sync: bool = False
    """True if the op returns only once the collective is done."""


def nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; for a sparse tensor, of its indices and values."""
    if tensor.layout is not torch.strided:
        return sum(nbytes(part) for part in parts_of_sparse(tensor)) or int(tensor.numel()) * tensor.element_size()
    return int(tensor.numel()) * tensor.element_size()


def _total(tensors: Iterable[torch.Tensor]) -> int:
    return sum(nbytes(tensor) for tensor in tensors)


def _message(op: str, size: int, tensor: torch.Tensor | None) -> Message:
    """Return a message of `size` bytes, with the dtype and shape of `tensor` if it is given."""
    if tensor is None:
        return Message(op, size, dtype=None, shape=())
    return Message(op, size, dtype=tensor.dtype, shape=tensor.shape)


def _message_of_parts(op: str, n: int, dtype: torch.dtype, shape: Sequence[int]) -> tuple[Message]:
    """Return the message of a buffer of n equal parts, each with this dtype and shape."""
    return (Message(op, prod(map(int, shape)) * dtype.itemsize * n, dtype=dtype, shape=shape),)


_cached_message = cache(_message_of_parts)
"""Returns the same object for the same message: a program has few different messages, and repeats them each step."""


def forget_messages() -> None:
    """Clear the cache of messages, which all recordings share."""
    _cached_message.cache_clear()


def _message_of_tensor(op: str, parts: int, tensor: torch.Tensor) -> tuple[Message]:
    """Return the message of a buffer of `parts` equal parts, each with this tensor's dtype and shape."""
    if tensor.layout is not torch.strided:
        return (_message(op, parts * nbytes(tensor), tensor),)
    try:
        return _cached_message(op, parts, tensor.dtype, tensor.shape)
    except TypeError:  # symbolic sizes have no hash
        return _message_of_parts(op, parts, tensor.dtype, tensor.shape)


# Readers of messages, by the positions of the arguments that they read.


def _tensor(position: int) -> Messages:
    """Return a reader of one message: the tensor at `position` is the buffer."""
    return lambda args, _n, op: _message_of_tensor(op, 1, args[position])


def _scaled(position: int) -> Messages:
    """Return a reader of one message: the tensor at `position` is one rank's part of the buffer."""
    return lambda args, n, op: _message_of_tensor(op, n, args[position])


def _messages(position: int) -> Messages:
    """Return a reader of one message per tensor of a list."""

    def read(args: Sequence[Any], _n: int, op: str) -> Sequence[Message]:
        tensors = args[position]
        if len(tensors) == 1:
            return _message_of_tensor(op, 1, tensors[0])
        return [_message(op, nbytes(tensor), tensor) for tensor in tensors]

    return read


def _scaled_messages(position: int) -> Messages:
    """Return a reader of one message per tensor of a list: each is one rank's part of a buffer."""
    return lambda args, n, op: [_message(op, nbytes(tensor) * n, tensor) for tensor in args[position]]


def _list_messages(position: int) -> Messages:
    """Return a reader of one message per inner list of a list of lists: the tensors of each are one buffer."""
    return lambda args, _n, op: [_message(op, _total(parts), parts[0] if parts else None) for parts in args[position]]


def _larger(sent: int, received: int) -> Messages:
    """Return a reader of one message: the larger of the tensors that are sent and received."""
    return lambda args, _n, op: [_message(op, max(nbytes(args[sent]), nbytes(args[received])), args[sent])]


def _larger_list(sent: int, received: int) -> Messages:
    """Return a reader of one message: the larger of the lists of tensors that are sent and received."""

    def read(args: Sequence[Any], _n: int, op: str) -> list[Message]:
        first = args[sent][0] if args[sent] else None
        return [_message(op, max(_total(args[sent]), _total(args[received])), first)]

    return read


def _all_to_all_single(args: Sequence[Any], _n: int, op: str) -> list[Message]:
    """Return one message, the larger of the sent tensor and the received one, whose rows the splits give."""
    tensor, output_splits = args[0], args[1]
    rows = int(tensor.shape[0]) if tensor.dim() else 1
    received = sum(int(split) for split in output_splits) if output_splits else rows
    sent = nbytes(tensor)
    larger = max(sent, sent // rows * received if rows else _row_bytes(tensor) * received)
    return [_message(op, larger, tensor)]


def _row_bytes(tensor: torch.Tensor) -> int:
    return prod(map(int, tensor.shape[1:])) * tensor.element_size()


def _product(args: Sequence[Any], _n: int, op: str) -> list[Message]:
    """Return the message of a matmul whose result is reduce-scattered: the result in the dtype of the first factor."""
    left, right = args[0], args[1]
    return [_message(op, nbytes(left) // int(left.shape[-1]) * int(right.shape[-1]), left)]


def _p2p_batch(args: Sequence[Any], _n: int, _op: str) -> list[Message]:
    return [
        _message("send" if name == "isend" else "recv", nbytes(tensor), tensor)
        for name, tensor in zip(args[0], args[3], strict=True)
    ]


def _nothing(_args: Sequence[Any], _n: int, op: str) -> list[Message]:
    return [_message(op, 0, None)]


def tensors_in(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors among values, and in lists, tuples and dicts among them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def _first_tensors(args: Sequence[Any], _n: int, op: str) -> list[Message]:
    """Return the message of an unknown op: its largest tensor."""
    largest = max(tensors_in(args), key=nbytes, default=None)
    return [_message(op, nbytes(largest) if largest is not None else 0, largest)]


_C10D = {
    "allreduce_": Communication("all_reduce", _messages(0), group=1, async_op=4),
    "allreduce_coalesced_": Communication("all_reduce", _messages(0), group=1, async_op=3),
    "allgather_": Communication("all_gather", _list_messages(0), group=2, async_op=3),
    "_allgather_base_": Communication("all_gather", _tensor(0), group=2, async_op=3),
    "allgather_coalesced_": Communication("all_gather", _scaled_messages(1), group=2, async_op=3),
    "allgather_into_tensor_coalesced_": Communication("all_gather", _messages(0), group=2, async_op=3),
    "reduce_scatter_": Communication("reduce_scatter", _list_messages(1), group=2, async_op=4),
    "_reduce_scatter_base_": Communication("reduce_scatter", _tensor(1), group=2, async_op=4),
    "reduce_scatter_tensor_coalesced_": Communication("reduce_scatter", _messages(1), group=2, async_op=4),
    "broadcast_": Communication("broadcast", _messages(0), group=1, async_op=4),
    "reduce_": Communication("reduce", _messages(0), group=1, async_op=5),
    "gather_": Communication("gather", _scaled_messages(1), group=2, async_op=4),
    "gather_into_tensor_": Communication("gather", _scaled(1), group=2, async_op=4),
    "scatter_": Communication("scatter", _scaled_messages(0), group=2, async_op=4),
    "alltoall_": Communication("all_to_all", _larger_list(1, 0), group=2, async_op=3),
    "alltoall_base_": Communication("all_to_all", _larger(1, 0), group=2, async_op=5),
    "barrier": Communication("barrier", _nothing, group=1, async_op=3),
    "monitored_barrier_": Communication("barrier", _nothing, group=1, always_sync=True),
    "send": Communication("send", _messages(0), group=1),
    "recv_": Communication("recv", _messages(0), group=1),
    "recv_any_source_": Communication("recv", _messages(0), group=1),
}

_FUNCTIONAL = {
    "all_reduce": Communication("all_reduce", _tensor(0), group=2),
    "all_reduce_": Communication("all_reduce", _tensor(0), group=2),
    "all_reduce_coalesced": Communication("all_reduce", _messages(0), group=2),
    "all_reduce_coalesced_": Communication("all_reduce", _messages(0), group=2),
    "all_gather_into_tensor": Communication("all_gather", _scaled(0), group=2),
    "all_gather_into_tensor_out": Communication("all_gather", _scaled(0), group=2),
    "all_gather_into_tensor_coalesced": Communication("all_gather", _scaled_messages(0), group=2),
    "reduce_scatter_tensor": Communication("reduce_scatter", _tensor(0), group=3),
    "reduce_scatter_tensor_out": Communication("reduce_scatter", _tensor(0), group=3),
    "reduce_scatter_tensor_coalesced": Communication("reduce_scatter", _messages(0), group=3),
    "all_to_all_single": Communication("all_to_all", _all_to_all_single, group=3),
    "broadcast": Communication("broadcast", _tensor(0), group=2),
    "broadcast_": Communication("broadcast", _tensor(0), group=2),
    "isend": Communication("send", _tensor(0), group=3),
    "irecv": Communication("recv", _tensor(0), group=3),
    "batch_p2p_ops": Communication("send", _p2p_batch, group=4),
}

# Signatures: torch/csrc/distributed/c10d/symm_mem and torch/distributed/_symmetric_memory.
_SYMMETRIC_MEMORY = {
    "_low_contention_all_gather": Communication("all_gather", _scaled(0), group=1),
    "_low_contention_all_gather_ce_multicast": Communication("all_gather", _scaled(0), group=1),
    "_low_contention_all_gather_ce_multicast_out": Communication("all_gather", _scaled(0), group=1),
    "_low_contention_reduce_scatter": Communication("reduce_scatter", _tensor(0), group=2),
    "fused_all_gather_matmul": Communication("all_gather", _scaled(0), group=3),
    "fused_all_gather_scaled_matmul": Communication("all_gather", _scaled(0), group=5),
    "fused_matmul_reduce_scatter": Communication("reduce_scatter", _product, group=4),
    "fused_scaled_matmul_reduce_scatter": Communication("reduce_scatter", _product, group=7),
    "multimem_all_gather_out": Communication("all_gather", _scaled(0), group=1),
    "multimem_all_reduce_": Communication("all_reduce", _tensor(0), group=2),
    "multimem_one_shot_all_reduce": Communication("all_reduce", _tensor(0), group=2),
    "multimem_one_shot_all_reduce_out": Communication("all_reduce", _tensor(0), group=2),
    "multimem_one_shot_reduce_out": Communication("reduce", _tensor(0), group=3),
    "one_shot_all_reduce": Communication("all_reduce", _tensor(0), group=2),
    "one_shot_all_reduce_copy": Communication("all_reduce", _tensor(1), group=3),
    "one_shot_all_reduce_copy_out": Communication("all_reduce", _tensor(1), group=3),
    "one_shot_all_reduce_out": Communication("all_reduce", _tensor(0), group=2),
    "two_shot_all_reduce_": Communication("all_reduce", _tensor(0), group=2),
    "two_shot_all_reduce_out": Communication("all_reduce", _tensor(0), group=2),
    "reduce_scatter_out": Communication("reduce_scatter", _tensor(0), group=1),
    "tile_reduce": Communication("reduce", _tensor(0), group=3),
    "multi_root_tile_reduce": Communication("reduce", _messages(0), group=3),
    "nccl_reduce_scatter_offset": Communication("reduce_scatter", _tensor(0), group=2),
    "nccl_all_to_all_nd": Communication("all_to_all", _tensor(0), group=4),
    "nvshmem_broadcast": Communication("broadcast", _tensor(0), group=2),
    "nvshmem_all_to_all": Communication("all_to_all", _tensor(0), group=2),
    "all_to_all_vdev": Communication("all_to_all", _tensor(0), group=4),
    "all_to_all_vdev_2d": Communication("all_to_all", _tensor(0), group=4),
    "all_to_all_vdev_2d_offset": Communication("all_to_all", _tensor(0), group=4),
}

COMMUNICATION_OPS: dict[str, Communication] = {
    **{f"c10d::{name}": entry for name, entry in _C10D.items()},
    **{f"_c10d_functional::{name}": entry for name, entry in _FUNCTIONAL.items()},
    "_dtensor::shard_dim_alltoall": Communication("all_to_all", _tensor(0), group=3),
    **{f"symm_mem::{name}": entry for name, entry in _SYMMETRIC_MEMORY.items()},
}

_SYMMETRIC_ACCESS = (
    "one-sided access to symmetric memory, ordered by the program itself: no collective, no process group"
)
_DECOMPOSES = "decomposes into the _c10d_functional op of the same name, which is recorded"

NOT_COMMUNICATION: dict[str, str] = {
    "c10d::check_for_nan": "looks at a local tensor",
    "_c10d_functional::wait_tensor": "waits for a collective that was recorded when issued",
    "_c10d_functional::wait_tensors": "waits for collectives that were recorded when issued",
    "_c10d_functional::_wrap_tensor_autograd": "wraps the result of a recorded collective",
    "_c10d_functional_autograd::all_gather_into_tensor": _DECOMPOSES,
    "_c10d_functional_autograd::reduce_scatter_tensor": _DECOMPOSES,
    "_c10d_functional_autograd::all_to_all_single": _DECOMPOSES,
    **{
        f"c10d_functional::{name}": _DECOMPOSES
        for name in (
            "all_gather_into_tensor",
            "all_gather_into_tensor_coalesced",
            "all_reduce",
            "all_reduce_coalesced",
            "all_to_all_single",
            "batch_p2p_ops",
            "broadcast",
            "irecv",
            "isend",
            "reduce_scatter_tensor",
            "reduce_scatter_tensor_coalesced",
            "wait_tensor",
        )
    },
    "_dtensor::mesh_get_process_group": "looks a group up",
    "fsdp::all_gather_copy_in": "copies local shards into the buffer that is gathered next",
    "fsdp::chunk_cat": "copies local gradients into the buffer that is scattered next",
    "fsdp::chunk_cat_mixed_dtype": "the same for gradients of several dtypes",
    "fsdp::copy_": "local copy",
    "fsdp::record_grad_output_stream": "notes for the allocator which stream uses a buffer",
    "fsdp::split_with_sizes_copy": "copies parameters out of the gathered buffer",
    "symm_mem::_async_input_mm": "local matmul that waits for signals",
    "symm_mem::_barrier": "device-side barrier of a symmetric-memory block: no data",
    "symm_mem::_rendezvous": "exchanges handles once when a block is set up",
    "symm_mem::get_remote_tensors": "maps peers' memory, moves nothing",
    "symm_mem::memset32_": "writes a local signal",
    "symm_mem::stream_write_value32_": "writes a local signal",
    **{
        f"symm_mem::{name}": _SYMMETRIC_ACCESS
        for name in (
            "memcpy_to_multicast_",
            "nccl_get",
            "nccl_get_out",
            "nccl_put",
            "nccl_put_signal",
            "nccl_put_with_signal",
            "nccl_wait_for_signal",
            "nccl_wait_signal",
            "nvshmem_get",
            "nvshmem_get_out",
            "nvshmem_put",
            "nvshmem_put_with_signal",
            "nvshmem_wait_for_signal",
        )
    },
}


def op_names() -> list[str]:
    """Return the ops of the communication namespaces that this process knows, without overload names."""
    return sorted({name.partition(".")[0] for name in _all_names()})


def overloads() -> list[tuple[str, str]]:
    """Return pairs of op, as in `op_names`, and overload name, which is empty for most."""
    return sorted((op, overload) for op, _, overload in (name.partition(".") for name in _all_names()))


_PREFIXES = tuple(f"{namespace}::" for namespace in NAMESPACES)


_cached_names: tuple[object, list[str]] = (None, [])
"""(state of imports, libraries and definitions when `_all_names` last asked the dispatcher, the names)."""


def _all_names() -> list[str]:
    """Return names and overloads of the communication ops, cached until a module is imported or such an op is defined.

    To list them, the dispatcher copies the names of torch's 4,000 ops. That takes 3 ms, and in a forked process 4 MB of
    memory that it shared with its parent.
    """
    global _cached_names
    in_python = ["".join(name.split()) for name in ops_defined_in_python() if name.startswith(_PREFIXES)]
    defined = frozenset(name for name in in_python if has_op(name))  # without those that were removed since
    state = len(sys.modules), len(torch.ops.loaded_libraries), defined
    if _cached_names[0] != state:
        names = [name for name in all_op_names() if name.startswith(_PREFIXES)]
        _cached_names = state, names or [name for name in COMMUNICATION_OPS if find_op(name)]
    return _cached_names[1]


def lookup(raw_op: str) -> Communication | None:
    """Return the entry of an op; None if it is known not to communicate.

    An unknown op gets a generic entry, named ``unknown:<name>``.
    """
    entry = COMMUNICATION_OPS.get(raw_op)
    if entry is None and raw_op not in NOT_COMMUNICATION:
        entry = Communication(f"unknown:{raw_op.partition('::')[2]}", _first_tensors, group=-1)
    return entry
