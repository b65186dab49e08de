"""Upper bounds on values in files: larger ones are damage, and no memory is reserved for them."""

from __future__ import annotations

from collections.abc import Iterable

MOST_RANKS = 1 << 20
"""Ranks of one job; a larger number in a file is a time, the number of a job, or damage."""
MOST_ELEMENTS = 1 << 38
"""Elements of one tensor; in float32 they take a tebibyte."""
MOST_NUMBER = 1 << 62
"""Any whole number of a file, including nanoseconds since the epoch; the tables' columns have 64 bits."""


def checked_number(number: int) -> int:
    """Return `number`.

    Raises:
        ValueError: it is beyond ±`MOST_NUMBER`.
    """
    if abs(number) > MOST_NUMBER:
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
            raise ValueError(f"{rank} is not a rank: a job has up to {MOST_RANKS:,}")
    return checked
