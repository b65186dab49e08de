"""Upper bounds on values in files: larger ones are damage, and no memory is reserved for them."""

from __future__ import annotations

from collections.abc import Iterable

MOST_RANKS = 1 << 20
"""Ranks of one job; a larger number is a time, a job's number or damage."""
MOST_ELEMENTS = 1 << 38
"""Elements of one tensor: of float32, a tebibyte."""
MOST_TIME = 1 << 62
"""Nanoseconds since the epoch, and any other whole number of a file; the tables' columns have 64 bits."""


def checked_number(number: int) -> int:
    """Return `number`.

    Raises:
        ValueError: it is beyond ±`MOST_TIME`.
    """
    if abs(number) > MOST_TIME:
        raise ValueError(f"{number} is beyond 64 bits")
    return number


def checked_ranks(ranks: Iterable[int]) -> tuple[int, ...]:
    """Return `ranks`.

    Raises:
        ValueError: one of them is negative or not below `MOST_RANKS`.
    """
    checked = tuple(ranks)
    for rank in checked:
        if not 0 <= rank < MOST_RANKS:
            raise ValueError(f"rank {rank} is none of a job's, which has up to {MOST_RANKS:,}")
    return checked
