"""The earliest order in which simulated ranks can run."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.analysis.waiting_order import rounds
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables

WORLD = [0, 1, 2]


def traced(programs: dict[int, list[dict[str, Any]]], groups: dict[str, list[int]]) -> Tables:
    """Tables of ranks that issue these events in order."""
    rows = [
        {"rank": rank, "seq": seq, "op": "all_reduce", "group": "w", "message_bytes": 8, **event}
        for rank, events in programs.items()
        for seq, event in enumerate(events)
    ]
    events = pl.DataFrame(rows, schema_overrides=schema.EVENTS) if rows else schema.empty("events")
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in schema.EVENTS.items() if name not in events]
    held = [{"group": name, "ranks": ranks, "size": len(ranks)} for name, ranks in groups.items()]
    frame = pl.DataFrame(held, schema_overrides={"ranks": pl.List(pl.Int32())})
    return Tables(events=events.with_columns(missing).select(list(schema.EVENTS)), groups=frame)


def found(tables: Tables) -> dict[int, list[int]]:
    by_rank = defaultdict(list)
    for rank, at in zip(tables.events["rank"], rounds(tables).tolist(), strict=True):
        by_rank[rank].append(at)
    return dict(by_rank)


def test_a_receive_waits_for_its_send() -> None:
    send, recv = {"op": "send", "peer": 1}, {"op": "recv", "peer": 0}
    assert found(traced({0: [send, send], 1: [recv, recv]}, {"w": [0, 1]})) == {0: [0, 1], 1: [1, 2]}


def test_a_collective_waits_for_all_of_its_group() -> None:
    programs = {0: [{"group": "a"}, {}], 1: [{}], 2: [{}]}
    assert found(traced(programs, {"w": WORLD, "a": [0]})) == {0: [0, 1], 1: [1], 2: [1]}


def test_one_group_may_have_another_name_on_another_rank() -> None:
    programs = {0: [{"group": "a"}, {"group": "x"}], 1: [{"group": "y"}]}
    assert found(traced(programs, {"a": [0], "x": [0, 1], "y": [0, 1]})) == {0: [0, 1], 1: [1]}


def test_a_batch_sends_before_it_receives_and_is_one_round() -> None:
    programs = {
        0: [{"op": "recv", "peer": 1, "batch": 1}, {"op": "send", "peer": 1, "batch": 1}, {}],
        1: [{"op": "recv", "peer": 0, "batch": 1}, {"op": "send", "peer": 0, "batch": 1}, {}],
    }
    at = found(traced(programs, {"w": [0, 1]}))
    assert at[0][2] == at[1][2] > max(at[0][0], at[1][0])


def test_what_nobody_answers_waits_for_nobody() -> None:
    programs = {0: [{"op": "recv", "peer": 7}, {"op": "recv", "peer": None}, {"op": "send", "peer": 7}, {}]}
    assert found(traced(programs, {"w": WORLD})) == {0: [0, 1, 2, 3]}


def test_a_deadlock_ends() -> None:
    programs = {0: [{"group": "a"}, {"group": "b"}], 1: [{"group": "b"}, {"group": "a"}]}
    at = found(traced(programs, {"a": [0, 1], "b": [0, 1, 2]}))
    assert all(one == sorted(one) and len(one) == 2 for one in at.values())


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("all"), st.sampled_from(["w", "a", "b"])),
            st.tuples(st.just("message"), st.tuples(st.sampled_from(WORLD), st.sampled_from(WORLD))),
        ),
        max_size=30,
    )
)
def test_nothing_runs_before_what_it_waits_for(steps: list[tuple[str, Any]]) -> None:
    groups = {"w": WORLD, "a": [0, 1], "b": [1, 2]}
    programs: dict[int, list[dict[str, Any]]] = {rank: [] for rank in WORLD}
    together = []
    for kind, what in steps:
        if kind == "all":
            together.append([(rank, len(programs[rank])) for rank in groups[what]])
            for rank in groups[what]:
                programs[rank].append({"group": what})
        elif what[0] != what[1]:
            sender, receiver = what
            together.append([(sender, len(programs[sender])), (receiver, len(programs[receiver]))])
            programs[sender].append({"op": "send", "peer": receiver})
            programs[receiver].append({"op": "recv", "peer": sender})
    at = found(traced(programs, groups))
    for one in at.values():
        assert all(before < after for before, after in pairwise(one))
    for members in together:
        placed = [at[rank][seq] for rank, seq in members]
        rank, seq = members[0]
        if programs[rank][seq].get("op") == "send":
            assert placed[0] < placed[1]
        else:
            assert len(set(placed)) == 1
