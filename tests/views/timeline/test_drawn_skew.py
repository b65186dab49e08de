"""A live timeline draws waiting and late ranks of measured traces, and neither of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.timeline.timeline_state import TimelineState
from tests.analysis.few_events import two_messages
from tests.analysis.late_programs import Program

LATE = Program(ranks=4, steps=6, jitter=1e-3, late_rank=1, late_by=0.2)


def state_of(skew: Skew, **options: Any) -> TimelineState:
    return TimelineState(Trace(skew.tables).timeline(), skew=skew, **options)


def column(drawn: dict[str, Any], name: str, kind: type = np.float32) -> Any:
    return np.frombuffer(drawn["boxes"][name], kind)


def test_waiting_ends_where_the_transfer_begins_and_the_late_rank_does_not_wait() -> None:
    skew = Skew(LATE.trace())
    state = state_of(skew)
    drawn = state.drawn()
    begin, end, waiting, lane = (
        column(drawn, name, np.uint16 if name == "lane" else np.float32) for name in ("begin", "end", "waiting", "lane")
    )
    least = skew.arrivals["duration"].to_numpy()[state.boxes.span.argsort()].min()
    width = state.window[1] - state.window[0]
    assert (end - waiting).min() * width == pytest.approx(least, abs=1e-6)
    late = lane == state.timeline.lanes.index("rank 1")
    assert waiting[late] == pytest.approx(begin[late], abs=1e-6)
    assert ((waiting - begin)[~late] * width > 0.19).all()


def test_a_line_as_long_as_the_lateness_ends_where_the_late_rank_comes() -> None:
    state = state_of(Skew(LATE.trace()))
    drawn = state.drawn()
    begin = column(drawn, "begin")[column(drawn, "lane", np.uint16) == 1]
    assert [lane for _, lane, _, _ in drawn["late"]] == [1] * 6
    assert sorted(end for _, _, end, _ in drawn["late"]) == pytest.approx(sorted(begin), abs=1e-5)
    width = state.window[1] - state.window[0]
    for first, _, end, label in drawn["late"][:-1]:
        assert label.startswith(("+199", "+20"))
        assert (end - first) * width == pytest.approx(0.2, abs=0.01)


def test_a_box_says_how_long_it_waits_or_how_late_it_comes() -> None:
    state = state_of(Skew(LATE.trace()))
    texts, lanes = state.drawn()["texts"], state.boxes.lane.tolist()
    assert any(" · late: 20" in text for text, lane in zip(texts, lanes, strict=True) if lane == 1)
    for text, lane in zip(texts, lanes, strict=True):
        assert (" · waiting for a rank that comes later: " in text) == (lane != 1)
        assert (" · late: " in text) == (lane == 1)


def test_a_late_event_that_is_filtered_out_has_no_line() -> None:
    state = state_of(Skew(LATE.trace()))
    events = state.timeline.tables.events
    state.show_events((events["rank"] != 1).to_numpy())
    assert state.drawn()["late"] == []
    state.show_events((events["step"] == 2).to_numpy())
    assert len(state.drawn()["late"]) == 1


def test_only_what_is_seen_has_a_line() -> None:
    state = state_of(Skew(LATE.trace()))
    ends = sorted(end for _, _, end, _ in state.drawn()["late"])
    state.zoom(state.at(ends[1] - 0.01), state.at(ends[2] + 0.01))
    assert [(begin == 0, end) for begin, _, end, _ in sorted(state.drawn()["late"])] == [
        (True, pytest.approx(0.01 / (ends[2] - ends[1] + 0.02), abs=1e-4)),
        (False, pytest.approx(1 - 0.01 / (ends[2] - ends[1] + 0.02), abs=1e-4)),
    ]


def test_in_columns_only_the_latest_events_have_lines() -> None:
    state = state_of(Skew(replace(LATE, steps=400).trace()))
    drawn = state.drawn()
    assert not state.boxes.one_by_one
    assert "waiting" not in drawn["boxes"]
    assert len(drawn["late"]) == 200
    by = [float(label.removeprefix("+").removesuffix(" ms")) for *_, label in drawn["late"]]
    assert by == sorted(by, reverse=True)


def test_lanes_that_are_not_drawn_have_no_lines() -> None:
    assert state_of(Skew(LATE.trace()), most_lanes=1).drawn()["late"] == []


def test_nobody_late_and_nothing_measured_draw_nothing() -> None:
    on_time = state_of(Skew(replace(LATE, late_rank=None).trace())).drawn()
    assert on_time["late"] == []
    assert "waiting" in on_time["boxes"]
    simulated = Trace.merge([two_messages(0), two_messages(1)])
    drawn = TimelineState(simulated.timeline(), skew=Skew(simulated.tables)).drawn()
    assert drawn["late"] == []
    assert "waiting" not in drawn["boxes"]


def test_nothing_is_compared_before_it_is_drawn() -> None:
    skew = Skew(LATE.trace())
    state = state_of(skew)
    assert "arrivals" not in vars(skew)
    state.drawn()
    assert "arrivals" in vars(skew)
