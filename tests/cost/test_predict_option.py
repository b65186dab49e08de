"""``dsexplore run --predict``: a script's step, predicted where its trace is printed.

Modules: ``cli.py``, ``worlds/scripts/run_command.py``, ``cost/step/prediction.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.cli import main

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
    assert main(["run", "--world-size", "8", "--fake", "--predict", str(script)]) == 0
    out = capsys.readouterr().out
    assert "predicted on DGX H100: " in out
    assert "exposed communication" in out


SHARDED = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.o = nn.Linear(8192, 8192, dtype=torch.bfloat16), nn.Linear(8192, 8192, dtype=torch.bfloat16)

    def forward(self, x):
        q = self.q(x).view(4, 8192, -1, 128).transpose(1, 2)
        x = nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
        return self.o(x.transpose(1, 2).flatten(2))


model = Block().cuda()
plan = {"q": ColwiseParallel(input_layouts=Shard(1)), "o": RowwiseParallel(output_layouts=Shard(1))}
parallelize_module(model, init_device_mesh("cuda", (8,), mesh_dim_names=("tp",)), plan)
optimizer = torch.optim.SGD(model.parameters())
model(torch.randn(4, 1024, 8192, device="cuda", dtype=torch.bfloat16)).sum().backward()
optimizer.step()
"""


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ([], {}),
        (["--async-tp"], {"async_tp": True}),
        (["--attention", "cudnn"], {"attention": "cudnn"}),
        (["--async-tp", "--attention", "cudnn"], {"async_tp": True, "attention": "cudnn"}),
    ],
)
def test_a_step_is_predicted_with_the_kernels_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str], options: dict[str, Any]
) -> None:
    script, saved = tmp_path / "train.py", tmp_path / "step.parquet"
    script.write_text(SHARDED)
    given = ["--world-size", "8", "--fake", "--predict", "--save", str(saved)]
    assert main(["run", *given, *line, str(script)]) == 0
    trace = dsexplore.load(saved)
    predicted = trace.predict("dgx-h100", **options)
    assert predicted._repr_mimebundle_()["text/plain"] in capsys.readouterr().out
    if options:
        assert predicted.step.expected < trace.predict("dgx-h100").step.expected


@pytest.mark.parametrize(("line", "named"), [(["--async-tp"], "--async-tp"), (["--attention", "cudnn"], "--attention")])
def test_kernels_of_no_prediction_are_refused_before_the_script_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: list[str], named: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    assert main(["run", "--world-size", "8", *line, str(script)]) == 2
    assert f"{named} is an option of a predicted step: give --predict too" in capsys.readouterr().err


def test_unknown_hardware_is_refused_before_the_script_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(7)")
    assert main(["run", "--world-size", "8", "--predict", "--hardware", "abacus", str(script)]) == 2
    assert "no hardware named 'abacus'" in capsys.readouterr().err
