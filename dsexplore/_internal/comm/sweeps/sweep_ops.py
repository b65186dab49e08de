"""The ops of a sweep: their buffers at a size, the call that is timed, and the expected result.

Element i of rank r's input is ``i % 97 + r``: a whole number, so that sums are exact, and different on each rank. In
place, an all_gather's input and a reduce_scatter's output are this rank's part of the other buffer, as with nccl-tests.
torch's all_reduce, broadcast and reduce work in place only; out of place they copy first, as functional collectives do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as td

PERIOD = 97
IN_PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
SWEPT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send")
"""The ops that a sweep measures; ``send`` is each rank's message to the next, as nccl-tests' sendrecv."""
IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Ops that are also measured in place."""
CHECKED = 1 << 14
"""Number of elements at each end of a result that are compared."""


@dataclass(frozen=True)
class Ranks:
    """The group of a sweep, and this rank's number in it."""

    group: Any
    rank: int
    size: int
    device: torch.device
    dtype: torch.dtype

    def to_global(self, rank: int) -> int:
        """Return the global rank of a rank of the group."""
        return td.get_global_rank(self.group, rank)


@dataclass(frozen=True)
class Prepared:
    """One op at one size, ready to be called.

    Attributes:
        call: runs the collective, and returns when it is done or, on GPUs, when it is queued.
        refill: writes the input, which a call in place has overwritten.
        result: what the call wrote on this rank; None if this rank receives nothing.
        expected: returns the expected elements of `result` at given indices.
        message_bytes: message bytes S.
    """

    call: Callable[[], None]
    refill: Callable[[], None]
    result: torch.Tensor | None
    expected: Callable[[torch.Tensor], torch.Tensor]
    message_bytes: int


def elements(op: str, message_bytes: int, ranks: Ranks) -> int:
    """Return the number of elements of a rank's part, or of the whole buffer for ops without parts."""
    parts = ranks.size if op in IN_PARTS else 1
    return message_bytes // ranks.dtype.itemsize // parts


def prepare(op: str, message_bytes: int, in_place: bool, ranks: Ranks) -> Prepared:
    """Allocate the buffers of an op; sizes are rounded down to whole elements for each rank."""
    count = elements(op, message_bytes, ranks)
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
    return make(count, in_place, ranks)


def wrong_elements(prepared: Prepared) -> int:
    """Run the call once on fresh input, and count the wrong elements at both ends of the result."""
    if prepared.result is not None:
        prepared.result.fill_(-1)  # of no rank's input
    prepared.refill()
    prepared.call()
    if prepared.result is None:
        return 0
    last = prepared.result.numel()
    ends = torch.arange(min(CHECKED, last), device=prepared.result.device)
    places = torch.cat([ends, last - 1 - ends])
    return int((prepared.result[places] != prepared.expected(places)).sum())


