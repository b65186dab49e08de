"""Every way to write a collective: which op it is, which arguments are tensors, how large its message is.

Sizes are S of `dsexplore.trace.collectives`. A spelling names its tensor arguments by position, since that is
how `dsexplore.comm.issue` hands them to torch.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as td

from dsexplore.comm.bandwidth import plain_op

Size = tuple[int, torch.dtype | None, tuple[int, ...]]
"""A message: its bytes S, its dtype, and the shape of the buffer that S counts. Tensors of several shapes count as
one of one dim."""

NOTHING: Size = (0, None, ())

Measure = Callable[[Sequence[Any], int], Size]
"""From a call's positional arguments and the group's size to its message."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """One function that makes a collective."""

    name: str
    op: str
    call: Callable[..., Any]
    measure: Measure
    reads: tuple[int, ...] = ()
    """Positions of tensor arguments that are only read."""
    writes: tuple[int, ...] = ()
    """Positions of tensor arguments that are written, or both."""
    peers: tuple[int, int] | None = None
    """Positions of the other rank or the root: by its number in the world, by its number in the group."""
    check: Callable[[Sequence[Any], int], str] | None = None
    """What is wrong with the arguments that torch would let pass, from them and the group's size; "" for nothing."""
    is_object: bool = False
    """Moves Python objects: measured when it is over, since receivers know the size only then."""

    tensors: tuple[int, ...] = field(init=False)
    """Positions of all tensor arguments."""

    def __post_init__(self) -> None:
        """Put together once what each call looks at."""
        object.__setattr__(self, "tensors", self.reads + self.writes)

    def size(self, args: Sequence[Any], group_size: int) -> Size:
        """The message of a call that is about to be made, or that failed; nothing where the arguments make no sense."""
        try:
            return NOTHING if self.is_object else self.measure(args, group_size)
        except (TypeError, AttributeError, IndexError):
            return NOTHING

    def first_tensor(self, args: Sequence[Any]) -> torch.Tensor | None:
        """One of the tensors of a call, to know its device by."""
        for position in self.tensors:
            value = args[position]
            first = value[0] if isinstance(value, (list, tuple)) and value else value
            if isinstance(first, torch.Tensor):
                return first
        return None


def spelling(name: str, call: Callable[..., Any], measure: Measure, **traits: Any) -> Spelling:
    """A spelling whose op follows from its name."""
    return Spelling(name, plain_op(name), call, measure, **traits)


def tensor_at(position: int) -> Measure:
    """S is one tensor."""

    def measure(args: Sequence[Any], group_size: int) -> Size:
        tensor = args[position]
        return tensor.nbytes, tensor.dtype, tensor.shape

    return measure


def tensors_at(position: int) -> Measure:
    """S is all tensors of a list."""

    def measure(args: Sequence[Any], group_size: int) -> Size:
        return together(args[position])

    return measure


def lists_at(position: int) -> Measure:
    """S is all tensors of a list of lists."""

    def measure(args: Sequence[Any], group_size: int) -> Size:
        return together([tensor for tensors in args[position] for tensor in tensors])

    return measure


def per_rank_part_at(position: int) -> Measure:
    """S is n × one tensor."""

    def measure(args: Sequence[Any], group_size: int) -> Size:
        tensor = args[position]
        return group_size * tensor.nbytes, tensor.dtype, (group_size, *tensor.shape)

    return measure


def larger_of(first: Measure, second: Measure) -> Measure:
    """S is the larger of what the rank sends and receives."""

    def measure(args: Sequence[Any], group_size: int) -> Size:
        return max(first(args, group_size), second(args, group_size), key=lambda size: size[0])

    return measure


def nothing(args: Sequence[Any], group_size: int) -> Size:
    """No payload."""
    return NOTHING


def together(tensors: Sequence[torch.Tensor]) -> Size:
    """Several tensors as one message."""
    if not tensors:
        return NOTHING
    first = tensors[0]
    size = sum(tensor.nbytes for tensor in tensors)
    if all(tensor.shape == first.shape for tensor in tensors):
        return size, first.dtype, (len(tensors), *first.shape)
    return size, first.dtype, (sum(tensor.numel() for tensor in tensors),)


_LENGTH_BYTES = 8  # torch sends the length of each pickle ahead of it


def _pickled(thing: Any) -> int:
    return len(pickle.dumps(thing)) + _LENGTH_BYTES


def objects_at(position: int) -> Measure:
    """S is the pickles of a list's objects with their lengths; objects are pickled once more to be measured."""

    def measure(args: Sequence[Any], group_size: int) -> Size:
        return sum(map(_pickled, args[position])), torch.uint8, ()

    return measure


