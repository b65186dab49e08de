"""What a script sends outside any module before its first step is said."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsexplore

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
    assert "train.py:5): they belong to the start" in note
    assert trace.events["phase"].to_list() == ["other"] * 3


def test_a_note_names_three_lines_at_most(tmp_path: Path) -> None:
    early = "dist.barrier()\n" * 4 + "model(torch"
    (tmp_path / "train.py").write_text(SCRIPT.replace("model(torch", early, 1))
    (note,) = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu").info.notes
    assert "train.py:7 and 2 more lines): they belong" in note
    (tmp_path / "train.py").write_text(SCRIPT.replace("model(torch", early.replace("dist.barrier()\n", "", 1), 1))
    (note,) = dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu").info.notes
    assert "train.py:7 and 1 more line): they belong" in note


@pytest.mark.parametrize("line", ["    dist.broadcast(parameter.data, 0)", "model(torch.ones(1, 4))"])
def test_nothing_is_noted_where_nothing_is_sent_before_or_no_module_runs(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace(line, "    pass" if line.startswith(" ") else ""))
    assert dsexplore.run(tmp_path / "train.py", world_size=4, device="cpu").info.notes == ()
