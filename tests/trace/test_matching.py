"""A collective has the same number on all ranks, wherever their records begin and end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.trace.matching import _place, is_beyond_chance, late_records, matched, numbered
from dsexplore._internal.trace.tables import Tables
from tests.trace.conftest import build

GROUPS = pl.DataFrame([("a", [0, 1, 2])], schema={"group": pl.String, "ranks": pl.List(pl.Int32)}, orient="row")
KINDS = [("all_gather", 64), ("all_reduce", 64), ("all_reduce", 128), ("reduce_scatter", 64)]

Call = tuple[str, int, int]
"""Op, message bytes, and the moment at which it ends on every rank."""


def tables(of_rank: list[list[Call]], *, first: list[int] | None = None, clocks: list[int] | None = None) -> Tables:
    """Return the records of several ranks of one group.

    Args:
        of_rank: Recorded collectives of each rank.
        first: the group's own number of each rank's first collective; none where it is left out.
        clocks: Nanoseconds by which each rank's clock is ahead.
    """
    rows: list[dict[str, Any]] = []
    for rank, calls in enumerate(of_rank):
        ahead = clocks[rank] if clocks else 0
        for i, (op, size, end) in enumerate(calls):
            row = {"rank": rank, "group": "a", "op": op, "message_bytes": size, "group_size": 3, "state": "completed"}
            row |= {"start": end + ahead - 5, "end": end + ahead, "group_seq": first[rank] + i if first else None}
            rows.append(row)
    built = build(rows, tuple(range(len(of_rank))))
    return Tables(events=built.events, modules=built.modules, groups=GROUPS, info=built.info)


def numbers(of_rank: list[list[Call]], rank: int = 1, *, clocks: list[int] | None = None) -> list[int]:
    """Return the numbers of the collectives that one rank recorded, of `tables` with these records."""
    found = tables(of_rank, clocks=clocks)
    return numbered(found.events, found.groups).filter(rank=rank)["number"].to_list()


def ends(found: pl.DataFrame, clocks: list[int]) -> list[list[int]]:
    """Return, by number, the moments at which the collective with that number ended, clocks taken off."""
    by_number = found.sort("rank").group_by("number").agg("rank", "end").sort("number")
    return [
        sorted({end - clocks[rank] for rank, end in zip(ranks, moments, strict=True)})
        for ranks, moments in by_number.select("rank", "end").iter_rows()
    ]


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[Call], list[tuple[int, int]], list[int]]:
    """Return a training loop, the part of it that each of three ranks recorded, and the ranks' clocks."""
    step = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    program = step * draw(st.integers(12, 16))
    gaps = sorted(draw(st.lists(st.integers(1, 10**4), min_size=len(program), max_size=len(program), unique=True)))
    moments = [10**6 * sum(gaps[: i + 1]) for i in range(len(program))]  # what differs by less proves nothing
    calls = [(op, size, moment) for (op, size), moment in zip(program, moments, strict=True)]
    cut = st.integers(0, len(step) + 1)
    parts = [(draw(cut), len(calls) - draw(cut)) for _ in range(3)]
    clocks = [draw(st.integers(-(10**9), 10**9)) for _ in range(3)]
    return calls, parts, clocks


@given(jobs(), st.booleans())
@settings(max_examples=120, deadline=None)
def test_a_collective_is_the_same_wherever_records_begin_and_end(job: Any, has_numbers: bool) -> None:
    calls, parts, clocks = job
    records = [calls[begin:end] for begin, end in parts]
    firsts = [begin for begin, _ in parts] if has_numbers else None
    found = matched(tables(records, first=firsts, clocks=clocks))
    assert all(len(of_one) == 1 for of_one in ends(found, clocks))


