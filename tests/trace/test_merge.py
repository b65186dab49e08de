"""Merging: nothing lost, nothing booked twice, parents before children."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.files import split_ranks
from dsexplore._internal.trace.merge import merge_modules, merge_tables
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace

Make = Callable[..., Tables]


def modules(*rows: tuple[str, int]) -> pl.DataFrame:
    full = [(name, name.rpartition(".")[0], "Linear", name.count("."), calls) for name, calls in rows]
    return pl.DataFrame(full, schema=schema.MODULES, orient="row")


@settings(max_examples=40)
@given(data=st.data())
def test_the_order_of_the_traces_does_not_matter(traces: Any, data: st.DataObject) -> None:
    whole = data.draw(traces())
    parts = data.draw(st.permutations(list(split_ranks(whole).values())))
    merged = Trace.merge(Trace(part) for part in parts)
    assert_frame_equal(merged.events, whole.events)
    assert_frame_equal(merged.parameters, whole.parameters)
    assert merged.info == whole.info


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join), max_size=30))
def test_parents_stand_before_children_and_no_module_is_lost(names: list[str]) -> None:
    tables = [modules((name, 1)) for name in names] or [modules()]
    merged = merge_modules(tables)["module"].to_list()
    assert sorted(merged) == sorted(set(names))
    for index, name in enumerate(merged):
        parent = name.rpartition(".")[0]
        assert parent not in merged[index:]


def test_stages_of_a_pipeline_become_one_tree() -> None:
    first = modules(("M", 1), ("M.layers", 0), ("M.layers.0", 2), ("M.embed", 1))
    second = modules(("M", 3), ("M.layers", 0), ("M.layers.1", 2))
    merged = merge_modules([first, second])
    assert merged["module"].to_list() == ["M", "M.layers", "M.layers.0", "M.layers.1", "M.embed"]
    assert merged["calls"].to_list() == [3, 0, 2, 2, 1]


def test_of_some_ranks_those_that_left_no_trace_are_named(make: Make) -> None:
    parts = [make([], ranks=(1,))]
    asked = merge_tables(parts, is_whole=True, ranks=(1, 3))
    assert asked.info.notes == ("1 of 2 ranks left no trace: rank 3",)
    assert merge_tables(parts, is_whole=True, ranks=(1,)).info.notes == ()


def test_one_name_for_two_groups_becomes_two_names(make: Make) -> None:
    parts = [make([{"rank": rank, "group": "tp"}], ranks=(rank,)) for rank in (0, 2)]
    other = parts[1].groups.with_columns(
        pl.when(pl.col("group") == "tp").then([2, 3]).otherwise("ranks").alias("ranks")
    )
    parts[1] = replace(parts[1], groups=other.cast(dict(schema.GROUPS)))
    merged = Trace.merge(map(Trace, parts))
    assert merged.events["group"].to_list() == ["tp", "tp@2"]
    assert dict(merged.groups.select("group", "ranks").iter_rows())["tp@2"] == [2, 3]
    assert len(merged.groups) == 3


def test_a_rank_that_left_no_trace_is_noted(make: Make) -> None:
    parts = [Trace(make([], ranks=(rank,))) for rank in (0, 3)]
    assert Trace.merge(parts).info.notes == ("2 of 4 ranks left no trace: ranks 1, 2",)
    assert Trace.merge(parts[:1]).info.notes == ()


@pytest.mark.parametrize(
    ("ranks", "notes"),
    [((0, 1, 3), ("1 of 4 ranks left no trace: rank 2",)), ((0, 1, 2, 3), ()), ((2,), ())],
)
def test_one_missing_rank_is_noted_and_a_rank_s_own_trace_is_whole(
    make: Make, ranks: tuple[int, ...], notes: tuple[str, ...]
) -> None:
    assert Trace.merge(Trace(make([], ranks=(rank,))) for rank in ranks).info.notes == notes


def test_ranks_that_are_merged_later_have_left_a_trace(make: Make) -> None:
    parts = [Trace(make([], ranks=(rank,))) for rank in range(4)]
    three = Trace.merge([Trace.merge(parts[:2]), parts[2]])
    assert three.info.notes == ("1 of 4 ranks left no trace: rank 3",)
    assert Trace.merge([three]).info.notes == three.info.notes
    assert Trace.merge([three, parts[3]]).info.notes == ()


def test_simulated_ranks_are_chosen_and_none_is_missing(make: Make) -> None:
    parts = [Trace(make([], ranks=(rank,), simulated=True)) for rank in (0, 1)]
    assert Trace.merge(parts).info.notes == ()


def test_the_mesh_is_that_of_a_rank_that_knows_it(make: Make) -> None:
    parts = [make([], ranks=(0,)), make([], ranks=(1,), mesh="tp=2")]
    assert Trace.merge(map(Trace, parts)).info.mesh == "tp=2"


def test_what_cannot_be_merged(make: Make) -> None:
    trace = Trace(make([{}]))
    with pytest.raises(UsageError, match="no traces"):
        Trace.merge([])
    with pytest.raises(UsageError, match="rank 0 is in two of the traces"):
        Trace.merge([trace, trace])
    with pytest.raises(UsageError, match="simulated is False in one trace and True in another"):
        Trace.merge([trace, Trace(make([], ranks=(1,), simulated=True))])


SECOND = 1_000_000_000


def with_ends(make: Make, ahead: int, rank: int, clock: str = "") -> Tables:
    """Return what one rank of three records of ten collectives, by a clock that is so many nanoseconds ahead."""
    row = {"rank": rank, "group": "tp", "op": "all_reduce", "group_size": 3}
    rows = [{**row, "start": at + ahead, "end": at + ahead + 9} for at in range(0, 500, 50)]
    return make(rows, ranks=(rank,), clocks=(clock,) if clock else (), world_size=3)


@pytest.mark.parametrize("how", ["by name", "by the caller"])
def test_only_ranks_that_share_no_clock_are_aligned(make: Make, how: str) -> None:
    named = "host" if how == "by name" else ""
    parts = [with_ends(make, 0, 0, named), with_ends(make, SECOND, 1, named)]
    of_one = merge_tables(parts, shares_clock=how == "by the caller")
    assert of_one.info.clock_offsets == of_one.info.clock_residuals == (0, 0)
    assert of_one.events["start"].to_list() == [*range(0, 500, 50), *range(SECOND, SECOND + 500, 50)]
    assert not any("clocks" in note for note in of_one.info.notes)
    of_two_hosts = merge_tables([with_ends(make, 0, 0, named and "other"), with_ends(make, SECOND, 1, named)])
    assert of_two_hosts.info.clock_offsets == (0, SECOND)
    assert of_two_hosts.info.clocks == (("other", "other") if named else ())
    assert of_two_hosts.events["start"].to_list() == [*range(0, 500, 50)] * 2


@pytest.mark.parametrize("first", [(0, 1), (0, 2), (1, 2)])
def test_ranks_that_are_merged_one_after_the_other_end_on_one_clock(make: Make, first: tuple[int, int]) -> None:
    """Ranks 1 and 2 share a clock: where one of them is moved before the other is added, it no longer does."""
    parts = [with_ends(make, 0, 0, "host"), with_ends(make, SECOND, 1, "other"), with_ends(make, SECOND, 2, "other")]
    (last,) = {0, 1, 2} - {*first}
    in_two = merge_tables([merge_tables([parts[rank] for rank in first]), parts[last]])
    at_once = merge_tables(parts)
    assert in_two.events["start"].to_list() == at_once.events["start"].to_list() == [*range(0, 500, 50)] * 3
    assert in_two.info.clock_offsets == at_once.info.clock_offsets == (0, SECOND, SECOND)
    assert in_two.info.clocks == at_once.info.clocks == ("host",) * 3


def test_a_merged_trace_that_is_split_and_merged_again_is_as_it_was(make: Make) -> None:
    merged = merge_tables([with_ends(make, 0, 0, "host"), with_ends(make, SECOND, 1), with_ends(make, SECOND, 2, "b")])
    assert merged.info.clocks == ("host", "host", "host")
    parts = split_ranks(merged)
    assert parts[1].info.clock_offsets == (SECOND,)
    assert merge_tables(list(parts.values())).info == merged.info
