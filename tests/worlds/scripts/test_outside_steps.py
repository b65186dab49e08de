"""What a script sends outside any module before its first step, and after its last one, is said."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsexplore
from dsexplore.analysis.headline import Headline

SCRIPT = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
model(torch.ones(1, 4))
dist.barrier()
"""


@pytest.mark.parametrize("fake", [False, True])
def test_is_noted_with_its_lines(tmp_path: Path, fake: bool) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu", fake=fake)
    (note,) = trace.info.notes
    assert note.startswith("before the first module ran, calls outside any module sent 2 collectives (40 B; ")
    assert "train.py:5): figures per step count them, although they belong to the start" in note
    assert trace.events["phase"].to_list() == ["other"] * 3


def test_a_note_names_three_lines_at_most(tmp_path: Path) -> None:
    early = "dist.barrier()\n" * 4 + "model(torch"
    (tmp_path / "train.py").write_text(SCRIPT.replace("model(torch", early, 1))
    (note,) = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu").info.notes
    assert "train.py:7 and 2 more lines): figures per step" in note
    (tmp_path / "train.py").write_text(SCRIPT.replace("model(torch", early.replace("dist.barrier()\n", "", 1), 1))
    (note,) = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu").info.notes
    assert "train.py:7 and 1 more line): figures per step" in note


@pytest.mark.parametrize("line", ["    dist.broadcast(parameter.data, 0)", "model(torch.ones(1, 4))"])
def test_nothing_is_noted_where_nothing_is_sent_before_or_no_module_runs(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace(line, "    pass" if line.startswith(" ") else ""))
    assert dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu").info.notes == ()


TRAINS = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


def test_what_follows_the_last_optimizer_step_is_noted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS + "dist.all_reduce(torch.ones(2))\n")
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu")
    (note,) = trace.info.notes
    assert note.startswith("after the last optimizer step the script sent 1 collective (8 B; ")
    assert note.endswith("train.py:8): they count to that step, and --steps 3 leaves them out")
    assert trace.where(step=3).events["source"].str.ends_with("train.py:8").all()
    assert "3 steps" in str(Headline(trace.tables).sentences[0])
    cut = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu", steps=3)
    assert cut.events["step"].unique().to_list() == [0, 1, 2]
    assert not any("after the last" in note for note in cut.info.notes)


def test_a_backward_after_the_last_optimizer_step_counts_as_a_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS + "model(torch.ones(1, 4)).sum().backward()\n")
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu")
    (note,) = trace.info.notes
    assert "they count as one more step, and --steps 3 leaves them out" in note
    assert "4 steps" in str(Headline(trace.tables).sentences[0])


def test_nothing_is_noted_where_nothing_follows(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    assert dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu").info.notes == ()


def test_parameters_that_are_gathered_ahead_are_of_the_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom torch.distributed.fsdp import fully_shard\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        'model = torch.nn.Linear(4, 4, device="cuda")\n'
        'fully_shard(model, mesh=init_device_mesh("cuda", (4,)))\n'
        'model.unshard()\nmodel(torch.ones(1, 4, device="cuda"))\n'
    )
    trace = dsexplore.run(tmp_path / "train.py", world_size=4)
    assert trace.events["op"].to_list() == ["all_gather"]
    assert trace.info.notes == ()
