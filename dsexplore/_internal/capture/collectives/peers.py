"""Between whom a message goes: the peer of a send or recv, the root of a rooted collective, and uneven split sizes.

Most collectives involve all ranks of their group in the same way: for their ops `PARTIES` has no entry, and nothing is
read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import torch


class Parties(NamedTuple):
    """The peers, root and split sizes of one call; ranks are numbered within its process group."""

    peers: Sequence[int | None] = ()
    """One per message, where the op sends or receives from point to point; None for a recv from any rank."""
    root: int | None = None
    """The rank that a collective sends from or to; None if it has no root."""
    send_splits: tuple[int, ...] | None = None
    """Elements that this rank sends to each rank of the group; None if they are equal."""
    recv_splits: tuple[int, ...] | None = None
    """Elements that this rank receives from each rank of the group; None if they are equal."""


Reader = Callable[[Sequence[Any]], Parties | None]
"""From an op's positional arguments."""


def _peer(position: int) -> Reader:
    return lambda args: Parties(peers=(_rank(args[position]),))


def _root(position: int) -> Reader:
    return lambda args: Parties(root=_rank(args[position]))


def _rank(given: Any) -> int | None:
    """Return the rank; None under ``LocalTensorMode``, where one call stands for those of all ranks."""
    return given if isinstance(given, int) else None


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
    def read(args: Sequence[Any]) -> Parties | None:
        lists = (args[sent], args[received])
        return _splits(*([int(tensor.numel()) for tensor in tensors] for tensors in lists))

    return read


def _row_splits(received: int, sent: int, tensor: int) -> Reader:
    """Return a reader of split sizes in rows.

    Args:
        received: position of the sizes to receive; an empty list means even.
        sent: position of the sizes to send.
        tensor: position of a tensor with such rows.
    """

    def read(args: Sequence[Any]) -> Parties | None:
        if not args[received] and not args[sent]:
            return None
        row = prod(map(int, args[tensor].shape[1:]))
        n = max(len(args[received]), len(args[sent]))
        sizes = [args[which] or _even(args[tensor], n) for which in (sent, received)]
        return _splits(*([int(size) * row for size in part_sizes] for part_sizes in sizes))

    return read


def _even(tensor: torch.Tensor, n: int) -> list[int]:
    return [int(tensor.shape[0]) // n] * n


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
