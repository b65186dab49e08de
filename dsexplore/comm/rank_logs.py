"""A rank's log in the form that it is sent in, so that all logs can be compared: plain numbers, a few bytes per call.

The k-th call of one name on one group is the same collective on every rank of it, so each call is known by its number
among those that its rank has logged, whether the rank still has the ones before it or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsexplore.comm.log_records import Record

MOST_CALLS = 2_000
"""How many calls of each name on each group are compared, the last ones."""
_POINT_TO_POINT = ("send", "recv")
Key = tuple[str, tuple[int, ...], str]
"""A group's name, its ranks, and an op's name in the log."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """The calls of one op on one group that a rank logged, in order of issue."""

    sizes: npt.NDArray[np.int64]
    """Message bytes."""
    seconds: Floats
    """NaN for a call that was not timed."""
    is_even: bool = True
    """Whether all ranks send messages of one size."""
    first: int = 0
    """The number of the first one; those before are no longer in the log, or are too many to be compared."""

    @property
    def end(self) -> int:
        """The number of the call after the last."""
        return self.first + len(self.sizes)


@dataclass(frozen=True)
class RankLog:
    """One rank's log, small enough to send."""

    rank: int
    series: Mapping[Key, Series]


def numbered(records: Iterable[Record], dropped: Mapping[Key, int] | None = None) -> Iterator[tuple[Key, int, Record]]:
    """The lines of collectives, each with its number among all of its name and group that this rank has logged.

    Args:
        records: the lines that the log still has, without those out of their places (`Earlier.out_of_place`).
        dropped: how many lines before those it no longer has.
    """
    counts: defaultdict[Key, int] = defaultdict(int, dropped or {})
    for record in records:
        if is_matched(record):
            key = key_of(record)
            yield key, counts[key], record
            counts[key] += 1


def rank_log(records: Iterable[Record], rank: int, dropped: Mapping[Key, int] | None = None) -> RankLog:
    """The log of this rank in the form that the other ranks get.

    Args:
        records: see `numbered`.
        rank: whose.
        dropped: see `numbered`.
    """
    calls: dict[Key, list[tuple[int, int, float]]] = defaultdict(list)
    uneven: set[Key] = set()
    for key, number, record in numbered(records, dropped):
        if not has_one_size(record):
            uneven.add(key)
        seconds = record.seconds
        calls[key].append((number, record.bytes, float("nan") if seconds is None else seconds))
    series = {}
    for key, of_key in calls.items():
        numbers, sizes, times = zip(*of_key[-MOST_CALLS:], strict=True)
        series[key] = Series(np.array(sizes, np.int64), np.array(times, np.float64), key not in uneven, numbers[0])
    return RankLog(rank, series)


def is_matched(record: Record) -> bool:
    """Whether a line is one of a collective, which all ranks of its group make."""
    return record.op not in _POINT_TO_POINT and not record.switched_off


def has_one_size(record: Record) -> bool:
    """Whether all ranks of the group send a message of that size; objects and the parts of an all_to_all may differ."""
    return record.op != "all_to_all" and not record.is_object


def key_of(record: Record) -> Key:
    """The group and the name of a line."""
    return record.group.name, record.group.ranks, record.name
