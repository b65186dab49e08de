"""When the stages of a pipeline compute."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.cost.step.schedules import (
    Schedule,
    gpipe,
    interleaved_1f1b,
    one_forward_one_backward,
    place,
    read_schedule,
)
from dsexplore._internal.errors import UsageError


def read(name: str, stages: int, microbatches: int, **order: str) -> Schedule:
    data = {"schedule": name, "stages": stages, "microbatches": microbatches, "order": order, "own": [0]}
    schedule = read_schedule(json.dumps(data))
    assert schedule is not None
    return schedule


def end(schedule: Schedule, forward: float = 1.0, backward: float = 2.0, transfer: float = 0.0) -> float:
    stages = range(schedule.stages)
    return max(
        each.end for each in place(schedule, dict.fromkeys(stages, forward), dict.fromkeys(stages, backward), transfer)
    )


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
@given(stages=st.integers(1, 8), extra=st.integers(0, 8))
def test_the_bubble_is_that_of_the_textbook(name: str, stages: int, extra: int) -> None:
    """(p − 1) of (m + p − 1) parts, for stages of equal time."""
    microbatches = stages + extra
    assert end(read(name, stages, microbatches)) == pytest.approx(3.0 * (microbatches + stages - 1))


@given(stages=st.integers(1, 6), microbatches=st.integers(1, 12))
def test_every_action_runs_once(stages: int, microbatches: int) -> None:
    for actions in (gpipe, lambda stage, count: one_forward_one_backward(stage, stages, count)):
        for stage in range(stages):
            made = actions(stage, microbatches)
            assert len(set(made)) == len(made) == 2 * microbatches


def test_interleaved_stages_have_a_smaller_bubble() -> None:
    """Of torch's own list of an interleaved schedule of 2 ranks and 4 stages."""
    order = {
        "0": "0F0 0F1 2F0 2F1 2B0 0F2 2B1 0F3 0B0 2F2 0B1 2F3 2B2 2B3 0B2 0B3",
        "1": "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    }
    interleaved = read("ScheduleInterleaved1F1B", 4, 4, **order)
    assert interleaved.stages_per_rank == 2
    assert end(interleaved, 0.5, 1.0) < end(read("Schedule1F1B", 2, 4))


@given(ranks=st.integers(2, 6), parts=st.integers(1, 4), groups=st.integers(1, 4))
def test_interleaved_stages_divide_the_bubble(ranks: int, parts: int, groups: int) -> None:
    """(p − 1) / v of the time of one microbatch, as Megatron's paper on it says (arXiv 2104.04473, 2.2.2)."""
    count = groups * ranks
    order = tuple(interleaved_1f1b(rank, ranks, parts, count) for rank in range(ranks))
    schedule = Schedule("interleaved", ranks * parts, count, order)
    assert all(len(set(actions)) == len(actions) == 2 * parts * count for actions in order)
    assert end(schedule, 1.0 / parts, 2.0 / parts) == pytest.approx(3.0 * (count + (ranks - 1) / parts))


def test_halves_of_a_backward_run_one_after_the_other() -> None:
    schedule = read("ScheduleZBVZeroBubble", 2, 1, **{"0": "0F0 0I0 0W0", "1": "1F0 1I0 1W0"})
    assert end(schedule) == pytest.approx(1 + 1 + 1 + 1 + 1)  # two forwards, two halves to inputs, one to weights


def test_a_slow_message_delays_the_next_stage() -> None:
    assert end(read("Schedule1F1B", 2, 1), transfer=0.5) == pytest.approx(2 + 4 + 1.0)


def test_no_schedule_and_unknown_ones() -> None:
    assert read_schedule("") is None
    with pytest.raises(UsageError, match="ScheduleOfTheFuture"):
        read("ScheduleOfTheFuture", 2, 2)


def test_actions_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(UsageError, match="wait for each other"):
        end(read("ScheduleInterleaved1F1B", 2, 1, **{"0": "0B0 0F0", "1": "1F0 1B0"}))
