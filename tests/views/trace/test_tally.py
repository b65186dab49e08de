"""The numbers behind the drawings, against sums made another way."""

from __future__ import annotations

from types import ModuleType

from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore.trace.tables import Tables, TraceInfo
from dsexplore.trace.trace import Trace
from dsexplore.views.trace import tally
from dsexplore.views.trace.event_codes import EventCodes
from dsexplore.views.trace.folding import ranges
from dsexplore.views.trace.grid import OTHERS, Grid


def places(trace: Trace) -> Grid:
    codes = EventCodes(trace.tables)
    return codes.places(codes.total)


def test_layers_of_one_place_are_one_row(traces: ModuleType) -> None:
    grid = places(traces.layered(8))
    assert grid.rows == ["Net.layers.*", "Net.layers.*.down", "Net.layers.*.up"]
    assert grid.columns == ["dp", "tp"]
    assert grid.values.tolist() == [[8 * 8192, 0], [0, 8 * 4096], [0, 8 * 4096]]


def test_many_places_end_in_all_others(traces: ModuleType) -> None:
    grid = places(traces.of_names([chr(97 + i) for i in range(26)]))
    assert len(grid.rows) == 16
    assert grid.rows[-1] == OTHERS
    assert grid.values.sum() == 26 * 4096


def test_wire_bytes_are_shared_among_peers_and_equal_peers_joined(traces: ModuleType) -> None:
    found = tally.between_ranks(traces.layered(2).tables)
    assert (found.senders, found.receivers, found.hidden) == ([0], [[1, 2, 3], [4]], 0)
    grid = found.grid()
    assert grid.rows == ["rank 0"]
    assert grid.columns == ["1–3", "4"]
    all_reduce_and_scatter = 2 * (6144 + 3072) / 3
    assert grid.values.tolist() == [[all_reduce_and_scatter, 2 * 4096]]


def test_nobody_talks_in_an_empty_trace() -> None:
    grid = tally.between_ranks(Tables(info=TraceInfo(world_size=16_384))).grid()
    assert (grid.rows, grid.columns, grid.values.shape) == ([], [], (0, 0))


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
    assert found.select("module", "op", "cause", "count").rows() == [
        ("Net.layers.*.down", "all_reduce", "P→R", 1),
        ("Net.layers.*.up", "all_gather", "S(0)→R", 1),
    ]


@settings(deadline=None)
@given(st.sets(st.integers(0, 200), min_size=1, max_size=60))
def test_ranges_hold_exactly_the_numbers(numbers: set[int]) -> None:
    written = ranges(sorted(numbers), most=1000)
    found: set[int] = set()
    for piece in written.split(", "):
        first, _, last = piece.partition("–")
        found |= set(range(int(first), int(last or first) + 1))
    assert found == numbers


def test_no_rows_give_empty_tables() -> None:
    events = Tables().events
    assert places(Trace()).values.shape == (0, 0)
    for count in (tally.op_by_phase, tally.message_sizes, tally.bus_bandwidth):
        assert count(events).is_empty()
