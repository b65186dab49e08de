"""Async tensor parallelism: collectives run in pieces, overlapped with the matrix products around them.

Torch does so for compiled modules with symmetric memory (``torch._inductor.config._micro_pipeline_tp``), Megatron with
``--tp-comm-overlap``. A product begins on the rank's own part while the others' are under way, so of an all_gather
before it only the first of as many pieces as ranks is waited for; of a reduce_scatter behind it only the last.

Pieces of an all_gather run beside the products on the same input: those of the same rows and depth, or of the same
module. Pieces of a reduce_scatter run beside the last product before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dsexplore._internal.cost.step.rank_program import Collective, Item, Kernels, Times, Wait

_OPS = ("all_gather", "reduce_scatter")
_SMALL = ("memory", "dispatch")
"""Kinds of kernels that may stand between a collective and its products."""


def in_pieces(items: Sequence[Item]) -> list[Item]:
    """Return the program with each collective inside a node split in two if a matrix product can overlap it."""
    program = list(items)
    seq = max((item.seq for item in program if isinstance(item, Collective)), default=0)
    position = 0
    while position < len(program):
        item = program[position]
        if isinstance(item, Collective) and _may_be_split(item):
            seq += 1
            split = _split_all_gather if item.op == "all_gather" else _split_reduce_scatter
            position = split(program, position, item, seq)
        position += 1
    return program


def _may_be_split(item: Collective) -> bool:
    return item.op in _OPS and item.sync in ("wait", "async") and item.link == "node" and item.ranks > 1


def _split_all_gather(program: list[Item], position: int, item: Collective, seq: int) -> int:
    """Split an all_gather in place, and return the position after the changed items."""
    awaited = _position_of_wait(program, position, item)
    last = _last_product(program, awaited) if awaited is not None else None
    if awaited is None or last is None:
        return position
    first, rest = _split(item, seq, 1)
    program[position] = first
    program.insert(last + 1, Wait(seq))
    program.insert(awaited + 1, rest)
    return last + 2


def _split_reduce_scatter(program: list[Item], position: int, item: Collective, seq: int) -> int:
    """Split a reduce_scatter in place, and return the position after the changed items."""
    before = position - 1
    while before >= 0 and _is_small(program[before]):
        before -= 1
    product = program[before] if before >= 0 else None
    if not isinstance(product, Kernels) or product.kind != "matmul" or product.phase != item.phase:
        return position
    rest, last = _split(item, seq, item.ranks - 1)
    program[position] = replace(last, seq=item.seq, sync=item.sync)
    program.insert(position, Wait(seq))
    program.insert(before, replace(rest, seq=seq, sync="async"))
    return position + 2


def _split(item: Collective, seq: int, pieces: int) -> tuple[Collective, Collective]:
    """Split a collective in two: `pieces` of its pieces are waited for as before, the others later.

    Args:
        item: the collective; it has one piece per rank.
        seq: the number of the second part.
        pieces: number of pieces of the first part.
    """
    first, other = _part(item, pieces / item.ranks), _part(item, 1 - pieces / item.ranks)
    remaining = item.message_bytes - first.message_bytes
    return first, replace(other, seq=seq, message_bytes=remaining, sync="async")


def _part(item: Collective, part: float) -> Collective:
    """Return a part of a collective, which takes that part of its seconds and of the CPU's."""
    return replace(
        item,
        seconds=_scaled(item.seconds, part),
        host=_scaled(item.host, part),
        message_bytes=round(item.message_bytes * part),
    )


def _scaled(seconds: Times, part: float) -> Times:
    low, expected, high = seconds
    return low * part, expected * part, high * part


def _position_of_wait(program: list[Item], position: int, item: Collective) -> int | None:
    """Return the position of the wait for a collective; None if anything slow runs before it."""
    if item.sync == "wait":
        return position
    for later in range(position + 1, len(program)):
        candidate = program[later]
        if isinstance(candidate, Wait):
            return later if candidate.seq == item.seq else None
        if not _is_small(candidate):
            return None
    return None


def _last_product(program: list[Item], awaited: int) -> int | None:
    """Return the position of the last matrix product on the gathered tensor; None if there is none."""
    first: Kernels | None = None
    last = None
    for later in range(awaited + 1, len(program)):
        item = program[later]
        if _is_small(item):
            continue
        if not isinstance(item, Kernels) or item.kind != "matmul":
            break
        first = first or item
        if item.module != first.module and _rows_and_depth(item.shape) != _rows_and_depth(first.shape):
            break
        last = later
    return last


def _rows_and_depth(shape: Iterable[int]) -> tuple[int, ...]:
    """Return the rows m and the depth k of a product of shape (batch, m, n, k)."""
    return tuple(shape)[1::2]


def _is_small(item: Item) -> bool:
    return isinstance(item, Kernels) and item.kind in _SMALL
