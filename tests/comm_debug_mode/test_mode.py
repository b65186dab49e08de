"""The drop-in for torch's CommDebugMode: the same answers where torch's are right, right ones where they are not."""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import debug as torch_debug
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dsexplore import CommDebugMode
from dsexplore._internal.comm_debug_mode.mode import CommModeModuleTracker
from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.simulate import simulate

ALL_REDUCE = torch.ops.c10d_functional.all_reduce
ALL_GATHER = torch.ops.c10d_functional.all_gather_into_tensor
FORWARD, BACKWARD = "forward", "backward"


class MLP(nn.Module):
    """Two linear layers: under tensor parallelism, one all-reduce at the end of the forward."""

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


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with simulate(4, "tp=4") as mesh:
        yield mesh


def all_reduces(mode: CommDebugMode, module: str) -> dict[str, int]:
    return {phase: ops[ALL_REDUCE] for phase, ops in mode.comm_module_counts[module].items() if ops[ALL_REDUCE]}


# What torch's class does right


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
    """torch prints a section whose operations the noise level hides, and views of its own tracker."""
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


# What torch's class does wrong


def test_a_module_that_runs_twice(mesh: DeviceMesh) -> None:
    model = sharded(mesh, MLP())
    with CommDebugMode() as mode:
        model(model(torch.ones(4, 8))).sum().backward()
    assert all_reduces(mode, "MLP.net2") == {FORWARD: 2}
    assert all_reduces(mode, "MLP.net1") == {BACKWARD: 1}  # the second call's input gradient
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in model.modules() if type(module) is MLP
    )
    assert torch.isfinite(model(torch.ones(4, 8))).all()


def test_gradient_accumulation(mesh: DeviceMesh) -> None:
    model = sharded(mesh, MLP())
    with CommDebugMode() as mode:
        for _ in range(3):
            model(torch.ones(4, 8, requires_grad=True)).sum().backward()
    assert all_reduces(mode, "MLP.net2") == {FORWARD: 3}
    assert all_reduces(mode, "MLP.net1") == {BACKWARD: 3}
    assert all_reduces(mode, "Global") == {FORWARD: 3, BACKWARD: 3}


def test_microbatches_whose_backwards_come_later(mesh: DeviceMesh) -> None:
    model = sharded(mesh, MLP())
    with CommDebugMode() as mode:
        losses = [model(torch.ones(4, 8, requires_grad=True)).sum() for _ in range(4)]
        for loss in reversed(losses):
            loss.backward()
    assert all_reduces(mode, "MLP.net2") == {FORWARD: 4}
    assert all_reduces(mode, "MLP.net1") == {BACKWARD: 4}


def test_in_place_activation(mesh: DeviceMesh) -> None:
    model = MLP(inplace=True)  # not sharded: DTensor itself refuses to change its local tensors in place
    with CommDebugMode() as mode:
        out = model(torch.ones(4, 8, requires_grad=True))
        funcol.all_reduce(out, "sum", mesh.get_group()).sum().backward()
    passes_gradients = torch_at_least("2.10")  # functional collectives of torch 2.9 do not
    assert all_reduces(mode, "Global") == ({FORWARD: 1, BACKWARD: 1} if passes_gradients else {FORWARD: 1})
    assert (model.net1.weight.grad is not None) is passes_gradients


def test_gradient_of_an_input_alone(mesh: DeviceMesh) -> None:
    model = sharded(mesh, MLP())
    x = torch.ones(4, 8, requires_grad=True)
    with CommDebugMode() as mode:
        torch.autograd.grad(model(x).sum(), x)
    assert all_reduces(mode, "MLP") == {FORWARD: 1, BACKWARD: 1}


def test_an_exception_in_the_middle(mesh: DeviceMesh) -> None:
    model = sharded(mesh, MLP())
    with pytest.raises(RuntimeError, match="oops"), CommDebugMode() as mode:
        model(torch.ones(4, 8))
        raise RuntimeError("oops")
    assert all_reduces(mode, "MLP") == {FORWARD: 1}
    with mode:
        model(torch.ones(4, 8))
    assert all_reduces(mode, "MLP") == {FORWARD: 1}


def test_an_exception_in_a_module(mesh: DeviceMesh) -> None:
    class Failing(MLP):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            super().forward(x)
            raise ValueError("too late")

    model = sharded(mesh, Failing())
    with CommDebugMode() as mode:
        with pytest.raises(ValueError, match="too late"):
            model(torch.ones(4, 8))
        dist.all_reduce(torch.ones(1))
    assert all_reduces(mode, "Failing") == {FORWARD: 1}
    assert mode.comm_module_counts["Global"][FORWARD][torch.ops.c10d.allreduce_] == 1
    assert torch.ops.c10d.allreduce_ not in mode.comm_module_counts["Failing"][FORWARD]


def test_nested_modes_both_see_the_inner_block(mesh: DeviceMesh) -> None:
    model = sharded(mesh, MLP())
    with CommDebugMode() as outer:
        model(torch.ones(4, 8))
        with CommDebugMode() as inner:
            model(torch.ones(4, 8))
        with pytest.raises(UsageError, match="already active"):
            outer.__enter__()
    assert all_reduces(outer, "MLP") == {FORWARD: 2}
    assert all_reduces(inner, "MLP") == {FORWARD: 1}
    assert set(inner.advanced_module_tracker.module_helper_dict) == {
        "Global",
        "MLP",
        "MLP.net1",
        "MLP.relu",
        "MLP.net2",
    }


