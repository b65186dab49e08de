"""Clocks put onto one by the ends of collectives."""

from __future__ import annotations

from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.trace.clocks import ClockOffset, aligned, clock_offsets
from tests.trace.conftest import build

GROUPS = pl.DataFrame(
    [("a", [0, 1]), ("b", [1, 2]), ("alone", [3])],
    schema={"group": pl.String, "ranks": pl.List(pl.Int32)},
    orient="row",
)


def ends(rank: int, group: str, *at: int, op: str = "all_reduce", size: int = 2) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "group": group, "op": op, "group_size": size, "start": one - 5, "end": one, "state": "completed"}
        for one in at
    ]


def test_the_median_of_the_differences_counts() -> None:
    rows = [*ends(0, "a", 10, 20, 30), *ends(1, "a", 1010, 1020, 1032)]
    found = clock_offsets(build(rows, (0, 1)).events, GROUPS)
    assert (found[1].offset, found[1].spread, found[1].residual, found[1].collectives) == (1000, 0, 0, 3)
    moved = aligned(build(rows, (0, 1)).events, found)
    assert moved.filter(rank=1)["end"].to_list() == [10, 20, 32]
    assert moved.filter(rank=1)["start"].to_list() == [5, 15, 27]


def test_no_rank_ends_before_all_have_begun_so_the_offset_has_a_limit() -> None:
    """Rank 1 is 1,000 ahead, and always notices the end 3 later, which no end shows; each call lasts 5 on its rank."""
    rows = [*ends(0, "a", 10, 20, 30), *ends(1, "a", 1013, 1023, 1033)]
    found = clock_offsets(build(rows, (0, 1)).events, GROUPS)[1]
    assert (found.offset, found.residual, found.limit) == (1003, 0, 5)
    rows = [*ends(0, "a", 10, 20), *ends(1, "a", 510, 520), *ends(1, "b", 600), *ends(2, "b", 900)]
    assert clock_offsets(build(rows, (0, 1, 2)).events, GROUPS)[2].limit == 10


def test_where_begins_are_not_known_or_contradict_ends_there_is_no_limit() -> None:
    rows = [*ends(0, "a", 10, 20), *ends(1, "a", 1010, 1020)]
    for row in rows:
        row["start"] = None
    assert clock_offsets(build(rows, (0, 1)).events, GROUPS)[1].limit is None
    rows = [*ends(0, "a", 10, 20), *ends(1, "a", 1010, 1060)]
    assert clock_offsets(build(rows, (0, 1)).events, GROUPS)[1].limit is None


def test_ranks_are_related_over_others_and_a_lone_one_is_left() -> None:
    rows = [
        *ends(0, "a", 10, 20),
        *ends(1, "a", 510, 520),
        *ends(1, "b", 600),
        *ends(2, "b", 900),
        *ends(3, "alone", 7, size=1),
    ]
    found = clock_offsets(build(rows, (0, 1, 2, 3)).events, GROUPS)
    assert {rank: one.offset for rank, one in found.items()} == {0: 0, 1: 500, 2: 800}


def test_a_trace_that_began_later_is_matched_from_the_end() -> None:
    at = [20 * i for i in range(1, 9)]
    rows = [*ends(0, "a", 10, op="barrier"), *ends(0, "a", *at), *ends(1, "a", *(one + 100 for one in at))]
    assert clock_offsets(build(rows, (0, 1)).events, GROUPS)[1].offset == 100


def test_what_may_end_early_on_one_rank_does_not_count() -> None:
    rows = [*ends(0, "a", 10, op="broadcast"), *ends(1, "a", 99, op="broadcast")]
    assert clock_offsets(build(rows, (0, 1)).events, GROUPS) == {}


def test_an_offset_within_the_spread_is_none() -> None:
    rows = [*ends(0, "a", 10, 20, 30, 40), *ends(1, "a", 15, 12, 39, 38)]
    assert clock_offsets(build(rows, (0, 1)).events, GROUPS)[1].offset == 0


@given(st.integers(-(10**9), 10**9), st.lists(st.integers(-3, 3), min_size=3, max_size=30))
def test_a_shift_is_found_to_within_the_noise(shift: int, noise: list[int]) -> None:
    at = [1_000 * i for i in range(len(noise))]
    rows = [*ends(0, "a", *at), *ends(1, "a", *(one + shift + off for one, off in zip(at, noise, strict=True)))]
    assert abs(clock_offsets(build(rows, (0, 1)).events, GROUPS)[1].offset - shift) <= 3


def test_of_many_collectives_the_median_of_all_ends_counts() -> None:
    """Rank 0 ends four of ten late and rank 1 four others early, so eight of ten of their ends are 10 ns too near."""
    noise = {0: [10, 10, 10, 10, 0, 0, 0, 0, 0, 0], 1: [0, 0, 0, 0, -10, -10, -10, -10, 0, 0]}
    ahead = {0: 0, 1: 10**9, 2: -(10**9), 3: 5, 4: 7}
    group = pl.DataFrame([("all", list(ahead))], schema=GROUPS.schema, orient="row")

    def found(collectives: int) -> dict[int, ClockOffset]:
        rows = []
        for rank, shift in ahead.items():
            late = noise.get(rank, [0] * 10)
            rows += ends(rank, "all", *(10**18 + 1_000 * i + shift + late[i % 10] for i in range(collectives)))
        return clock_offsets(build(rows, tuple(ahead)).events, group)

    many = found(160)
    assert {rank: one.offset for rank, one in many.items()} == ahead
    assert {one.residual for one in many.values()} == {0}
    assert found(40)[1].offset == 10**9 - 10  # by the pair alone


def test_ranks_that_share_a_clock_have_one_offset_that_no_busy_rank_moves() -> None:
    """Rank 1 notices all ends 3 ms late, on the clock of rank 0, and no collective relates rank 3 to any other."""
    late = 3_000_000
    at = [i * 10**7 for i in range(5)]
    rows = [*ends(0, "a", *at), *ends(1, "a", *(one + late for one in at)), *ends(2, "b", *(one + 10**9 for one in at))]
    rows += ends(1, "b", *(one + late for one in at))
    clocks = {0: "host", 1: "host", 2: "other", 3: "other"}
    found = clock_offsets(build(rows, (0, 1, 2, 3)).events, GROUPS, clocks)
    assert {rank: one.offset for rank, one in found.items()} == {0: 0, 1: 0, 2: 10**9 - late, 3: 10**9 - late}
    apart = clock_offsets(build(rows, (0, 1, 2)).events, GROUPS)
    assert {rank: one.offset for rank, one in apart.items()} == {0: 0, 1: late, 2: 10**9}


def test_the_end_of_a_collective_on_a_clock_is_where_its_first_rank_notices_it() -> None:
    group = pl.DataFrame([("all", [0, 1, 2])], schema=GROUPS.schema, orient="row")
    rows = [*ends(0, "all", 10, 20, 30), *ends(1, "all", 19, 29, 31), *ends(2, "all", 110, 120, 130)]
    found = clock_offsets(build(rows, (0, 1, 2)).events, group, {0: "host", 1: "host"})
    assert (found[1].offset, found[2].offset, found[2].spread) == (0, 100, 0)
