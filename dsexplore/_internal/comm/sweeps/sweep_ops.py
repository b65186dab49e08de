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
class SweptGroup:
    """The process group that a sweep measures, and with what tensors."""

    group: Any
    rank: int
    """This rank's number in the group."""
    size: int
    device: torch.device
    dtype: torch.dtype

    def to_global(self, rank: int) -> int:
        """Return the global rank of a rank of the group."""
        return td.get_global_rank(self.group, rank)

    def empty(self, count: int) -> torch.Tensor:
        """Return a buffer of `count` elements."""
        return torch.empty(count, dtype=self.dtype, device=self.device)

    def pattern(self, places: torch.Tensor, rank: int | torch.Tensor) -> torch.Tensor:
        """Return the elements at given indices of a rank's input."""
        return (places % PERIOD + rank).to(self.dtype)

    def input_of(self, rank: int, count: int) -> torch.Tensor:
        """Return the input of a rank."""
        return self.pattern(torch.arange(count, device=self.device), rank)

    def sum_at(self, places: torch.Tensor) -> torch.Tensor:
        """Return the sum over all ranks of the elements at given indices."""
        return (self.size * (places % PERIOD) + self.size * (self.size - 1) // 2).to(self.dtype)

    def reduced(self, value: float, op: Any) -> float:
        """Return a number of each rank, reduced over the group."""
        joined = torch.tensor([value], dtype=torch.float64, device=self.device)
        td.all_reduce(joined, op=op, group=self.group)
        return float(joined.item())

    def synchronize(self) -> None:
        """Wait for the device, if it is a GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True)
class Prepared:
    """One op at one size, ready to be called."""

    call: Callable[[], None]
    """Runs the collective, and returns when it is done or, on GPUs, when it is queued."""
    refill: Callable[[], None]
    """Writes the input, which a call in place has overwritten."""
    result: torch.Tensor | None
    """What the call writes on this rank; None if this rank receives nothing."""
    expected: Callable[[torch.Tensor], torch.Tensor]
    """Returns the expected elements of `result` at given indices."""


def elements(op: str, message_bytes: int, swept: SweptGroup) -> int:
    """Return the number of elements of a rank's part, or of the whole buffer for ops without parts."""
    parts = swept.size if op in IN_PARTS else 1
    return message_bytes // swept.dtype.itemsize // parts


def prepare(op: str, message_bytes: int, in_place: bool, swept: SweptGroup) -> Prepared:
    """Allocate the buffers of an op; sizes are rounded down to whole elements for each rank."""
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


def _single_buffer(
    count: int, in_place: bool, swept: SweptGroup, collective: Callable[[torch.Tensor], None]
) -> tuple[torch.Tensor, Callable[[], None], Callable[[], None]]:
    """Return a buffer that the collective overwrites, the call, and the refill; out of place, the call copies first."""
    source = swept.input_of(swept.rank, count)
    target = torch.empty_like(source)

    def refill() -> None:
        target.copy_(source)

    def call() -> None:
        if not in_place:
            target.copy_(source)
        collective(target)

    return target, call, refill


def _all_reduce(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    target, call, refill = _single_buffer(count, in_place, swept, lambda t: _done(td.all_reduce(t, group=swept.group)))
    return Prepared(call, refill, target, swept.sum_at)


def _broadcast(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    root = swept.to_global(0)
    target, call, refill = _single_buffer(count, in_place, swept, lambda t: _done(td.broadcast(t, root, swept.group)))
    return Prepared(call, refill, target, lambda places: swept.pattern(places, 0))


def _reduce(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    root = swept.to_global(0)
    target, call, refill = _single_buffer(
        count, in_place, swept, lambda t: _done(td.reduce(t, root, group=swept.group))
    )
    return Prepared(call, refill, target if swept.rank == 0 else None, swept.sum_at)


def _all_gather(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    gathered = swept.empty(count * swept.size)
    local_part = gathered.split(count)[swept.rank] if in_place else swept.empty(count)
    source = swept.input_of(swept.rank, count)
    return Prepared(
        lambda: _done(td.all_gather_into_tensor(gathered, local_part, group=swept.group)),
        lambda: _done(local_part.copy_(source)),
        gathered,
        lambda places: swept.pattern(places % count, places // count),
    )


def _reduce_scatter(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source = swept.input_of(swept.rank, count * swept.size)
    given = source.clone() if in_place else source
    local_part = given.split(count)[swept.rank] if in_place else swept.empty(count)
    return Prepared(
        lambda: _done(td.reduce_scatter_tensor(local_part, given, group=swept.group)),
        lambda: _done(given.copy_(source)) if in_place else None,
        local_part,
        lambda places: swept.sum_at(places + swept.rank * count),
    )


def _all_to_all(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source = swept.input_of(swept.rank, count).repeat(swept.size)
    received = torch.empty_like(source)
    return Prepared(
        lambda: _done(td.all_to_all_single(received, source, group=swept.group)),
        lambda: None,
        received,
        lambda places: swept.pattern(places % count, places // count),
    )


def _gather(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source, root = swept.input_of(swept.rank, count), swept.to_global(0)
    gathered = swept.empty(count * swept.size if swept.rank == 0 else 0)
    parts = list(gathered.split(count)) if swept.rank == 0 else None
    return Prepared(
        lambda: _done(td.gather(source, parts, dst=root, group=swept.group)),
        lambda: None,
        gathered if swept.rank == 0 else None,
        lambda places: swept.pattern(places % count, places // count),
    )


def _scatter(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    root, local_part = swept.to_global(0), swept.empty(count)
    parts = [swept.input_of(rank, count) for rank in range(swept.size)] if swept.rank == 0 else None
    return Prepared(
        lambda: _done(td.scatter(local_part, parts, src=root, group=swept.group)),
        lambda: None,
        local_part,
        lambda places: swept.pattern(places, swept.rank),
    )


def _send(count: int, in_place: bool, swept: SweptGroup) -> Prepared:
    source = swept.input_of(swept.rank, count)
    received = torch.empty_like(source)
    before, after = (swept.to_global((swept.rank + step) % swept.size) for step in (-1, 1))

    def call() -> None:
        exchange = [
            td.P2POp(td.isend, source, after, group=swept.group),
            td.P2POp(td.irecv, received, before, group=swept.group),
        ]
        for work in td.batch_isend_irecv(exchange):
            work.wait()

    expected = (swept.rank - 1) % swept.size
    return Prepared(call, lambda: None, received, lambda p: swept.pattern(p, expected))


def _done(_: Any) -> None:
    """Discard the value of a call."""