def test_other_threads_are_counted(mesh: DeviceMesh) -> None:
    with CommDebugMode() as mode:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))
        thread.start()
        thread.join()
    assert mode.get_comm_counts() == {torch.ops.c10d.allreduce_: 1}


def test_the_bucket_of_ddp_s_reducer_is_named_though_a_dispatch_mode_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch replaces it for good
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        model = DistributedDataParallel(MLP())
        with CommDebugMode() as mode:
            model(torch.ones(2, 8)).sum().backward()
        assert mode.trace.events["cause"].to_list() == ["DDP gradient bucket"]
        assert mode.comm_module_counts["DistributedDataParallel"][BACKWARD] == {torch.ops.c10d.allreduce_: 1}
        assert "DistributedDataParallel.module.net1" not in mode.comm_module_counts
        del model
    finally:
        dist.destroy_process_group()


class Checkpointed(nn.Module):
    """Its MLP is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The default stops recomputing before the output that nobody needs, and so before the all-reduce.
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):
            out: torch.Tensor = checkpoint(self.mlp, x, use_reentrant=False)
        return out


@pytest.mark.parametrize("forward_inside", [True, False])
def test_recomputation_has_its_own_section(mesh: DeviceMesh, forward_inside: bool) -> None:
    model = sharded(mesh, Checkpointed())
    x = torch.ones(4, 8, requires_grad=True)
    mode = CommDebugMode()
    out = model(x) if not forward_inside else None
    with mode:
        (model(x) if out is None else out).sum().backward()
    expected = {"recompute": 1, BACKWARD: 1} | ({FORWARD: 1} if forward_inside else {})
    assert all_reduces(mode, "Global") == expected
    inner = "Checkpointed.mlp" if forward_inside else "MLP"
    assert all_reduces(mode, f"{inner}.net2").get("recompute") == 1
    assert "ACTIVATION CHECKPOINTING" in mode.generate_comm_debug_tracing_table(0)


def test_optimizer_traffic_has_its_own_section(mesh: DeviceMesh) -> None:
    weight = nn.Parameter(distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]))
    weight.grad = DTensor.from_local(torch.ones(8, 8), mesh, [Replicate()])  # another placement than the weight's
    optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)

    def communicate(*_: Any) -> None:
        assert isinstance(weight, DTensor)
        weight.full_tensor()

    with CommDebugMode() as mode:
        optimizer.register_step_pre_hook(communicate)
        optimizer.step()
    counts = mode.comm_module_counts["Global"]
    assert counts["optimizer"][ALL_GATHER] == 1
    assert not counts[FORWARD]
    assert "OPTIMIZER" in mode.generate_comm_debug_tracing_table(0)


def test_a_prefetched_gather_belongs_to_the_module_whose_parameters_it_gathers() -> None:
    gather = torch.ops.c10d._allgather_base_
    with simulate(4, "dp=4") as mesh:
        model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        with CommDebugMode() as mode:
            model(torch.ones(2, 8)).sum().backward()
        prefetched = mode.trace.events.filter(mode.trace.events["cause"] == "FSDP prefetch")
        assert len(prefetched) == 3
        for layer in range(4):
            counts = mode.comm_module_counts[f"Sequential.{layer}"]
            assert (counts[FORWARD][gather], counts[BACKWARD][gather]) == (1, 1)


def test_the_json_does_not_grow_with_repeated_runs(mesh: DeviceMesh, tmp_path: Path) -> None:
    model = sharded(mesh, nn.Sequential(MLP(), MLP()))
    sizes = []
    for runs in (1, 12):
        with CommDebugMode() as mode:
            for _ in range(runs):
                model(torch.ones(4, 8))
        mode.generate_json_dump(tmp_path / "log.json", noise_level=1)
        text = (tmp_path / "log.json").read_text(encoding="utf-8")
        sizes.append(text.count('"fqn"'))
    assert sizes == [10, 10]


def test_no_parameter_is_kept_alive(mesh: DeviceMesh) -> None:
    model = sharded(mesh, MLP())
    with CommDebugMode() as mode:
        model(torch.ones(4, 8)).sum().backward()
    assert len(mode.get_parameter_info()) == 2
    watched = [weakref.ref(parameter) for parameter in model.parameters()]
    del model
    gc.collect()
    assert [reference() for reference in watched] == [None] * 4
    assert mode.get_parameter_info() == {}
    assert mode.advanced_module_tracker.module_helper_dict["MLP.net1"]["parameters"]["weight"] == "(Shard(dim=0),)"


@pytest.mark.skipif(not torch_at_least("2.10"), reason="torch 2.9 compiles anew in each function mode")
def test_compiled_code_stays_compiled(mesh: DeviceMesh) -> None:
    backend = CompileCounterWithBackend("aot_eager")
    group = mesh.get_group()
    torch._dynamo.reset()

    @torch.compile(backend=backend)
    def program(x: torch.Tensor) -> torch.Tensor:
        return funcol.all_reduce(x * 2, "sum", group) + 1

    try:
        with CommDebugMode() as mode:
            program(torch.ones(4))
            program(torch.ones(4))
        assert backend.frame_count == 1
        assert mode.get_comm_counts() == {ALL_REDUCE: 2}
        program(torch.ones(4))
        assert backend.frame_count == 1
    finally:
        torch._dynamo.reset()