def loop(steps: int, *, jitter: int = 0) -> list[Call]:
    """Return a step of two collectives, which takes longer each time by as many ns squared."""
    ends = [10**8 * i + jitter * (i // 2) ** 2 for i in range(2 * steps)]
    return [(op, 64, end) for op, end in zip(["all_gather", "all_reduce"] * steps, ends, strict=True)]


def test_what_is_said_of_a_record_that_begins_later() -> None:
    calls = loop(12, jitter=10**6)
    later = [calls, calls[4:], calls]
    assert numbers(later) == list(range(4, 24))
    assert late_records(tables(later)) == [
        "rank 1's file begins 4 collectives of group a later than another rank's (ends then agree within 0 s)"
    ]
    assert late_records(tables([calls, calls, calls])) == []
    counted = tables([calls, calls[4:], calls], first=[0, 4, 0])
    assert late_records(counted) == ["rank 1's file begins 4 collectives of group a later than another rank's"]


def test_a_record_that_begins_nobody_knows_where_is_compared_with_no_other() -> None:
    """Rank 1's begins with another op than rank 0's, in a loop that is as regular as a clock."""
    calls = loop(12)
    found = tables([calls, calls[5:], calls])
    assert numbered(found.events, found.groups)["rank"].unique().to_list() == [0, 2]
    assert late_records(found) == [
        "rank 1's file begins elsewhere in group a than another rank's, and times do not say where: its collectives "
        "there are compared with no other rank's"
    ]


def test_a_few_calls_that_agree_elsewhere_move_no_record() -> None:
    calls = loop(20, jitter=10**6)
    assert numbers([calls, calls[4:10], calls]) == list(range(6))


@given(
    st.integers(2, 60),
    st.integers(0, 2**32 - 1),
    st.sampled_from(["normal", "exponential", "cauchy", "one busy rank", "every other end", "the first half"]),
    st.floats(1e-6, 0.3),
)
@settings(max_examples=300, deadline=None)
def test_records_of_equal_calls_that_begin_together_stay_together(
    count: int, seed: int, noise: str, regularity: float
) -> None:
    """However regular the program is, and whenever ranks notice an end: at its true place nothing is impossible."""
    draw = np.random.default_rng(seed)
    period, took = 0.3, 10 ** draw.uniform(-4, -1)
    true = np.cumsum(period * (1 + regularity * draw.standard_normal(count)).clip(0.01))
    late = np.zeros((2, count))
    if noise in ("normal", "exponential", "cauchy"):
        late = 1e-3 * np.abs(
            {"normal": draw.standard_normal, "exponential": draw.standard_exponential, "cauchy": draw.standard_cauchy}[
                noise
            ]((2, count))
        )
    elif noise == "one busy rank":
        late[1] = 0.09 * draw.random(count)
    elif noise == "every other end":
        late[0, ::2], late[1, 1::2] = 0.04, 0.04
    else:
        late[0, : count // 2] = 0.04 * draw.random(count // 2)
    ahead = draw.uniform(-10, 10)
    ends = [1e9 * (true + late[0]), 1e9 * (true + late[1] + ahead)]
    starts = [1e9 * (true - took * draw.random(count)), 1e9 * (true + ahead - took * draw.random(count))]
    calls = np.ones(count, np.uint64)
    assert _place(calls, ends[1], calls, ends[0], starts[1], starts[0]) == 0
    assert _place(calls, ends[1], calls, ends[0]) == 0


def test_a_record_that_ends_early_is_matched_from_its_first_collective() -> None:
    calls = [("all_reduce", 64, 1_000 * i) for i in range(8)]  # as regular as a clock: no other place is better
    assert numbers([calls, calls[:5], calls]) == [0, 1, 2, 3, 4]


def test_lists_that_are_alike_but_begin_apart_are_matched_by_their_ends() -> None:
    calls = [("all_gather", 64, 10**6 * i + 10**3 * i**3) for i in range(60)]
    assert numbers([calls[1:56], calls[1:56], calls[5:60]], clocks=[0, 10**6, -(10**6)], rank=2) == list(range(4, 59))


def test_ranks_that_called_other_things_are_matched_by_position() -> None:
    calls = [
        ("all_reduce", 64, 1_000),
        ("all_reduce", 128, 2_000),
        ("all_gather", 64, 3_000),
        ("all_reduce", 64, 4_000),
    ]
    other = [calls[0], ("barrier", 0, 2_500), calls[2], calls[3], calls[0]]
    assert numbers([calls, other, calls]) == [0, 1, 2, 3, 4]


def test_members_of_one_coalesced_call_have_one_number_of_their_group() -> None:
    calls = [("all_reduce", 64, 1_000), ("all_reduce", 128, 1_000), ("all_reduce", 64, 2_000)]
    built = tables([calls, calls[2:]], first=[0, 0])
    own = pl.Series("group_seq", [7, 7, 8, 8])
    found = numbered(built.events.with_columns(own), built.groups)
    assert found.select("rank", "number").rows() == [(0, 0), (0, 1), (0, 2), (1, 2)]


@pytest.mark.parametrize("op", ["send", "recv", "switched_off:all_reduce"])
def test_what_has_no_part_in_every_rank_does_not_count(op: str) -> None:
    calls = [("all_reduce", 64, 1_000), ("all_gather", 64, 2_000)]
    found = numbered(tables([[(op, 8, 500), *calls], calls, calls]).events, GROUPS)
    assert found["number"].to_list() == [0, 1] * 3


@pytest.mark.parametrize("count", [4, 40, 2_000, 3_000_000])
def test_chance_is_judged_of_any_number_of_values(count: int) -> None:
    within = count // 2 + 1
    assert is_beyond_chance(1e-9, 1.0, within, count)
    assert is_beyond_chance(0.0, 1.0, within, count)
    assert not is_beyond_chance(0.9, 1.0, within, count)
    assert not is_beyond_chance(1.0, 1.0, within, count)


def test_chance_is_as_the_number_of_choices_says() -> None:
    for count in range(4, 60):
        for spread in (0.01, 0.1, 0.3):
            within = count // 2 + 1
            chance = math.comb(count, within) * spread ** (within - 1)
            assert is_beyond_chance(spread, 1.0, within, count) == (chance < 1e-6), (count, spread)
