"""``--ranks distinct`` runs few ranks, whose trace represents all."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import dsexplore
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.trace.represented_ranks import ranks_in
from dsexplore._internal.worlds.scripts.program import Program
from dsexplore._internal.worlds.scripts.run_as_rank import Setting
from dsexplore._internal.worlds.scripts.trace_script import trace_distinct_ranks

SCRIPT = """\
import sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2, 5), mesh_dim_names=("pp", "dp"))
stage, group = mesh.get_local_rank("pp"), mesh.get_group("pp")
model = torch.nn.Linear(4, 8 if stage else 10)   # 8 rows over 5 ranks: 2, 2, 2, 2, 0
fully_shard(model, mesh=mesh["dp"])
if stage == 0:
    dist.send(torch.ones(3), group=group, group_dst=1)
else:
    dist.recv(torch.ones(3), group=group, group_src=0)
model(torch.ones(2, 4)).sum().backward()
if dist.get_rank() == 3:
    dist.broadcast(torch.ones(1), src=3)
if "fail" in sys.argv:
    raise ValueError("no data")
"""


@pytest.mark.processes
def test_the_ranks_that_are_run_stand_for_all(script: Path, tmp_path: Path) -> None:
    settings = {"world_size": 10, "hardware": "cpu", "steps": None}
    trace = dsexplore.run(script, ranks="distinct", save=tmp_path / "trace.parquet", **settings)
    described = dict(zip(trace.info.ranks, map(ranks_in, trace.info.stands_for), strict=True))
    assert sorted(rank for ranks in described.values() for rank in ranks) == list(range(10))
    # rank 3 broadcasts; the last rank of the second stage holds no rows
    assert sorted(described.values()) == [[0, 1, 2, 4], [3], [5, 6, 7, 8], [9]]
    assert dsexplore.load(tmp_path / "trace.parquet").info == trace.info
    everyone = dsexplore.run(script, ranks="all", **settings)
    assert trace.by_op().rows() == everyone.by_op().rows()
    assert trace.by_module().rows() == everyone.by_module().rows()
    for rank, ranks in described.items():
        held = [everyone.parameters.filter(pl.col("rank") == each).drop("rank").rows() for each in ranks]
        assert all(rows == trace.parameters.filter(pl.col("rank") == rank).drop("rank").rows() for rows in held)
    first, second, *_ = trace.info.notes
    assert first.startswith("4 ranks stand for all 10: they differ by pp, `dist.get_rank() == 3` (")
    assert "inferred from those that were run" in second
    assert trace.unmatched().is_empty()


@pytest.mark.processes
def test_a_program_that_fails_is_not_run_on_more_ranks(script: Path) -> None:
    trace, ends = trace_distinct_ranks(Program(str(script), ("fail",)), Setting(world_size=10, hardware="cpu"))
    assert [end.rank for end in ends] == [0, 9]
    assert all("ValueError: no data" in end.traceback for end in ends)
    assert trace.info.stands_for == ()
    with pytest.raises(dsexplore.RanksFailedError, match=r"(?s)rank 0 of 10: Traceback.*no data") as raised:
        dsexplore.run(script, "fail", world_size=10, hardware="cpu", ranks="distinct")
    assert len(raised.value.trace.info.ranks) == 2  # type: ignore[attr-defined] # documented by `run`


def test_one_way_of_naming_ranks(script: Path) -> None:
    with pytest.raises(dsexplore.UsageError, match="rank=1 and ranks='all': give one of the two"):
        dsexplore.run(script, world_size=10, rank=1, ranks="all")


PIPELINE = """\
import sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("pp", "dp"))
stage = mesh.get_local_rank("pp")
model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(6)]).cuda()
backwards = []
def sometimes(module, inputs, gradients):
    backwards.append(1)
    if len(backwards) % 2:
        dist.all_reduce(torch.ones(1, device="cuda"))
if "unlike" in sys.argv:
    model[1].register_full_backward_pre_hook(lambda module, gradients: sometimes(module, None, gradients))
fully_shard(model, mesh=mesh["dp"])
x = torch.zeros(1, 4, device="cuda", requires_grad=stage > 0)
out = torch.zeros(1, 4, device="cuda", requires_grad=True)
stage = PipelineStage(model, stage, 2, torch.device("cuda"), x, out, group=mesh.get_group("pp"))
schedule = ScheduleGPipe(stage, 8, loss_fn=torch.nn.MSELoss())
batch = torch.zeros(8, 4, device="cuda")
if stage.is_first:
    schedule.step(batch)
else:
    schedule.step(target=batch)
"""


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [(), ("unlike",)])
def test_microbatches_that_are_repeated_are_in_the_trace(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE)
    trace, everyone = (
        dsexplore.run(path, *arguments, world_size=4, fake=True, ranks=ranks) for ranks in ("distinct", "all")
    )
    assert trace.info.ranks_stood_for == 4
    assert trace.by_op().rows() == everyone.by_op().rows()
    assert trace.by_module().rows() == everyone.by_module().rows()
    # Stages of torch 2.9 send 8 bytes where they receive 4.
    assert trace.unmatched().is_empty() is torch_at_least("2.10")
    assert any("without being run" in note for note in trace.info.notes) == (not arguments)
    assert not any("without being run" in note for note in everyone.info.notes)


@pytest.mark.processes
def test_a_user_may_have_everything_run(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.py"
    path.write_text(PIPELINE)
    trace = dsexplore.run(path, world_size=4, fake=True, ranks="distinct", skip_repeats=False)
    assert not any("without being run" in note for note in trace.info.notes)


SHARDED = """\
import sys
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
model = fully_shard(torch.nn.Linear(4, int(sys.argv[1])), mesh=mesh)
model(torch.ones(2, 4)).sum().backward()
"""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        (8, "1 rank stands for all 4: nothing differs"),
        (7, "2 ranks stand for all 4: they differ by the sizes of their shards alone"),
    ],
)
def test_ranks_that_differ_by_their_shards_alone_are_not_called_equal(tmp_path: Path, rows: int, kinds: str) -> None:
    path = tmp_path / "sharded.py"
    path.write_text(SHARDED)
    trace = dsexplore.run(path, str(rows), world_size=4, hardware="cpu", ranks="distinct")
    assert trace.info.notes[0].startswith(kinds)
