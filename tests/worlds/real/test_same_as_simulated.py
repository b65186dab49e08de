"""A program has the same events, groups and bytes on simulated and on real ranks.

Modules: ``worlds/real/``, ``worlds/simulated/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dsexplore
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.real.rank_world import RankWorld
from tests.worlds.real.cells import cell_of

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("rank_server")]

RANKS = 4
MODEL = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(24, 8)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

def tensor_parallel(block, mesh):
    parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})

def train(model):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        model(torch.ones(3, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

torch.manual_seed(0)
model = nn.Sequential(Block(), Block())
"""
PROGRAMS = {
    "TP": """
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
for block in model:
    tensor_parallel(block, mesh)
train(model)
""",
    "FSDP2": """
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
for block in model:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
train(model)
""",
    "2-D": """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
for block in model:
    tensor_parallel(block, mesh["tp"])
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
train(model)
""",
    "DDP": """
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
train(DistributedDataParallel(model, process_group=mesh.get_group()))
""",
    "pipeline": """
group, example = dist.new_group(range(4)), (torch.ones(3, 8, requires_grad=True),)
stage = PipelineStage(
    Block(), dist.get_rank(), 4, torch.device("cpu"), example, example, group=group
)
schedule = Schedule1F1B(stage, 4, loss_fn=lambda output, target: (output - target).square().sum())
if dist.get_rank() == 0:
    schedule.step(torch.ones(12, 8))
else:
    schedule.step(**({"target": torch.ones(12, 8)} if dist.get_rank() == 3 else {}))
""",
}


@pytest.fixture
def world(rank_server: None) -> Iterator[RankWorld]:
    """Yield four ranks without a mesh of another program."""
    opened = RankWorld(RANKS)
    opened.open()
    yield opened
    opened.close()


def content(trace: Trace) -> dict[str, Any]:
    """Return the events, groups, modules and placements of a trace, without names and times."""
    groups = {row["group"]: (row["axis"], row["mesh"], tuple(row["ranks"])) for row in trace.groups.to_dicts()}
    own = ("start", "end", "waited", "state", "group")
    events = [
        {**{name: value for name, value in row.items() if name not in own}, "group": groups[row["group"]]}
        for row in trace.events.to_dicts()
    ]
    return {
        "events": events,
        "groups": sorted(set(groups.values())),
        "parameters": trace.parameters.to_dicts(),
        "modules": trace.modules.to_dicts(),
    }


OF_NEWER_TORCH = pytest.mark.skipif(
    not torch_at_least("2.10"), reason="stages of torch 2.9 send 8 bytes where they receive 4, and gloo ends the ranks"
)


@pytest.mark.parametrize(
    "name", [name if name != "pipeline" else pytest.param(name, marks=OF_NEWER_TORCH) for name in PROGRAMS]
)
def test_real_ranks_send_what_the_simulation_says(world: RankWorld, name: str) -> None:
    program = MODEL + PROGRAMS[name]
    run = world.run(cell_of(program)).check()
    assert run.trace is not None
    assert set(run.trace.events["state"]) == {"completed"}
    assert run.trace.info.clock_offsets == run.trace.info.clock_residuals == (0,) * RANKS  # one machine has one clock
    simulated = []
    for rank in range(RANKS):
        torch.manual_seed(0)
        with dsexplore.commtrace(world_size=RANKS, rank=rank, hardware="cpu") as trace:
            exec(compile(program, "cell", "exec"), {"__name__": "__main__"})
        simulated.append(trace)
    real, expected = content(run.trace), content(Trace.merge(simulated))
    assert real["events"]
    for what, rows in expected.items():
        assert real[what] == rows, what
