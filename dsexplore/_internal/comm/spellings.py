"""The functions of each collective: name, plain op, positions of the tensor arguments, and the c10d op it issues.

Arguments are named by position, since `comm.issue` passes them to torch that way. The message of a call is read from
the c10d op that it issues (`capture.collectives.ops`). For a call that failed before it issued one, the message is read
from the arguments that the op would have had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as td

from dsexplore._internal.capture.collectives.ops import COMMUNICATION_OPS, Communication, Message
from dsexplore._internal.comm.reduce_op import reduction_name
from dsexplore._internal.comm.sweeps.bandwidth import plain_op

AsOp = Callable[[Sequence[Any]], Sequence[Any]]
"""Maps a call's positional arguments to the first ones of its c10d op, from which the message is read."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """One function that issues a collective."""

    name: str
    """Name of the function, such as ``all_gather_into_tensor``."""
    op: str
    """Plain op, such as ``all_gather``."""
    call: Callable[..., Any]
    """The function: torch's, or a user's."""
    c10d_op: str = "c10d::barrier"
    """Op that the call issues; if it issues none, an op with the same message size."""
    as_op: AsOp = tuple
    """Returns the arguments of the c10d op for those of the call."""
    reads: tuple[int, ...] = ()
    """Positions of tensor arguments that are only read."""
    writes: tuple[int, ...] = ()
    """Positions of tensor arguments that are written."""
    peers: tuple[int, int] | None = None
    """Positions of the peer or root: its global rank, and its rank in the group; None for an op without one."""
    reduction: int | None = None
    """Position of the reduction; None for an op without one."""
    check: Callable[[Sequence[Any], int], str] | None = None
    """Called with the arguments and the group's size; returns an error text for arguments that torch would accept
    although they are wrong, else an empty text. None for an op without such a check."""
    is_object: bool = False
    """True if it moves Python objects by several c10d ops, which are one line of the log."""
    is_custom: bool = False
    """True for a user's function, which is one line of the log, whatever it issues."""

    entry: Communication = field(init=False)
    """Functions with which the recorder reads the op."""
    tensors: tuple[int, ...] = field(init=False)
    """Positions of all tensor arguments."""
    is_checked: bool = field(init=False)
    """True if its arguments are checked before torch is called: peers, or with ``check``."""

    def __post_init__(self) -> None:
        """Compute the derived fields once instead of in every call."""
        object.__setattr__(self, "tensors", self.reads + self.writes)
        object.__setattr__(self, "is_checked", self.peers is not None or self.check is not None)
        object.__setattr__(self, "entry", COMMUNICATION_OPS[self.c10d_op])

    def reduction_of(self, args: Sequence[Any]) -> str:
        """Return ``SUM``, ``MAX``, … of a call with these arguments; empty for an op without a reduction."""
        return "" if self.reduction is None else reduction_name(args[self.reduction])

    def message(self, args: Sequence[Any], group_size: int) -> Message:
        """Return the message that a call with these arguments moves; an empty one if they are invalid."""
        try:
            return self.entry.messages(self.as_op(args), group_size, self.op)[0]._replace(op=self.op)
        except (TypeError, AttributeError, IndexError, ValueError):
            return Message(self.op, nbytes=0, dtype=None, shape=())


def _spelling(
    name: str, call: Callable[..., Any], c10d_op: str = "barrier", as_op: AsOp = tuple, **traits: Any
) -> Spelling:
    """Return the `Spelling` of a torch function; the plain op follows from the name, `traits` are further fields."""
    return Spelling(name, plain_op(name), call=call, c10d_op=f"c10d::{c10d_op}", as_op=as_op, **traits)


