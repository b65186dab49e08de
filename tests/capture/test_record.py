"""What a recording says of itself: ranks, world, notes, lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder_in_use import is_recording
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import step_marks
from dsexplore._internal.worlds.simulate import simulate


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def world_of(trace: Any) -> tuple[tuple[int, ...], int]:
    return trace.info.ranks, trace.info.world_size


def test_a_process_alone_is_a_world_without_a_rank() -> None:
    with record() as trace:
        pass
    assert world_of(trace) == ((), 1)
    assert not trace.info.simulated


def test_a_launched_process_has_its_rank_before_there_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with record() as trace:
        pass
    assert world_of(trace) == ((3,), 8)


def test_a_rank_that_sends_nothing_is_still_that_rank() -> None:
    with simulate(4, rank=2), record() as trace:
        pass
    assert world_of(trace) == ((2,), 4)


def test_a_world_that_was_closed_has_the_size_of_the_largest_group_seen() -> None:
    with record() as trace, simulate(4, rank=2):
        dist.all_reduce(torch.ones(1))
        dist.all_reduce(torch.ones(1), group=dist.new_group([1, 2]))
    assert world_of(trace) == ((2,), 4)
    assert trace.info.simulated


def test_inner_recordings_number_their_own_events_and_calls() -> None:
    model = torch.nn.Linear(1, 1)
    with simulate(4), record() as outer:
        model(torch.ones(1, 1))
        dist.all_reduce(torch.ones(1))
        outer.step()
        with record() as inner:
            model(torch.ones(1, 1))
            dist.all_reduce(torch.ones(2))
        model(torch.ones(1, 1))
    assert list(outer.events.select("seq", "step", "message_bytes").iter_rows()) == [(0, 0, 4), (1, 1, 8)]
    assert list(inner.events.select("seq", "step", "message_bytes").iter_rows()) == [(0, 0, 8)]
    assert (outer.modules["calls"].item(), inner.modules["calls"].item()) == (3, 1)


def test_a_lengthened_step_takes_what_came_after_its_end() -> None:
    with simulate(2), record() as trace:
        with pytest.raises(UsageError, match="no step to lengthen"):
            step_marks(trace).lengthen_step()
        dist.all_reduce(torch.ones(1))
        trace.step()
        dist.all_reduce(torch.ones(2))
        step_marks(trace).lengthen_step()
        dist.all_reduce(torch.ones(3))
    assert list(trace.events.select("step", "message_bytes").iter_rows()) == [(0, 4), (0, 8), (1, 12)]


def test_a_lengthened_step_takes_the_work_that_came_after_its_end() -> None:
    with record(costs=True) as trace:
        for size in (2, 3, 4, 5):
            torch.ones(size, size) @ torch.ones(size, size)
            (step_marks(trace).lengthen_step if size == 4 else trace.step)()
    products = trace.tables.kernels.filter(kind="matmul")
    assert products.select("step", "shape").rows() == [
        (step, [1, n, n, n]) for step, n in ((0, 2), (1, 3), (1, 4), (2, 5))
    ]


def test_a_recording_that_ends_with_its_step_leaves_out_what_came_after() -> None:
    with simulate(2), record(costs=True) as trace:
        dist.all_reduce(torch.ones(1) @ torch.ones(1))
        trace.step()
        dist.all_reduce(torch.ones(2, 2) @ torch.ones(2))
        step_marks(trace).end_with_step()
        assert trace.events["message_bytes"].to_list() == [4]
    assert trace.events["message_bytes"].to_list() == [4]
    assert trace.tables.kernels["step"].unique().to_list() == [0]
    assert trace.tables.memory["step"].unique().to_list() == [0]


def test_steps_are_marked_while_the_recording_runs() -> None:
    with record() as trace:
        pass
    with pytest.raises(UsageError, match=r"trace\.step\(\) was called after the recording ended"):
        trace.step()
    with pytest.raises(UsageError, match=r"step_marks\(trace\) was called after the recording ended"):
        step_marks(trace)


def test_the_deepest_stack_that_is_wanted_is_read_for_all_and_each_keeps_its_own() -> None:
    def send() -> None:
        dist.all_reduce(torch.ones(1))

    with simulate(4), record() as short, record(stack_depth=2) as long:
        send()
    assert [trace.events["source"].item().count("←") for trace in (short, long)] == [0, 1]


@pytest.mark.parametrize("depth", [0, -1])
def test_a_stack_depth_that_keeps_no_line_is_refused(depth: int) -> None:
    with pytest.raises(UsageError, match=f"stack_depth={depth}"), record(stack_depth=depth):
        pytest.fail("the block must not run")
    assert not is_recording()


def test_further_notes_are_made_of_the_number_of_collectives() -> None:
    with simulate(4), record(further_notes=lambda events: [f"{events} so far"]) as trace:
        dist.all_reduce(torch.ones(1))
        assert trace.info.notes == ("1 so far",)
        dist.all_reduce(torch.ones(1))
    assert trace.info.notes == ("2 so far",)


def test_an_error_of_the_block_is_raised_where_the_trace_cannot_be_saved(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ArithmeticError) as caught, record(save=tmp_path / "file" / "step.parquet") as trace:
        raise ArithmeticError("of the block")
    (note,) = caught.value.__notes__
    assert note.startswith("The 0 collectives recorded until then are kept in the trace, but could not be saved: ")
    assert trace.info.notes == ("the recording ended early, with ArithmeticError",)
    assert not is_recording()
