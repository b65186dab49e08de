"""Collectives that torch's CommDebugMode counts for a wrong module or phase are counted for the right one.

Modules: ``comm_debug_mode/mode.py``.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from dsexplore import CommDebugMode
from dsexplore._internal.errors import UsageError
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.worlds.simulate import simulate
from tests.comm_debug_mode.test_mode import ALL_GATHER, ALL_REDUCE, BACKWARD, FORWARD, MLP, all_reduces, sharded


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
    """A model whose MLP is recomputed in backward."""

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
