"""The drop-in for torch's CommDebugMode returns the same results where torch's are right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor import debug as torch_debug
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dsexplore import CommDebugMode
from dsexplore._internal.comm_debug_mode.mode import CommModeModuleTracker
from dsexplore._internal.torch_internals.names import torch_at_least

ALL_REDUCE = torch.ops.c10d_functional.all_reduce
ALL_GATHER = torch.ops.c10d_functional.all_gather_into_tensor
FORWARD, BACKWARD = "forward", "backward"


class MLP(nn.Module):
    """Two linear layers; tensor parallelism adds one all_reduce at the end of the forward."""

    def __init__(self, width: int = 8, *, inplace: bool = False) -> None:
        super().__init__()
        self.net1 = nn.Linear(width, width)
        self.relu = nn.ReLU(inplace=inplace)
        self.net2 = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.net2(self.relu(self.net1(x)))
        return out


def sharded(mesh: DeviceMesh, model: nn.Module) -> nn.Module:
    plan = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
    for part in [model] if isinstance(model, MLP) else model.children():
        parallelize_module(part, mesh, plan)
    return model


def all_reduces(mode: CommDebugMode, module: str) -> dict[str, int]:
    return {phase: ops[ALL_REDUCE] for phase, ops in mode.comm_module_counts[module].items() if ops[ALL_REDUCE]}


@pytest.mark.parametrize("level", [0, 1, 2])
def test_tables_and_json_are_torch_s(mesh: DeviceMesh, tmp_path: Path, level: int) -> None:
    tables, dumps = [], []
    for kind in (CommDebugMode, torch_debug.CommDebugMode):
        model = sharded(mesh, MLP())
        with kind() as mode:
            model(torch.ones(4, 8)).sum().backward()
        tables.append(mode.generate_comm_debug_tracing_table(level))
        mode.generate_json_dump(str(tmp_path / "log.json"), level)
        dumps.append(json.loads((tmp_path / "log.json").read_text(encoding="utf-8")))
    assert without_empty_sections(tables[0]) == without_empty_sections(tables[1])
    assert same_form(dumps[0]) == same_form(dumps[1])


def without_empty_sections(table: str) -> list[str]:
    """Return a table without the sections that torch prints although the noise level hides their operations."""
    lines = [line for line in table.splitlines() if "aten.detach" not in line]
    return [line for line in lines if not re.search(r"(FORWARD|BACKWARD) PASS", line)]


def same_form(node: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in node.items() if key not in ("collectives_recompute", "collectives_optimizer")}
    kept["children"] = [same_form(child) for child in node["children"]]
    return kept


def test_counts_of_functional_collectives(mesh: DeviceMesh) -> None:
    group = mesh.get_group()
    mode = CommDebugMode()
    with mode:
        x = funcol.all_gather_tensor(torch.ones(4, 8), 0, group)
        x = funcol.reduce_scatter_tensor(x, "sum", 0, group)
        funcol.all_reduce_coalesced([x, x], "sum", group)
        funcol.all_reduce(x, "sum", group)
    ops = torch.ops.c10d_functional
    assert mode.get_comm_counts() == {
        ALL_GATHER: 1,
        ops.reduce_scatter_tensor: 1,
        ops.all_reduce_coalesced: 1,
        ALL_REDUCE: 1,
    }
    assert mode.get_total_counts() == 4
    if torch_at_least("2.10"):  # the class of torch 2.9 writes no numbers
        assert repr(mode) == "CommDebugMode(get_total_counts()=4)"


C10D_CALLS: dict[str, Callable[[torch.Tensor, list[torch.Tensor]], Any]] = {
    "_allgather_base_": lambda x, parts: dist.all_gather_into_tensor(torch.cat(parts), x),
    "_reduce_scatter_base_": lambda x, parts: dist.reduce_scatter_tensor(x, torch.cat(parts)),
    "allgather_": lambda x, parts: dist.all_gather(parts, x),
    "allreduce_": lambda x, parts: dist.all_reduce(x),
    "allreduce_coalesced_": lambda x, parts: dist.all_reduce_coalesced(parts),
    "alltoall_": lambda x, parts: dist.all_to_all([torch.empty_like(x) for _ in parts], parts),
    "alltoall_base_": lambda x, parts: dist.all_to_all_single(x, x.clone()),
    "broadcast_": lambda x, parts: dist.broadcast(x, 0),
    "gather_": lambda x, parts: dist.gather(x, parts, 0),
    "reduce_": lambda x, parts: dist.reduce(x, 0),
    "reduce_scatter_": lambda x, parts: dist.reduce_scatter(x, parts),
    "scatter_": lambda x, parts: dist.scatter(x, parts, 0),
}


@pytest.mark.parametrize("name", C10D_CALLS)
def test_counts_of_c10d_collectives(mesh: DeviceMesh, name: str) -> None:
    x = torch.ones(4, 8)
    with CommDebugMode() as mode:
        C10D_CALLS[name](x, [x.clone() for _ in range(4)])
    assert mode.get_comm_counts() == {getattr(torch.ops.c10d, name): 1}


def test_redistributes_count_what_they_issue(mesh: DeviceMesh) -> None:
    x = distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)])
    with CommDebugMode() as mode:
        x.redistribute(mesh, [Replicate()])
    assert mode.get_comm_counts() == {ALL_GATHER: 1}


def test_parameters_and_placements_by_module(mesh: DeviceMesh, capsys: pytest.CaptureFixture[str]) -> None:
    model = sharded(mesh, nn.Sequential(MLP(), MLP()))
    mode = CommDebugMode()
    with mode:
        assert mode.get_parameter_info() == {}
        assert mode.get_sharding_info() == {}
        assert mode.comm_module_counts == {"Global": {FORWARD: {}, BACKWARD: {}}}
        model(torch.ones(4, 8))
    names = [f"Sequential.{name}" for name, _ in model.named_parameters()]
    found = mode.get_parameter_info()
    assert [f"{module}.{name}" for module, own in found.items() for name in own] == names
    assert found["Sequential.0.net1"]["weight"] is not None
    assert list(mode.get_sharding_info()) == names
    assert mode.get_sharding_info()["Sequential.1.net2.weight"] == (Shard(1),)
    tracker = mode.advanced_module_tracker
    assert (
        tracker.module_depth_dict["Sequential.0.net1"] == tracker.module_helper_dict["Sequential.0.net1"]["depth"] == 3
    )
    assert tracker.parent_dict["Sequential"] == ["Sequential.0", "Sequential.1"]
    assert tracker.module_parents_dict["Sequential.0"] == {"Global", "Sequential", "Sequential.0"}
    mode.print_sharding_info()
    assert "Sequential.1.net2.weight: (Shard(dim=1),)" in capsys.readouterr().out
    mode.print_paramater_info()
    assert "Sequential.0.net1" in capsys.readouterr().out


def test_earlier_names(mesh: DeviceMesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = sharded(mesh, MLP())
    with CommDebugMode() as mode:
        model(torch.ones(4, 8)).sum().backward()
    assert mode.get_comm_module_counts()["MLP.net2"][ALL_REDUCE] == 1
    mode.log_module_tracing_table_to_file()
    assert (tmp_path / "output.txt").read_text(encoding="utf-8").splitlines() == [
        "Global",
        "  *c10d_functional.all_reduce: 1",
        "  MLP",
        "    *c10d_functional.all_reduce: 1",
        "    MLP.net1",
        "    MLP.relu",
        "    MLP.net2",
        "      *c10d_functional.all_reduce: 1",
    ]
    assert "\033[1;33m      *c10d_functional.all_reduce: 1\033[0m" in mode.generate_module_tracing_table()
    mode.log_comm_debug_tracing_table_to_file(noise_level=0)
    mode.generate_json_dump()
    assert {file.name for file in tmp_path.iterdir()} == {"output.txt", "comm_mode_log.txt", "comm_mode_log.json"}
    assert "\033" not in (tmp_path / "comm_mode_log.txt").read_text(encoding="utf-8")


def test_operations_outside_modules_are_listed() -> None:
    with CommDebugMode() as mode:
        torch.ones(2) + torch.ones(2)
    listed = mode.comm_module_operation_counts["Global"]["operations_list"]
    assert [str(operation["name"]) for operation in listed] == [
        "aten.ones.default",
        "aten.ones.default",
        "aten.add.Tensor",
    ]
    table = mode.generate_comm_debug_tracing_table()
    assert "**aten.add.Tensor" in table


def test_the_tracker_works_alone(mesh: DeviceMesh) -> None:
    tracker = CommModeModuleTracker()
    model = sharded(mesh, MLP())
    names: list[str] = []
    model.get_submodule("net2").register_forward_hook(lambda *_: names.append(tracker.name))
    with tracker:
        model(torch.ones(4, 8))
        assert tracker.name == "Global"
    assert names == ["MLP.net2"]
    assert list(tracker.module_parameters_dict) == ["MLP.net1", "MLP.net2"]
    assert tracker.sharding_dict["MLP.net1.weight"] == (Shard(0),)


def test_a_second_block_starts_anew_and_the_dictionaries_stay_the_same_objects(mesh: DeviceMesh) -> None:
    mode = CommDebugMode()
    x = torch.ones(4)
    with mode:
        counts = mode.get_comm_counts()
        dist.all_reduce(x)
        dist.broadcast(x, 0)
    assert counts == {torch.ops.c10d.allreduce_: 1, torch.ops.c10d.broadcast_: 1}
    with mode:
        assert mode.get_total_counts() == 0
        dist.all_reduce(x)
        assert mode.get_total_counts() == 1
    assert counts == {torch.ops.c10d.allreduce_: 1}


def test_the_trace_behind_it_has_bytes_and_groups(mesh: DeviceMesh) -> None:
    with CommDebugMode() as mode:
        dist.all_reduce(torch.ones(256), group=mesh.get_group())
        dist.barrier()
    assert mode.trace.by_op().rows() == [("all_reduce", 1, 1024, 1536), ("barrier", 1, 0, 0)]
    assert mode.trace.events["axis"].to_list()[0] == "tp"
    assert mode.get_total_counts() == 1, "torch counts no barriers"