def _pattern(places: torch.Tensor, rank: int | torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (places % PERIOD + rank).to(dtype)


def _filled(count: int, ranks: Ranks, rank: int | None = None) -> torch.Tensor:
    places = torch.arange(count, device=ranks.device)
    return _pattern(places, ranks.rank if rank is None else rank, ranks.dtype)


def _sum(places: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    total = ranks.size * (places % PERIOD) + ranks.size * (ranks.size - 1) // 2
    return total.to(ranks.dtype)


def _bytes(count: int, ranks: Ranks) -> int:
    return count * ranks.dtype.itemsize


def _single_buffer(
    count: int, in_place: bool, ranks: Ranks, collective: Callable[[torch.Tensor], None]
) -> tuple[torch.Tensor, Callable[[], None], Callable[[], None]]:
    """Return a buffer that the collective overwrites, the call, and the refill; out of place, the call copies first."""
    source = _filled(count, ranks)
    target = torch.empty_like(source)

    def refill() -> None:
        target.copy_(source)

    def call() -> None:
        if not in_place:
            target.copy_(source)
        collective(target)

    return target, call, refill


def _all_reduce(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    target, call, refill = _single_buffer(count, in_place, ranks, lambda t: _done(td.all_reduce(t, group=ranks.group)))
    return Prepared(call, refill, target, lambda places: _sum(places, ranks), _bytes(count, ranks))


def _broadcast(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    root = ranks.to_global(0)
    target, call, refill = _single_buffer(
        count, in_place, ranks, lambda t: _done(td.broadcast(t, root, group=ranks.group))
    )
    return Prepared(call, refill, target, lambda p: _pattern(p, 0, ranks.dtype), _bytes(count, ranks))


def _reduce(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    root = ranks.to_global(0)
    target, call, refill = _single_buffer(
        count, in_place, ranks, lambda t: _done(td.reduce(t, root, group=ranks.group))
    )
    result = target if ranks.rank == 0 else None
    return Prepared(call, refill, result, lambda places: _sum(places, ranks), _bytes(count, ranks))


def _from_all_ranks(count: int, ranks: Ranks) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function for the expected elements of a buffer with one part from each rank."""
    return lambda places: _pattern(places % count, places // count, ranks.dtype)


def _all_gather(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    gathered = torch.empty(count * ranks.size, dtype=ranks.dtype, device=ranks.device)
    local_part = (
        gathered[ranks.rank * count : (ranks.rank + 1) * count] if in_place else torch.empty_like(gathered[:count])
    )
    source = _filled(count, ranks)
    return Prepared(
        lambda: _done(td.all_gather_into_tensor(gathered, local_part, group=ranks.group)),
        lambda: _done(local_part.copy_(source)),
        gathered,
        _from_all_ranks(count, ranks),
        _bytes(count * ranks.size, ranks),
    )


def _reduce_scatter(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    source = _filled(count * ranks.size, ranks)
    given = source.clone() if in_place else source
    first = ranks.rank * count
    local_part = given[first : first + count] if in_place else torch.empty_like(source[:count])
    return Prepared(
        lambda: _done(td.reduce_scatter_tensor(local_part, given, group=ranks.group)),
        lambda: _done(given.copy_(source)) if in_place else None,
        local_part,
        lambda places: _sum(places + first, ranks),
        _bytes(count * ranks.size, ranks),
    )


def _all_to_all(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    source = _filled(count, ranks).repeat(ranks.size)
    received = torch.empty_like(source)
    return Prepared(
        lambda: _done(td.all_to_all_single(received, source, group=ranks.group)),
        lambda: None,
        received,
        _from_all_ranks(count, ranks),
        _bytes(count * ranks.size, ranks),
    )


def _gather(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    source, root = _filled(count, ranks), ranks.to_global(0)
    gathered = torch.empty(count * ranks.size if ranks.rank == 0 else 0, dtype=ranks.dtype, device=ranks.device)
    parts = list(gathered.split(count)) if ranks.rank == 0 else None
    return Prepared(
        lambda: _done(td.gather(source, parts, dst=root, group=ranks.group)),
        lambda: None,
        gathered if ranks.rank == 0 else None,
        _from_all_ranks(count, ranks),
        _bytes(count * ranks.size, ranks),
    )


def _scatter(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    root, local_part = ranks.to_global(0), torch.empty(count, dtype=ranks.dtype, device=ranks.device)
    parts = [_filled(count, ranks, rank) for rank in range(ranks.size)] if ranks.rank == 0 else None
    return Prepared(
        lambda: _done(td.scatter(local_part, parts, src=root, group=ranks.group)),
        lambda: None,
        local_part,
        lambda places: _pattern(places, ranks.rank, ranks.dtype),
        _bytes(count * ranks.size, ranks),
    )


def _send(count: int, in_place: bool, ranks: Ranks) -> Prepared:
    source = _filled(count, ranks)
    received = torch.empty_like(source)
    before, after = (ranks.to_global((ranks.rank + step) % ranks.size) for step in (-1, 1))

    def call() -> None:
        exchange = [
            td.P2POp(td.isend, source, after, group=ranks.group),
            td.P2POp(td.irecv, received, before, group=ranks.group),
        ]
        for work in td.batch_isend_irecv(exchange):
            work.wait()

    expected = (ranks.rank - 1) % ranks.size
    return Prepared(call, lambda: None, received, lambda p: _pattern(p, expected, ranks.dtype), _bytes(count, ranks))


def _done(_: Any) -> None:
    """Discard the value of a call."""
