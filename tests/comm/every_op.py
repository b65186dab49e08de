"""One program that calls each op, by the names that torch, DeepSpeed and dsexplore have for it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as td

from dsexplore._internal.torch_internals.names import torch_at_least

GLOO_SWAPS_LISTS = torch_at_least("2.12")
"""True if gloo has ``all_to_all`` of lists; that of torch 2.11 does not."""


def every_op(module: Any) -> None:
    """Issue each op that one of torch's functions issues: 24 bytes per rank, and n(n + 1)/2 elements unevenly
    divided."""
    n, rank = td.get_world_size(), td.get_rank()
    part, whole, parts = torch.ones(6), torch.ones(6 * n), [torch.ones(6) for _ in range(n)]
    module.all_reduce(part)
    module.broadcast(part, 0)
    module.reduce(part, 0)
    module.all_gather(parts, part)
    module.all_gather_into_tensor(whole, part)
    module.reduce_scatter(part, parts)
    module.reduce_scatter_tensor(part, whole)
    module.all_to_all_single(torch.empty(6 * n), whole)
    if GLOO_SWAPS_LISTS:
        module.all_to_all([torch.empty(6) for _ in range(n)], parts)
    module.gather(part, parts if rank == 0 else None, 0)
    module.scatter(part, parts if rank == 0 else None, 0)
    module.barrier()
    uneven = torch.ones(n * (n + 1) // 2)
    takes = [rank + 1] * n
    module.all_to_all_single(torch.empty(sum(takes)), uneven, takes, [k + 1 for k in range(n)])
    if rank == 0:
        module.send(part, 1)
    elif rank == 1:
        module.recv(part, 0)
    for work in (module.all_reduce(part, async_op=True), module.broadcast(part, 0, async_op=True)):
        work.wait()
