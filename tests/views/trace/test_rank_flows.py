"""Bytes from recorded ranks to their peers equal the same sums computed in another way."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.views.trace.rank_flows import between_ranks


def test_wire_bytes_are_shared_among_peers_and_equal_peers_joined(traces: ModuleType) -> None:
    found = between_ranks(traces.layered(2).tables)
    assert (found.senders, found.receivers, found.hidden) == ([0], [[1, 2, 3], [4]], 0)
    grid = found.grid()
    assert grid.rows == ["rank 0"]
    assert grid.columns == ["1–3, each", "4"]
    all_reduce_and_scatter = 2 * (6144 + 3072) / 3
    assert grid.values.tolist() == [[all_reduce_and_scatter, 2 * 4096]]


def test_a_message_to_one_rank_is_all_that_peer_s(traces: ModuleType) -> None:
    rows = [traces.event("Net", 0, op="send", peer=2, message_bytes=100, wire_bytes=100), traces.event("Net", 1)]
    found = between_ranks(replace(traces.layered(2).tables, events=traces.frame("events", rows)))
    assert (found.receivers, found.bytes.tolist()) == ([[1, 3], [2]], [[2048, 2148]])


def test_nobody_talks_in_an_empty_trace() -> None:
    grid = between_ranks(Tables(info=TraceInfo(world_size=16_384))).grid()
    assert (grid.rows, grid.columns, grid.values.shape) == ([], [], (0, 0))


def test_senders_and_receivers_beyond_the_most_are_counted(traces: ModuleType) -> None:
    tables = traces.timed(ranks=2).tables
    found = between_ranks(tables, senders=1, receivers=1)
    assert (found.senders, found.bytes.shape) == ([0], (1, 1))
    assert found.hidden == 1 + len(between_ranks(tables, senders=1).receivers) - 1


def test_what_start_up_sends_is_no_talk_of_the_step(traces: ModuleType) -> None:
    rows = [traces.event("Net", 0, phase="start-up", wire_bytes=10**6), traces.event("Net", 1, wire_bytes=300)]
    found = between_ranks(replace(traces.layered(2).tables, events=traces.frame("events", rows)))
    assert found.bytes.tolist() == [[100]]
    assert found.grid().columns == ["1–3, each"]
    assert between_ranks(traces.layered(2).tables, column="message_bytes").bytes.sum() != 0
