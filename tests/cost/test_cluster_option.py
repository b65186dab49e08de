"""``dsexplore run --cluster``: a script's step, predicted where its trace is printed."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore.cli import main

SCRIPT = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

mesh = init_device_mesh("cuda", (8,))
model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
for layer in model:
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    model(torch.randn(16, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_script_s_step_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert main(["run", "--world-size", "8", "--fake", "--cluster", "dgx-h100", str(script)]) == 0
    out = capsys.readouterr().out
    assert "predicted on DGX H100: " in out
    assert "exposed communication" in out


def test_an_unknown_cluster_is_refused_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    assert main(["run", "--world-size", "8", "--cluster", "abacus", str(script)]) == 2
    assert "no cluster named 'abacus'" in capsys.readouterr().err