def _wrap_first(args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of an op that takes a list with the call's first tensor."""
    return ([args[0]],)


def _wrap_both(args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of an op that takes a list with each of the call's first two arguments."""
    return [args[0]], [args[1]]


def _input_second(args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments with the first tensor in a list as the second one."""
    return [], [args[0]]


def _even_parts(args: Sequence[Any], group_size: int) -> str:
    """Return an error text if all_to_all_single without split sizes cannot divide its tensors by the group's size."""
    for name, tensor, sizes in (("output", args[0], args[2]), ("input", args[1], args[3])):
        if not sizes and isinstance(tensor, torch.Tensor) and tensor.dim() and tensor.shape[0] % group_size:
            return f"{name} has {tensor.shape[0]} rows, which {group_size} ranks cannot share: give split sizes"
    return ""


_IN_PLACE: dict[str, Any] = {"as_op": _wrap_first, "writes": (0,)}
_OUT_OF_PLACE: dict[str, Any] = {"writes": (0,), "reads": (1,)}
_REDUCED: dict[str, Any] = {**_IN_PLACE, "reduction": 1}

ALL_REDUCE = _spelling("all_reduce", td.all_reduce, "allreduce_", **_REDUCED)
INFERENCE_ALL_REDUCE = _spelling("inference_all_reduce", td.all_reduce, "allreduce_", **_REDUCED)
ALL_REDUCE_COALESCED = _spelling("all_reduce_coalesced", td.all_reduce, "allreduce_", **_REDUCED)
REDUCE = _spelling("reduce", td.reduce, "reduce_", peers=(1, 5), reduction=2, **_IN_PLACE)
BROADCAST = _spelling("broadcast", td.broadcast, "broadcast_", peers=(1, 4), **_IN_PLACE)
ALL_GATHER = _spelling("all_gather", td.all_gather, "allgather_", _wrap_both, **_OUT_OF_PLACE)
REDUCE_SCATTER = _spelling(
    "reduce_scatter", td.reduce_scatter, "reduce_scatter_", _wrap_both, reduction=2, **_OUT_OF_PLACE
)
GATHER = _spelling("gather", td.gather, "gather_", _input_second, writes=(1,), reads=(0,), peers=(2, 5))
SCATTER = _spelling("scatter", td.scatter, "scatter_", _wrap_first, peers=(2, 5), **_OUT_OF_PLACE)
ALL_TO_ALL_SINGLE = _spelling(
    "all_to_all_single", td.all_to_all_single, "alltoall_base_", check=_even_parts, **_OUT_OF_PLACE
)
ALL_TO_ALL = _spelling("all_to_all", td.all_to_all, "alltoall_", **_OUT_OF_PLACE)
BARRIER = _spelling("barrier", td.barrier)
MONITORED_BARRIER = _spelling("monitored_barrier", td.monitored_barrier)

# torch's newer functions do the same without a deprecation warning at each call.
_gather_into = getattr(td, "all_gather_single", td.all_gather_into_tensor)
_reduce_into = getattr(td, "reduce_scatter_single", td.reduce_scatter_tensor)
ALL_GATHER_INTO_TENSOR, ALL_GATHER_BASE, ALL_GATHER_SINGLE, ALL_GATHER_COALESCED = (
    _spelling(name, _gather_into, "_allgather_base_", **_OUT_OF_PLACE)
    for name in ("all_gather_into_tensor", "all_gather_base", "all_gather_single", "all_gather_coalesced")
)
ALL_GATHER_COALESCED_LISTS = _spelling(
    "all_gather_coalesced", td.all_gather_coalesced, "allgather_coalesced_", reads=(1,)
)
REDUCE_SCATTER_TENSOR, REDUCE_SCATTER_SINGLE = (
    _spelling(name, _reduce_into, "_reduce_scatter_base_", reduction=2, **_OUT_OF_PLACE)
    for name in ("reduce_scatter_tensor", "reduce_scatter_single")
)

SEND, ISEND = (
    _spelling(name, call, "send", _wrap_first, reads=(0,), peers=(1, 4))
    for name, call in (("send", td.send), ("isend", td.isend))
)
RECV, IRECV = (
    _spelling(name, call, "recv_", peers=(1, 4), **_IN_PLACE) for name, call in (("recv", td.recv), ("irecv", td.irecv))
)

ALL_GATHER_OBJECT = _spelling("all_gather_object", td.all_gather_object, is_object=True)
BROADCAST_OBJECT_LIST, SEND_OBJECT_LIST, RECV_OBJECT_LIST = (
    _spelling(call.__name__, call, is_object=True, peers=(1, 4))
    for call in (td.broadcast_object_list, td.send_object_list, td.recv_object_list)
)
GATHER_OBJECT, SCATTER_OBJECT_LIST = (
    _spelling(call.__name__, call, is_object=True, peers=(2, 4)) for call in (td.gather_object, td.scatter_object_list)
)
