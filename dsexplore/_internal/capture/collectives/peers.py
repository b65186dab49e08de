"""Reads the peer of a send or recv, the root of a rooted collective, and uneven split sizes off an op's arguments.

Most collectives involve all ranks of their group in the same way. `PARTIES` has no entry for their ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch


class Parties(NamedTuple):
    """The peers, root and split sizes of one call; ranks are numbered within its process group."""

    peers: Sequence[int | None] = ()
    """The peer of each message of a point-to-point op; None for a recv from any rank. Empty for other ops."""
    root: int | None = None
    """The rank that a collective sends from or to; None if it has no root."""
    send_splits: tuple[int, ...] | None = None
    """Elements that this rank sends to each rank of the group; None if they are equal."""
    recv_splits: tuple[int, ...] | None = None
    """Elements that this rank receives from each rank of the group; None if they are equal."""


Reader = Callable[[Sequence[Any]], Parties | None]
"""Returns the parties of a call from the op's positional arguments."""


def _peer(position: int) -> Reader:
    return lambda args: Parties(peers=(_rank(args[position]),))


def _root(position: int) -> Reader:
    return lambda args: Parties(root=_rank(args[position]))


def _rank(argument: Any) -> int | None:
    """Return the rank; None under ``LocalTensorMode``, where one argument has the ranks of all calls."""
    return argument if isinstance(argument, int) else None


def _p2p_batch(args: Sequence[Any]) -> Parties:
    return Parties(peers=tuple(map(_rank, args[1])))


def _any_source(_args: Sequence[Any]) -> Parties:
    return Parties(peers=(None,))


def _splits(sent: Sequence[int], received: Sequence[int]) -> Parties | None:
    """Return the split sizes; None if all are equal."""
    if len({*sent, *received}) <= 1:
        return None
    return Parties(send_splits=tuple(sent), recv_splits=tuple(received))


def _list_splits(received: int, sent: int) -> Reader:
    """Return a reader of split sizes: the sizes of the tensors in two lists, at these positions."""

    def read(args: Sequence[Any]) -> Parties | None:
        return _splits(_element_counts(args[sent]), _element_counts(args[received]))

    return read


def _element_counts(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [int(tensor.numel()) for tensor in tensors]


def _row_splits(received: int, sent: int, tensor: int) -> Reader:
    """Return a reader of split sizes in rows.

    Args:
        received: position of the numbers of rows to receive; an empty list means equal splits.
        sent: position of the numbers of rows to send; an empty list means equal splits.
        tensor: position of a tensor with such rows.
    """

    def read(args: Sequence[Any]) -> Parties | None:
        if not args[received] and not args[sent]:
            return None
        rows = int(args[tensor].shape[0])
        elements = prod(map(int, args[tensor].shape[1:]))
        n = max(len(args[received]), len(args[sent]))
        equal = [rows // n] * n
        return _splits(
            [int(split) * elements for split in args[sent] or equal],
            [int(split) * elements for split in args[received] or equal],
        )

    return read


PARTIES: dict[str, Reader] = {
    "c10d::send": _peer(2),
    "c10d::recv_": _peer(2),
    "c10d::recv_any_source_": _any_source,
    "c10d::broadcast_": _root(2),
    "c10d::reduce_": _root(3),
    "c10d::gather_": _root(3),
    "c10d::gather_into_tensor_": _root(3),
    "c10d::scatter_": _root(3),
    "c10d::alltoall_": _list_splits(0, 1),
    "c10d::alltoall_base_": _row_splits(3, 4, 1),
    "_c10d_functional::all_to_all_single": _row_splits(1, 2, 0),
    "_c10d_functional::broadcast": _root(1),
    "_c10d_functional::broadcast_": _root(1),
    "_c10d_functional::isend": _peer(1),
    "_c10d_functional::irecv": _peer(1),
    "_c10d_functional::batch_p2p_ops": _p2p_batch,
    "symm_mem::multimem_one_shot_reduce_out": _root(2),
    "symm_mem::tile_reduce": _root(2),
}
"""By raw op."""
