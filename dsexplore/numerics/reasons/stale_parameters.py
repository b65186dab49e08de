"""Ranks began with different values of a parameter that each of them holds whole."""

from __future__ import annotations

from collections.abc import Iterator

from dsexplore.numerics.compared_runs import Comparison
from dsexplore.numerics.reasons.match import Match


def unsynchronized(comparison: Comparison) -> dict[str, tuple[int, ...]]:
    """Return {parameter: the ranks that hold other values than the first rank has}, before the first step."""
    found: dict[str, tuple[int, ...]] = {}
    for name, rank in _each(comparison):
        found[name] = (*found.get(name, ()), rank)
    return found


def match_of(names: dict[str, tuple[int, ...]]) -> Match:
    """Return what to say of parameters that are not synchronized."""
    first = next(iter(names))
    which = first if len(names) == 1 else f"{len(names)} parameters, {first} among them,"
    verb = "has" if len(names) == 1 else "have"
    return Match(
        "stale parameters",
        f"{which} {verb} other values than on rank 0 before the first step",
        "broadcast parameters and buffers from one rank before training, or seed all ranks alike where they are made",
    )


def _each(comparison: Comparison) -> Iterator[tuple[str, int]]:
    for record in comparison.ranks:
        for name in record.unsynchronized:
            yield name, record.rank
