"""The ops of a sweep: their buffers at a size, the call that is timed, and the expected result.

Element i of rank r's input is ``i % 97 + r``: a whole number, so that sums are exact, and different on each rank. In
place, the input of all_gather and the output of reduce_scatter are this rank's part of the other buffer, as in
nccl-tests. torch's all_reduce, broadcast and reduce are in place; out of place, the input is copied first, as
functional collectives do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as td

PERIOD = 97
IN_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
"""Ops with a buffer that is divided into one part per rank."""
SWEPT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send")
"""The ops that a sweep measures; ``send`` is each rank's message to the next, as nccl-tests' sendrecv."""
IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Ops that are also measured in place."""
CHECKED = 1 << 14
"""Number of elements at each end of a result that are compared."""


@dataclass(frozen=True)
class SweptGroup:
    """The process group that a sweep measures, and the device and dtype of the tensors."""

    group: Any
    rank: int
    """Rank of this process in the group."""
    size: int
    """Number of ranks in the group."""
    device: torch.device
    dtype: torch.dtype

    def to_global(self, rank: int) -> int:
        """Return the global rank of a rank of the group."""
        return td.get_global_rank(self.group, rank)

    def empty(self, count: int) -> torch.Tensor:
        """Return a buffer of `count` elements."""
        return torch.empty(count, dtype=self.dtype, device=self.device)

    def pattern(self, indices: torch.Tensor, rank: int | torch.Tensor) -> torch.Tensor:
        """Return the elements of a rank's input at `indices`."""
        return (indices % PERIOD + rank).to(self.dtype)

    def input_of(self, rank: int, count: int) -> torch.Tensor:
        """Return the first `count` elements of a rank's input."""
        return self.pattern(torch.arange(count, device=self.device), rank)

    def sum_at(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' inputs at `indices`."""
        return (self.size * (indices % PERIOD) + self.size * (self.size - 1) // 2).to(self.dtype)

    def reduced(self, number: float, op: Any) -> float:
        """Return a number of this rank, reduced with those of the other ranks."""
        tensor = torch.tensor([number], dtype=torch.float64, device=self.device)
        td.all_reduce(tensor, op=op, group=self.group)
        return float(tensor.item())

    def synchronize(self) -> None:
        """Wait for the device, if it is a GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Prepared:
    """One op at one size, ready to be called."""

    call: Callable[[], object]
    """Runs the collective, and returns when it is done or, on GPUs, when it is queued."""
    result: torch.Tensor | None
    """Tensor that the call writes on this rank; None if this rank receives nothing."""
    expected: Callable[[torch.Tensor], torch.Tensor]
    """Returns the expected elements of `result` at given indices."""
    refill: Callable[[], object] | None = None
    """Restores the input that a call in place has overwritten; None if the call does not overwrite its input."""


def elements(op: str, message_bytes: int, swept: SweptGroup) -> int:
    """Return the number of elements in a rank's part of the buffer, or in the whole buffer for ops without parts."""
    parts = swept.size if op in IN_PARTS else 1
    return message_bytes // swept.dtype.itemsize // parts


def prepare(op: str, message_bytes: int, in_place: bool, swept: SweptGroup) -> Prepared:
    """Allocate the buffers of an op; its size is rounded down to whole elements per rank."""
    count = elements(op, message_bytes, swept)
    make = {
        "all_reduce": _all_reduce,
        "all_gather": _all_gather,
        "reduce_scatter": _reduce_scatter,
        "all_to_all": _all_to_all,
        "broadcast": _broadcast,
        "reduce": _reduce,
        "gather": _gather,
        "scatter": _scatter,
        "send": _send,
    }[op]
    return make(count, in_place, swept)


def wrong_elements(prepared: Prepared) -> int:
    """Run the call once on fresh input; return the number of wrong elements at both ends of the result."""
    if prepared.result is not None:
        prepared.result.fill_(-1)  # a number that is in no rank's input
    if prepared.refill is not None:
        prepared.refill()
    prepared.call()
    if prepared.result is None:
        return 0
    numel = prepared.result.numel()
    ends = torch.arange(min(CHECKED, numel), device=prepared.result.device)
    indices = torch.cat([ends, numel - 1 - ends])
    return int((prepared.result[indices] != prepared.expected(indices)).sum())


def _prepare_in_place(
    count: int,
    in_place: bool,
    swept: SweptGroup,
    collective: Callable[[torch.Tensor], object],
    expected: Callable[[torch.Tensor], torch.Tensor],
) -> Prepared:
    """Prepare a collective that overwrites its input; out of place, the call copies the input first."""
    source = swept.input_of(swept.rank, count)
    target = torch.empty_like(source)

    def call() -> None:
        if not in_place:
            target.copy_(source)
        collective(target)

    return Prepared(call, result=target, expected=expected, refill=lambda: target.copy_(source))


def _all_reduce(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    return _prepare_in_place(
        count,
        in_place,
        swept=swept,
        collective=lambda tensor: td.all_reduce(tensor, group=swept.group),
        expected=swept.sum_at,
    )


def _broadcast(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    root = swept.to_global(0)
    return _prepare_in_place(
        count,
        in_place,
        swept=swept,
        collective=lambda tensor: td.broadcast(tensor, root, swept.group),
        expected=lambda indices: swept.pattern(indices, 0),
    )


def _reduce(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    root = swept.to_global(0)
    prepared = _prepare_in_place(
        count,
        in_place,
        swept=swept,
        collective=lambda tensor: td.reduce(tensor, root, group=swept.group),
        expected=swept.sum_at,
    )
    return prepared if swept.rank == 0 else replace(prepared, result=None)


def _all_gather(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    gathered = swept.empty(count * swept.size)
    local_part = gathered.split(count)[swept.rank] if in_place else swept.empty(count)
    source = swept.input_of(swept.rank, count)
    return Prepared(
        call=lambda: td.all_gather_into_tensor(gathered, local_part, group=swept.group),
        result=gathered,
        expected=lambda indices: swept.pattern(indices % count, indices // count),
        refill=lambda: local_part.copy_(source),
    )


def _reduce_scatter(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source = swept.input_of(swept.rank, count * swept.size)
    reduced = source.clone() if in_place else source
    local_part = reduced.split(count)[swept.rank] if in_place else swept.empty(count)
    return Prepared(
        call=lambda: td.reduce_scatter_tensor(local_part, reduced, group=swept.group),
        result=local_part,
        expected=lambda indices: swept.sum_at(indices + swept.rank * count),
        refill=(lambda: reduced.copy_(source)) if in_place else None,
    )


def _all_to_all(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source = swept.input_of(swept.rank, count).repeat(swept.size)
    received = torch.empty_like(source)
    return Prepared(
        call=lambda: td.all_to_all_single(received, source, group=swept.group),
        result=received,
        expected=lambda indices: swept.pattern(indices % count, indices // count),
    )


def _gather(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source, root = swept.input_of(swept.rank, count), swept.to_global(0)
    gathered = swept.empty(count * swept.size if swept.rank == 0 else 0)
    parts = list(gathered.split(count)) if swept.rank == 0 else None
    return Prepared(
        call=lambda: td.gather(source, parts, dst=root, group=swept.group),
        result=gathered if swept.rank == 0 else None,
        expected=lambda indices: swept.pattern(indices % count, indices // count),
    )


def _scatter(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    root, local_part = swept.to_global(0), swept.empty(count)
    parts = [swept.input_of(rank, count) for rank in range(swept.size)] if swept.rank == 0 else None
    return Prepared(
        call=lambda: td.scatter(local_part, parts, src=root, group=swept.group),
        result=local_part,
        expected=lambda indices: swept.pattern(indices, swept.rank),
    )


def _send(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source = swept.input_of(swept.rank, count)
    received = torch.empty_like(source)
    previous_rank, next_rank = (swept.rank - 1) % swept.size, (swept.rank + 1) % swept.size
    src, dst = swept.to_global(previous_rank), swept.to_global(next_rank)

    def call() -> None:
        exchange = [
            td.P2POp(td.isend, source, dst, group=swept.group),
            td.P2POp(td.irecv, received, src, group=swept.group),
        ]
        for work in td.batch_isend_irecv(exchange):
            work.wait()

    return Prepared(call, result=received, expected=lambda indices: swept.pattern(indices, previous_rank))