def largest_object_at(*positions: int) -> Measure:
    """S is n × the largest pickle, to which all are padded; of the objects that this rank has seen."""

    def measure(args: Sequence[Any], group_size: int) -> Size:
        seen: list[Any] = []
        for position in positions:
            value = args[position]
            seen.extend(value if isinstance(value, list) else [value])
        return group_size * max(map(_pickled, seen), default=0), torch.uint8, ()

    return measure


def _even_parts(args: Sequence[Any], group_size: int) -> str:
    for name, tensor, sizes in (("output", args[0], args[2]), ("input", args[1], args[3])):
        if not sizes and isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.shape[0] % group_size:
            return f"{name} has {tensor.shape[0]} rows, which {group_size} ranks cannot share: give split sizes"
    return ""


ALL_REDUCE = spelling("all_reduce", td.all_reduce, tensor_at(0), writes=(0,))
INFERENCE_ALL_REDUCE = spelling("inference_all_reduce", td.all_reduce, tensor_at(0), writes=(0,))
REDUCE = spelling("reduce", td.reduce, tensor_at(0), writes=(0,), peers=(1, 5))
BROADCAST = spelling("broadcast", td.broadcast, tensor_at(0), writes=(0,), peers=(1, 4))
ALL_GATHER = spelling("all_gather", td.all_gather, tensors_at(0), writes=(0,), reads=(1,))
REDUCE_SCATTER = spelling("reduce_scatter", td.reduce_scatter, tensors_at(1), writes=(0,), reads=(1,))
GATHER = spelling("gather", td.gather, per_rank_part_at(0), writes=(1,), reads=(0,), peers=(2, 5))
SCATTER = spelling("scatter", td.scatter, per_rank_part_at(0), writes=(0,), reads=(1,), peers=(2, 5))
ALL_TO_ALL_SINGLE = spelling(
    "all_to_all_single",
    td.all_to_all_single,
    larger_of(tensor_at(1), tensor_at(0)),
    writes=(0,),
    reads=(1,),
    check=_even_parts,
)
ALL_TO_ALL = spelling("all_to_all", td.all_to_all, larger_of(tensors_at(1), tensors_at(0)), writes=(0,), reads=(1,))
BARRIER = spelling("barrier", td.barrier, nothing)
MONITORED_BARRIER = spelling("monitored_barrier", td.monitored_barrier, nothing)

# The functions under torch's newer names do the work without a deprecation warning for each call.
_gather_into = getattr(td, "all_gather_single", td.all_gather_into_tensor)
_reduce_into = getattr(td, "reduce_scatter_single", td.reduce_scatter_tensor)
ALL_GATHER_INTO_TENSOR, ALL_GATHER_BASE, ALL_GATHER_SINGLE = (
    spelling(name, _gather_into, tensor_at(0), writes=(0,), reads=(1,))
    for name in ("all_gather_into_tensor", "all_gather_base", "all_gather_single")
)
ALL_REDUCE_COALESCED = spelling("all_reduce_coalesced", td.all_reduce, tensor_at(0), writes=(0,))
ALL_GATHER_COALESCED = spelling("all_gather_coalesced", _gather_into, tensor_at(0), writes=(0,), reads=(1,))
ALL_GATHER_COALESCED_LISTS = spelling("all_gather_coalesced", td.all_gather_coalesced, lists_at(0), reads=(1,))
REDUCE_SCATTER_TENSOR, REDUCE_SCATTER_SINGLE = (
    spelling(name, _reduce_into, tensor_at(1), writes=(0,), reads=(1,))
    for name in ("reduce_scatter_tensor", "reduce_scatter_single")
)

SEND = spelling("send", td.send, tensor_at(0), reads=(0,), peers=(1, 4))
ISEND = spelling("isend", td.isend, tensor_at(0), reads=(0,), peers=(1, 4))
RECV = spelling("recv", td.recv, tensor_at(0), writes=(0,), peers=(1, 4))
IRECV = spelling("irecv", td.irecv, tensor_at(0), writes=(0,), peers=(1, 4))

ALL_GATHER_OBJECT = spelling("all_gather_object", td.all_gather_object, largest_object_at(0), is_object=True)
BROADCAST_OBJECT_LIST = spelling(
    "broadcast_object_list", td.broadcast_object_list, objects_at(0), is_object=True, peers=(1, 4)
)
GATHER_OBJECT = spelling("gather_object", td.gather_object, largest_object_at(0, 1), is_object=True, peers=(2, 4))
SCATTER_OBJECT_LIST = spelling(
    "scatter_object_list", td.scatter_object_list, largest_object_at(0), is_object=True, peers=(2, 4)
)
SEND_OBJECT_LIST = spelling("send_object_list", td.send_object_list, objects_at(0), is_object=True, peers=(1, 4))
RECV_OBJECT_LIST = spelling("recv_object_list", td.recv_object_list, objects_at(0), is_object=True, peers=(1, 4))
