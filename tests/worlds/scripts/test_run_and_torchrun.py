"""`run` of one rank of four records the collectives of ``torchrun`` with four real ranks on gloo.

Modules: ``worlds/scripts/run_command.py``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import polars as pl
import pytest

import dsexplore

START = """\
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
torch.manual_seed(0)
dist.init_process_group("gloo")
"""
PLANS = {
    "ddp": """\
        from torch.nn.parallel import DistributedDataParallel
        model = DistributedDataParallel(model)
        """,
    "fsdp2": """\
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        for part in (model[0], model[2], model):
            fully_shard(part, mesh=mesh)
        """,
    "fsdp2 and tensor parallel": """\
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
        """,
}
MODEL = """
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
"""
STEPS = """
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for _ in range(2):
    loss = model(torch.randn(4, 16)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total = loss.detach().clone()
    dist.all_reduce(total)
"""
END = """
dist.barrier()
objects = [None] * 4
dist.all_gather_object(objects, {"steps": 2})
dist.destroy_process_group()
"""
ON_EACH_RANK = """\
import runpy, sys
import dsexplore
with dsexplore.commtrace(save=sys.argv[1]):
    runpy.run_path(sys.argv[2], run_name="__main__")
"""
COLUMNS = ["op", "message_bytes", "wire_bytes", "group_size", "dtype", "shape", "phase", "is_async"]


@pytest.mark.processes
def test_the_same_collectives_bytes_groups_and_order(tmp_path: Path) -> None:
    script, watch = tmp_path / "train.py", tmp_path / "watch.py"
    script.write_text(START + "".join(MODEL + dedent(plan) + STEPS for plan in PLANS.values()) + END)
    watch.write_text(ON_EACH_RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--standalone"]
    command += ["--log-dir", str(tmp_path / "logs")]
    environment = {**os.environ, "PYTHONPATH": str(Path(dsexplore.__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo"}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(
        [*command, str(watch), str(tmp_path / "real"), str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    real = dsexplore.load(tmp_path / "real")
    simulated = dsexplore.run(script, world_size=4, rank=0, hardware="cpu")
    columns = [column for column in COLUMNS if column in real.events.columns]
    assert len(columns) > 5
    expected = real.events.filter(pl.col("rank") == 0).select(columns)
    assert expected.height > 5 * len(PLANS)
    assert simulated.events.select(columns).rows() == expected.rows()
