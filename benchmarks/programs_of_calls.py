"""Programs of single calls that four ranks run, for `all_ranks.py`: every call of c10d, functional or of DTensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

RANKS = 4
Program = Callable[[], object]
WIDTH = 8
_IN_PAIRS = {0: (0, 2), 2: (0, 2), 1: (1, 3), 3: (1, 3)}


def line(name: str = "dp") -> DeviceMesh:
    """Return a mesh of all ranks."""
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=(name,))


def square() -> DeviceMesh:
    """Return a mesh of two by two ranks."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))


def _list(count: int, like: Tensor) -> list[Tensor]:
    return [torch.zeros_like(like) for _ in range(count)]


def _calls(x: Tensor, group: Any, ranks: tuple[int, ...]) -> dict[str, Program]:
    """Return calls on a tensor, whose length all sizes divide, over a group of these ranks."""
    count, me = len(ranks), ranks.index(dist.get_rank())
    first, last = ranks[0], ranks[-1]
    part = x[: len(x) // count].clone()
    after, before = ranks[(me + 1) % count], ranks[me - 1]
    uneven = [1 + (me + place) % 2 for place in range(count)]

    def coalesced() -> None:
        dist.all_reduce_coalesced([x.clone(), part.clone()], group=group)

    def ring() -> None:
        work = dist.isend(x, after, group=group)
        dist.recv(torch.zeros_like(x), before, group=group)
        assert work is not None
        work.wait()

    def batch() -> None:
        calls = [dist.P2POp(dist.isend, x, after, group), dist.P2POp(dist.irecv, torch.zeros_like(x), before, group)]
        for work in dist.batch_isend_irecv(calls):
            work.wait()

    def waited() -> None:
        work = dist.all_reduce(x.clone(), group=group, async_op=True)
        assert work is not None
        work.wait()

    def gather() -> None:
        dist.gather(x, _list(count, x) if dist.get_rank() == first else None, dst=first, group=group)

    def scatter() -> None:
        parts = list(x.chunk(count)) if dist.get_rank() == last else None
        dist.scatter(torch.zeros_like(part), parts, src=last, group=group)

    def unevenly() -> None:
        received = [1 + (place + me) % 2 for place in range(count)]
        dist.all_to_all_single(x.new_zeros(sum(received)), x[: sum(uneven)].clone(), received, uneven, group=group)

    def objects() -> None:
        dist.broadcast_object_list([1, "two"], src=first, group=group)
        dist.all_gather_object([None] * count, "one", group=group)

    return {
        "all_reduce": lambda: dist.all_reduce(x.clone(), group=group),
        "all_reduce of the largest": lambda: dist.all_reduce(x.clone(), dist.ReduceOp.MAX, group=group),
        "all_reduce that is waited for": waited,
        "all_reduce_coalesced": coalesced,
        "broadcast": lambda: dist.broadcast(x.clone(), src=last, group=group),
        "reduce": lambda: dist.reduce(x.clone(), dst=last, group=group),
        "all_gather": lambda: dist.all_gather(_list(count, x), x, group=group),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(x.repeat(count), x, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter(part.clone(), list(x.chunk(count)), group=group),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(part.clone(), x, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros_like(x), x, group=group),
        "all_to_all_single, uneven": unevenly,
        "gather": gather,
        "scatter": scatter,
        "barrier": lambda: dist.barrier(group=group),
        "ring": ring,
        "batch_isend_irecv": batch,
        "objects": objects,
    }


def calls(name: str, *, in_pairs: bool, dtype: torch.dtype) -> None:
    """Make one call of c10d, on all ranks or in two pairs of them."""
    ranks: tuple[int, ...] = tuple(range(RANKS))
    group = None
    if in_pairs:
        groups = {pair: dist.new_group(list(pair)) for pair in ((0, 2), (1, 3))}
        ranks = _IN_PAIRS[dist.get_rank()]
        group = groups[ranks]
    _calls(torch.ones(8, dtype=dtype), group, ranks)[name]()


NAMES_OF_CALLS = (
    *("all_reduce", "all_reduce of the largest", "all_reduce that is waited for", "all_reduce_coalesced", "broadcast"),
    *("reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("all_to_all_single", "all_to_all_single, uneven", "gather", "scatter", "barrier", "ring", "batch_isend_irecv"),
    "objects",
)


FUNCTIONAL: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "all_reduce": lambda x, group: funcol.all_reduce(x, "sum", group),
    "all_gather_tensor": lambda x, group: funcol.all_gather_tensor(x, 0, group),
    "reduce_scatter_tensor": lambda x, group: funcol.reduce_scatter_tensor(x, "sum", 0, group),
    "all_to_all_single": lambda x, group: funcol.all_to_all_single(x, None, None, group),
    "broadcast": lambda x, group: funcol.broadcast(x, 0, group),
}


def functional(call: Callable[[Tensor, Any], Tensor], *, axis: str) -> None:
    """Make one functional call over an axis."""
    mesh = line() if axis == "dp of one" else square()
    funcol.wait_tensor(call(torch.ones(8), (mesh, 0 if axis != "tp" else 1)))


R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()
PAIRS = [(R, S0), (R, S1), (S0, R), (S0, S1), (S1, R), (S1, S0), (P, R), (P, S0), (P, S1)]
PAIRS_OF_TWO: list[tuple[tuple[Any, ...], tuple[Any, ...]]] = [
    ((S0, R), (R, R)),
    ((S0, S0), (R, R)),
    ((S0, S1), (S1, S0)),
    ((P, P), (R, R)),
    ((P, S0), (S0, R)),
    ((R, S1), (S1, R)),
]
PRODUCTS = [(S0, R), (R, S1), (S1, S0), (S0, S1), (R, R), (P, R)]


def redistribute(before: tuple[Any, ...], after: tuple[Any, ...], *, rows: int) -> None:
    """Change the placements of a tensor."""
    mesh = line() if len(before) == 1 else square()
    whole = distribute_tensor(torch.ones(rows, 8), mesh, [R] * len(before))
    if any(isinstance(one, Partial) for one in before):
        others = [R if isinstance(one, Partial) else one for one in before]
        local = whole.redistribute(mesh, others).to_local()
        placed = DTensor.from_local(local, mesh, list(before), run_check=False)
    else:
        placed = whole.redistribute(mesh, list(before))
    placed.redistribute(mesh, list(after))


def multiply(left: Any, right: Any) -> None:
    """Multiply two tensors with these placements, and gather the result."""
    mesh = line()
    one, other = (DTensor.from_local(torch.ones(RANKS, RANKS), mesh, [placement]) for placement in (left, right))
    inner = min(one.shape[1], other.shape[0])
    (one[:, :inner] @ other[:inner]).full_tensor()
