"""Sums for figures and sections equal the same sums computed in another way."""

from __future__ import annotations

from types import ModuleType

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.trace import tally
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.tally import OTHERS, Grid


def places(trace: Trace) -> Grid:
    codes = EventCodes(trace.tables)
    return codes.places(codes.total)


def test_layers_of_one_place_are_one_row(traces: ModuleType) -> None:
    grid = places(traces.layered(8))
    assert grid.rows == ["Net.layers.*.down", "Net.layers.*", "Net.layers.*.up"]
    assert grid.columns == ["tp", "dp"]
    assert grid.values.tolist() == [[8 * 6144, 0], [0, 8 * 4096], [8 * 3072, 0]]


def test_many_places_end_in_all_others(traces: ModuleType) -> None:
    grid = places(traces.of_names([chr(97 + i) for i in range(26)]))
    assert len(grid.rows) == 16
    assert grid.rows[-1] == OTHERS
    assert grid.values.sum() == 26 * 6144


def test_a_row_of_unknown_sizes_alone_is_a_row_of_its_own() -> None:
    grid = tally.grid({("a", "x"): 3.0}, unknown={("b", "x"): 1.0})
    assert (grid.rows, grid.values.tolist()) == (["a", "b"], [[3.0], [0.0]])
    assert grid.unknown is not None
    assert grid.unknown.tolist() == [[0.0], [1.0]]


def test_sizes_are_powers_of_two_and_nothing_is_lost(traces: ModuleType) -> None:
    sizes = [0, 1, 2, 3, 4, 1023, 1024, 2**31, 2**40 - 1]
    events = traces.frame("events", [traces.event("Net", i, message_bytes=s) for i, s in enumerate(sizes)])
    found = tally.message_sizes(events)
    assert dict(found.select("size", "count").iter_rows()) == {
        0: 1,
        1: 1,
        2: 2,
        4: 1,
        512: 1,
        1024: 1,
        2**31: 1,
        2**39: 1,
    }


def test_implicit_redistributes_join_the_layers(traces: ModuleType) -> None:
    codes = EventCodes(traces.layered(4, odd=2).tables)
    found = codes.causes(codes.every, 10).shown
    assert [(line["module"], line["op"], line["cause"], line["count"]) for line in found] == [
        ("Net.layers.*.down", "all_reduce", "P→R", 1),
        ("Net.layers.*.up", "all_gather", "S(0)→R", 1),
    ]


def test_ops_are_in_order_of_all_their_bytes_and_split_by_phase(traces: ModuleType) -> None:
    sent = [("all_gather", "forward", 4), ("all_reduce", "backward", 3), ("all_gather", "backward", 1),
            ("all_reduce", "forward", 1), ("all_reduce", "backward", 3)]  # fmt: skip
    rows = [traces.event("Net", i, op=op, phase=phase, wire_bytes=size) for i, (op, phase, size) in enumerate(sent)]
    assert tally.op_by_phase(traces.frame("events", rows)).drop("unknown").rows() == [
        ("all_reduce", "backward", 2, 6), ("all_reduce", "forward", 1, 1),
        ("all_gather", "backward", 1, 1), ("all_gather", "forward", 1, 4),
    ]  # fmt: skip


def test_bandwidth_is_the_median_of_what_took_time(traces: ModuleType) -> None:
    spans = [(0, 100), (0, 200), (0, 400), (5, 5), (0, None), (None, None)]
    rows = [
        traces.event("Net", i, message_bytes=5000, wire_bytes=6000, start=start, end=end)
        for i, (start, end) in enumerate(spans)
    ]
    rows.append(traces.event("Net", 9, message_bytes=0, wire_bytes=0, start=0, end=100))
    assert tally.bus_bandwidth(traces.frame("events", rows)).rows() == [("all_reduce", 4096, 3, 30.0)]


def test_every_power_of_two_begins_a_range_of_its_own(traces: ModuleType) -> None:
    sizes = [size for power in range(2, 48) for size in (2**power - 1, 2**power)]
    rows = [traces.event("Net", i, message_bytes=size) for i, size in enumerate(sizes)]
    found = dict(tally.message_sizes(traces.frame("events", rows)).select("size", "count").iter_rows())
    assert found == {2: 1, **{2**power: 2 for power in range(2, 47)}, 2**47: 1}


def test_no_rows_give_empty_tables() -> None:
    events = Tables().events
    assert places(Trace()).values.shape == (0, 0)
    for count in (tally.op_by_phase, tally.message_sizes, tally.bus_bandwidth):
        assert count(events).is_empty()
