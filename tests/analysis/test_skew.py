"""Who was late, and that duration and waiting add up to what was measured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.clocks import align
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace

MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Happened:
    """One collective: when each rank began it, in ns since `EPOCH`, and how long it took from the last start on."""

    starts: dict[int, int]
    took: int
    op: str = "all_reduce"
    group: str = "0"


def tables_of(happened: list[Happened], ahead: dict[int, int] | None = None) -> Tables:
    """Return what ranks record whose clocks are ``ahead`` by so many ns."""
    rows = []
    for one in happened:
        end = max(one.starts.values()) + one.took
        for rank, start in one.starts.items():
            shift = EPOCH + (ahead or {}).get(rank, 0)
            rows.append((rank, one.op, one.group, start + shift, end + shift))
    ranks = sorted({row[0] for row in rows})
    events = pl.DataFrame(
        {
            name: pl.Series([None] * len(rows), dtype=kind)
            for name, kind in schema.EVENTS.items()
            if name not in ("rank", "op", "group", "start", "end")
        }
    ).with_columns(
        rank=pl.Series([row[0] for row in rows], dtype=pl.Int32),
        op=pl.Series([row[1] for row in rows]),
        group=pl.Series([row[2] for row in rows]),
        start=pl.Series([row[3] for row in rows]),
        end=pl.Series([row[4] for row in rows]),
        owner=pl.lit("model"),
        axis=pl.lit("dp"),
        phase=pl.lit("forward"),
        message_bytes=pl.lit(1024, dtype=pl.Int64),
        state=pl.lit("completed"),
        seq=pl.int_range(pl.len(), dtype=pl.Int64),
        group_size=pl.lit(len(happened[0].starts), dtype=pl.Int32),
    )
    members = {one.group: sorted(one.starts) for one in happened}
    groups = pl.DataFrame(
        [(name, "dp", "", of, len(of), "gloo", "work") for name, of in members.items()],
        schema=schema.GROUPS,
        orient="row",
    )
    info = TraceInfo(world_size=len(ranks), ranks=tuple(ranks))
    return Tables(events=events.select(list(schema.EVENTS)), groups=groups, info=info)


def test_the_last_to_come_is_late_and_the_others_waited() -> None:
    happened = [Happened({0: 0, 1: 1 * MS, 2: 9 * MS, 3: 10 * MS}, 2 * MS)]
    trace = Trace(tables_of(happened))
    row = trace.skew().to_frame().row(0, named=True)
    assert row["ranks"] == [0, 1, 2, 3]
    assert row["late_ranks"] == [2, 3]
    assert (row["first_start"], row["last_start"]) == pytest.approx((0, 0.010))
    assert row["duration"] == pytest.approx(0.002)
    assert row["waiting"] == pytest.approx([0.010, 0.009, 0.001, 0.0])
    assert row["waited"] == pytest.approx(0.020)
    kept_waiting = trace.skew().to_frame(by="rank")["kept_waiting"].to_list()
    assert kept_waiting == pytest.approx([0.0, 0.0, 0.019, 0.020])  # rank 2 waited for rank 3, too


def test_nobody_is_late_by_less_than_it_takes_to_wake_up() -> None:
    assert Trace(tables_of([Happened({0: 0, 1: 40_000}, 1_000)])).skew().to_frame()["late_ranks"].to_list() == [[]]
    assert Trace(tables_of([Happened({0: 0, 1: MS}, 30 * MS)])).skew().to_frame()["late_ranks"].to_list() == [[]]


collectives = st.integers(2, 4).flatmap(
    lambda ranks: st.lists(
        st.tuples(st.lists(st.integers(0, 50 * MS), min_size=ranks, max_size=ranks), st.integers(1, 50 * MS)),
        min_size=1,
        max_size=8,
    )
)


@settings(max_examples=60)
@given(collectives)
def test_duration_and_waiting_add_up_to_what_was_measured(drawn: list[tuple[list[int], int]]) -> None:
    happened, at = [], 0
    for starts, took in drawn:
        happened.append(Happened({rank: at + start for rank, start in enumerate(starts)}, took))
        at += max(starts) + took
    tables = tables_of(happened)
    rows = Trace(tables).skew().to_frame()
    assert rows.height == len(happened)
    measured = {
        (row["seq_number"], row["rank"]): (row["end"] - row["start"]) / 1e9
        for row in tables.events.with_columns(seq_number=pl.int_range(pl.len()).over("rank")).iter_rows(named=True)
    }
    for row, one in zip(rows.sort("number").iter_rows(named=True), happened, strict=True):
        assert row["duration"] == pytest.approx(one.took / 1e9)
        assert min(row["waiting"]) == 0
        for rank, waiting in zip(row["ranks"], row["waiting"], strict=True):
            assert row["duration"] + waiting == pytest.approx(measured[row["number"], rank])


@settings(max_examples=40)
@given(
    st.lists(st.integers(-1000 * MS, 1000 * MS), min_size=1, max_size=3),
    st.lists(st.integers(0, 20 * MS), min_size=8, max_size=12),
)
def test_clocks_are_aligned_by_the_ends(offsets: list[int], lateness: list[int]) -> None:
    ahead = {rank + 1: offset for rank, offset in enumerate(offsets)}
    happened = [
        Happened({0: i * 100 * MS, **dict.fromkeys(ahead, i * 100 * MS + late)}, 3 * MS)
        for i, late in enumerate(lateness)
    ]
    aligned = align(tables_of(happened, ahead))
    true = tables_of(happened)
    small = {rank for rank, offset in ahead.items() if abs(offset) <= 500_000}
    rest = ~pl.col("rank").is_in(list(small))
    assert aligned.events.filter(rest).equals(true.events.filter(rest))
    assert aligned.info.clock_offsets == (0, *(0 if rank in small else offset for rank, offset in ahead.items()))
    assert set(aligned.info.clock_residuals) == {0}
    assert any("clocks were aligned" in note for note in aligned.info.notes) == (len(small) < len(ahead))


def test_what_failed_counts_as_a_place_and_has_no_row() -> None:
    tables = tables_of([Happened({0: 0, 1: 0}, MS), Happened({0: 5 * MS, 1: 5 * MS}, MS)])
    first_of_0 = (pl.col("rank") == 0) & (pl.col("start") == EPOCH)
    failed = tables.events.with_columns(pl.when(first_of_0).then(None).otherwise("end").alias("end"))
    assert Trace(replace(tables, events=failed)).skew().to_frame()["number"].to_list() == [1]


def test_sums_and_what_a_slow_rank_looks_like() -> None:
    slow = [Happened({0: i * 100 * MS, 1: i * 100 * MS + 30 * MS}, MS) for i in range(4)]
    trace = Trace(tables_of(slow))
    by_rank = trace.skew().to_frame(by="rank")
    assert by_rank.select("rank", "late", "likely").rows() == [(0, 0, ""), (1, 4, "slow rank")]
    assert by_rank["kept_waiting"].to_list() == pytest.approx([0, 0.12])
    total = trace.skew().to_frame(by="module").row(0, named=True)
    assert (total["module"], total["collectives"], total["late"], total["latest_rank"]) == ("model", 4, 4, 1)
    assert (total["duration"], total["waited"]) == pytest.approx((0.004, 0.12))
    with pytest.raises(UsageError, match="to_frame\\(by='color'\\) of a Skew: no such sum"):
        trace.skew().to_frame(by="color")


def test_a_slow_link_is_told_from_a_slow_rank() -> None:
    pairs = [Happened({0: i * MS, 1: i * MS}, MS // 10, group="a") for i in range(0, 40, 10)]
    pairs += [Happened({2: i * MS, 3: i * MS}, 5 * MS, group="b") for i in range(0, 40, 10)]
    likely = dict(Trace(tables_of(pairs)).skew().to_frame(by="rank").select("rank", "likely").iter_rows())
    assert likely == {0: "", 1: "", 2: "slow link", 3: "slow link"}


def test_slow_ranks_and_links_are_named_per_module_axis_and_phase() -> None:
    late = [Happened({0: i * 100 * MS, 1: i * 100 * MS + 30 * MS}, MS, group="a") for i in range(4)]
    pairs = [Happened({2: i * 100 * MS, 3: i * 100 * MS}, MS, group="b") for i in range(4)]
    slow = [Happened({4: i * 100 * MS, 5: i * 100 * MS}, 9 * MS, group="c") for i in range(4)]
    tables = tables_of([*late, *pairs, *slow])
    trace = Trace(tables)
    for by in ("module", "axis", "phase"):
        assert trace.skew().to_frame(by=by).select("slow_ranks", "slow_links").rows() == [([1], [4, 5])]
    by_group = trace.skew().to_frame(by="group").sort("group").select("group", "slow_ranks", "slow_links").rows()
    assert by_group == [("a", [1], []), ("b", [], []), ("c", [], [4, 5])]
    other = tables.events.with_columns(
        phase=pl.when(pl.col("group") == "c").then(pl.lit("backward")).otherwise("phase")
    )
    by_phase = Trace(replace(tables, events=other)).skew().to_frame(by="phase").sort("phase")
    assert by_phase.select("phase", "slow_links").rows() == [
        ("backward", []),
        ("forward", []),
    ]  # like nothing else there


def test_what_a_program_did_not_wait_for_is_hidden() -> None:
    tables = tables_of([Happened({0: 0, 1: 0}, 10 * MS), Happened({0: 50 * MS, 1: 50 * MS}, 10 * MS)])
    waited = tables.events.with_columns(waited=pl.Series([10 * MS, 4 * MS, None, 11 * MS]))
    total = Trace(replace(tables, events=waited)).skew().to_frame(by="op").row(0, named=True)
    assert (total["exposed"], total["hidden"], total["seen"]) == pytest.approx((0.025, 0.006, 3))
