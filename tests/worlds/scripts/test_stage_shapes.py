"""A simulated rank learns the shapes of pipeline stages, and sends what a real rank does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed.pipelining import PipelineStage

import dsexplore
from dsexplore._internal.worlds.scripts import stage_shapes
from dsexplore._internal.worlds.scripts.stage_shapes import EarlierStages, ShapesKnown

pytestmark = pytest.mark.skipif(
    not hasattr(PipelineStage, "_recv_meta"), reason="up to torch 2.11 stages ask in another way"
)

SCRIPT = """\
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
dist.init_process_group("gloo")
rank, count = dist.get_rank(), dist.get_world_size()
widths = [4, 6, 3, 5]
module = nn.Sequential(nn.Linear(widths[rank], widths[rank + 1]), nn.ReLU())
stage = PipelineStage(module, rank, count, torch.device("cpu"))
schedule = Schedule1F1B(stage, 3, loss_fn=nn.MSELoss())
if rank == 0:
    schedule.step(torch.randn(6, widths[0]))
elif rank == count - 1:
    schedule.step(target=torch.randn(6, widths[count]))
else:
    schedule.step()
"""
COLUMNS = ["op", "message_bytes", "group_size", "dtype", "shape", "phase", "peer", "is_object"]


def on_real_ranks(script: str) -> Any:
    """Return what a rank sends, recorded in it."""
    import runpy

    with dsexplore.commtrace() as trace:
        runpy.run_path(script, run_name="__main__")
    return trace.events.select(COLUMNS).rows()


@pytest.mark.processes
def test_sends_what_a_real_rank_sends(script: Path) -> None:
    real = dsexplore.run_ranks(on_real_ranks, 3, args=(str(script),), backend=None, timeout=240).values
    trace = dsexplore.run(script, world_size=3, rank=1, hardware="cpu")
    assert trace.events.select(COLUMNS).rows() == real[1]
    assert len(real[1]) > 12
    (note,) = trace.info.notes
    assert note.startswith("the gradients that later pipeline stages send are assumed to have the shapes")


@pytest.mark.processes
def test_a_stage_that_never_knows_is_one_error(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("if rank == 0:", "if rank == 0:\n    raise ValueError('no data')\nelif rank == -1:"))
    with pytest.raises(dsexplore.UsageError, match=r"rank 0 was run for the output shapes of .* 0,.*no data"):
        dsexplore.run(path, world_size=3, rank=1, hardware="cpu")


def stage(index: int) -> Any:
    return SimpleNamespace(stage_index=index)


class TestEarlierStages:
    @pytest.fixture(autouse=True)
    def answers_are_numbers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stage_shapes, "output_message", lambda stage: f"answer {stage.stage_index}")
        monkeypatch.setattr(stage_shapes, "rank_of_stage", lambda stage, index: 10 * index)

    def test_are_run_in_turn_each_with_the_answers_before(self) -> None:
        ran: list[tuple[int, int, dict[int, Any]]] = []

        def run(rank: int, index: int, known: Any) -> str:
            ran.append((rank, index, dict(known)))
            return f"answer {index}"

        earlier = EarlierStages(run)
        assert earlier.ask(stage(2), 1) == "answer 1"
        assert ran == [(0, 0, {}), (10, 1, {0: "answer 0"})]
        earlier.ask(stage(2), 1)
        assert len(ran) == 2

    def test_a_stage_of_the_same_rank_is_not_run(self) -> None:
        earlier = EarlierStages(lambda *_: pytest.fail("run"))
        earlier.record(stage(0))
        assert earlier.ask(stage(1), 0) == "answer 0"

    def test_ranks_share_answers_through_a_folder(self, tmp_path: Path) -> None:
        EarlierStages(lambda *_: None, str(tmp_path), rank=10).record(stage(1))
        EarlierStages(lambda *_: None, str(tmp_path), rank=0).record(stage(0))
        assert EarlierStages(lambda *_: pytest.fail("run"), str(tmp_path)).ask(stage(2), 1) == "answer 1"
        assert len([*tmp_path.iterdir()]) == 2

    def test_the_program_ends_with_the_answer_that_is_wanted(self) -> None:
        with pytest.raises(ShapesKnown) as ended:
            EarlierStages(lambda *_: None, wanted=1).record(stage(1))
        assert ended.value.message == "answer 1"
        assert not isinstance(ended.value, Exception)
