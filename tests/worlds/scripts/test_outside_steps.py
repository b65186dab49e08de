"""Notes name what a script sends outside any module before its first step, and after its last one.

Modules: ``worlds/scripts/script_notes.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.analysis.headline import Headline
from dsexplore._internal.units import format_bytes

SCRIPT = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
for parameter in model.parameters():
    dist.broadcast(parameter.data, 0)
model(torch.ones(1, 4))
dist.barrier()
"""


def phases(folder: Path, script: str, **options: Any) -> list[tuple[str, str]]:
    (folder / "train.py").write_text(script)
    trace = dsexplore.run(folder / "train.py", world_size=4, hardware="cpu", **options)
    return list(trace.events.select("op", "phase").iter_rows())


@pytest.mark.parametrize("fake", [False, True])
def test_a_model_s_parameters_that_are_sent_before_it_is_called_are_start_up(tmp_path: Path, fake: bool) -> None:
    sent = phases(tmp_path, SCRIPT, fake=fake)
    assert sent == [("broadcast", "start-up")] * 2 + [("barrier", "other")]


REDUCES = """\
import torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters())
dist.broadcast(torch.cat([parameter.data.flatten() for parameter in model.parameters()]), 0)
for step in range(3):
    batch = torch.ones(1, 4)
    dist.broadcast(batch, 0)
    loss = model(batch).sum()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    dist.all_reduce(loss.detach())
"""


def test_a_line_that_sends_in_each_step_is_of_each_step(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REDUCES + "dist.barrier()\n")
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, hardware="cpu")
    in_step = ["broadcast", "all_reduce", "all_reduce", "all_reduce"]
    assert trace.where(phase="other").events.group_by("step", maintain_order=True).agg("op").rows() == [
        (step, in_step) for step in range(3)
    ]
    assert trace.where(phase="start-up").events["op"].to_list() == ["broadcast"]
    assert trace.where(phase="between steps").events["op"].to_list() == ["barrier"]
    assert "3 steady steps, equal" in str(Headline(trace.tables).sentences[0])


def test_one_step_that_does_not_show_what_comes_again_is_noted(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        TRAINS.replace("for _ in range(3)", "dist.all_reduce(torch.ones(2))\nfor _ in range(1)")
    )
    (note,) = dsexplore.run(tmp_path / "train.py", world_size=4, hardware="cpu").info.notes
    assert note.startswith("before the model sent anything, calls outside any module sent 1 collective (8 B; ")


TRAINS = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
"""


def test_what_follows_the_last_optimizer_step_once_is_between_steps(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS + "dist.all_reduce(torch.ones(2))\n")
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, hardware="cpu")
    assert trace.info.notes == ()
    between = trace.where(phase="between steps")  # beside the order of DDP's buckets
    assert between.where(op="all_reduce").events["source"].str.ends_with("train.py:8").all()
    sent = format_bytes(int(between.events["wire_bytes"].sum()))
    assert f"between steps {sent} per rank were sent" in str(Headline(trace.tables).sentences[0])


def test_a_backward_after_the_last_optimizer_step_is_of_a_step_that_did_not_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS + "model(torch.ones(1, 4)).sum().backward()\n")
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, hardware="cpu")
    (note,) = trace.info.notes
    assert note.endswith("they are of a step that did not end, which no figure per step counts")
    assert trace.info.whole_steps == 3
    assert Headline(trace.tables).steady.whole == 3


def test_nothing_is_noted_where_nothing_follows(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    assert dsexplore.run(tmp_path / "train.py", world_size=4, hardware="cpu").info.notes == ()


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
