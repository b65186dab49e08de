"""A live timeline draws only the events that filters of other parts let pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from dsexplore._internal.analysis.step_timeline import TIES, Timeline
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from dsexplore._internal.views.timeline.timeline_text import ticks as ticks_of
from tests.analysis.few_events import two_messages


@pytest.fixture(scope="module")
def messages() -> Timeline:
    """Two sends of rank 0, events 0 and 1, and their receives on rank 1, events 2 and 3."""
    return Trace.merge([two_messages(0), two_messages(1)]).timeline()


@pytest.mark.parametrize(
    ("shown", "tied"),
    [([0, 1, 2, 3], [0, 1]), ([0, 1, 2], [0]), ([1, 3], [1]), ([0, 3], []), ([], [])],
)
def test_a_line_is_drawn_where_both_of_its_ends_are(messages: Timeline, shown: list[int], tied: list[int]) -> None:
    state = TimelineState(messages)
    every = state.drawn()["ties"]
    state.show_events(np.isin(np.arange(4), shown))
    assert state.drawn()["ties"] == [every[i] for i in tied]


def test_an_end_without_an_event_is_drawn_under_every_filter(messages: Timeline) -> None:
    """As what was predicted, of which no event was recorded."""
    ends = [("rank 0", 1.0, "rank 1", 1.0, None, 2), ("rank 0", 2.0, "rank 1", 2.0, None, None)]
    state = TimelineState(replace(messages, ties=pl.DataFrame(ends, schema=TIES, orient="row")))
    every = state.drawn()["ties"]
    state.show_events(np.array([True, True, False, True]))
    assert state.drawn()["ties"] == [every[1]]


@pytest.mark.parametrize(
    ("window", "ticks"),
    [
        ((0, 1), [(0, "0"), (1, "1")]),
        ((0, 2), [(0, "0"), (0.5, "1"), (1, "2")]),
        ((0.5, 2), [(1 / 3, "1"), (1, "2")]),
        ((1.2, 1.4), [(0, "1")]),
        ((0, 40), [(0, "0"), (0.25, "10"), (0.5, "20"), (0.75, "30"), (1, "40")]),
    ],
)
def test_each_number_of_an_axis_without_time_stands_once(
    messages: Timeline, window: tuple[float, float], ticks: list[tuple[float, str]]
) -> None:
    found = ticks_of(messages, *window)
    assert [text for _, text in found] == [text for _, text in ticks]
    assert [place for place, _ in found] == pytest.approx([place for place, _ in ticks])


def test_one_collective_is_no_plural(messages: Timeline) -> None:
    trace = Trace(messages.tables).where(rank=0, seq=0)
    assert (
        trace.timeline()._repr_mimebundle_()["text/plain"].splitlines()[0]
        == "Timeline of 1 collective in program order"
    )


def test_a_timeline_of_nothing_has_no_places_on_its_axis() -> None:
    assert TimelineState(Trace().timeline()).drawn()["ticks"] == []
