"""What the stack says of the collectives of sharded models."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from small_models import D, FeedForward
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from dsexplore._internal.capture.modules.module_calls import ModuleCalls
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.stack.stack_reading import read_stack
from dsexplore._internal.worlds.simulate import simulate

R, P, S0 = Replicate(), Partial(), Shard(0)
ROWS, COLUMNS = 8, D

World = Callable[..., DeviceMesh]
Program = Callable[[], Any]


def gathered(x: DTensor) -> DTensor:
    return x.redistribute(placements=[R] * x.device_mesh.ndim)


class Gathering(nn.Module):
    """Redistributes in its forward, in a helper and by itself, and so in its backward."""

    def forward(self, x: DTensor) -> torch.Tensor:
        first = gathered(x).to_local(grad_placements=[P] * x.device_mesh.ndim)
        return first * x.redistribute(placements=[R] * x.device_mesh.ndim).to_local()


class Backward(torch.autograd.Function):
    """Redistributes twice in a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
        ctx.mesh = mesh
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        whole = DTensor.from_local(gradient, ctx.mesh, [P], run_check=False)
        return (gathered(whole).to_local() + gathered(whole).to_local()) / 2, None


class OwnBackward(nn.Module):
    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh, self.linear = mesh, nn.Linear(COLUMNS, COLUMNS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Backward.apply(self.linear(x), self.mesh)


def sharded(mesh: DeviceMesh, **options: Any) -> DTensor:
    return DTensor.from_local(torch.ones(ROWS, COLUMNS, **options), mesh, [S0] * mesh.ndim, run_check=False)


def stack() -> nn.Sequential:
    """Two feed-forward layers, each behind its norm."""
    return nn.Sequential(*(nn.Sequential(OrderedDict(norm=nn.LayerNorm(COLUMNS), mlp=FeedForward())) for _ in range(2)))


@pytest.fixture
def world() -> Iterator[World]:
    with ExitStack() as opened:
        yield lambda mesh: opened.enter_context(simulate(mesh=mesh))


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """With sequence parallelism too."""
    plan = {
        "norm": SequenceParallel(sequence_dim=0),
        "mlp": PrepareModuleInput(input_layouts=(S0,), desired_input_layouts=(R,)),
        "mlp.w1": ColwiseParallel(),
        "mlp.w3": ColwiseParallel(),
        "mlp.w2": RowwiseParallel(output_layouts=S0),
    }
    for block in model:
        parallelize_module(block, mesh, plan)
    return model


def fully_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.fixture
def model(world: World) -> nn.Module:
    return tensor_parallel(stack(), world("tp=4"))


@pytest.fixture
def x() -> torch.Tensor:
    return torch.ones(ROWS, COLUMNS)


def events_of(program: Program) -> pl.DataFrame:
    """Return the events of a program that runs for the third time, when everything has been met before."""
    with record() as trace:
        for _ in range(3):
            program()
            trace.step()
    events = trace.events.drop("step", "seq", "batch", "group_seq")
    third = events.tail(len(events) // 3)
    assert_frame_equal(events.slice(len(events) // 3, len(third)), third)  # as the second time
    assert third["source"].str.contains(":").all()
    return third


def test_tensor_and_sequence_parallel(model: nn.Module, x: torch.Tensor) -> None:
    events = events_of(lambda: model(x).sum().backward())
    assert set(events["phase"]) == {"forward", "backward"}


def test_fsdp(world: World, x: torch.Tensor) -> None:
    model = fully_sharded(stack(), world("dp=4"))
    events = events_of(lambda: model(x).sum().backward())
    assert set(events["cause"]) == {"FSDP pre_forward", "FSDP pre_backward", "FSDP prefetch", "FSDP post_backward"}
    assert set(events["owner"]) == {"Sequential.0", "Sequential.1"}


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_flat_parameters_belong_to_their_modules(world: World, x: torch.Tensor, use_orig_params: bool) -> None:
    world("dp=4")
    layers = nn.Sequential(FeedForward(), FeedForward(), nn.Linear(COLUMNS, COLUMNS))
    model = FullyShardedDataParallel(
        layers,
        auto_wrap_policy=ModuleWrapPolicy({FeedForward}),
        device_id=torch.device("cpu"),
        use_orig_params=use_orig_params,
    )
    events = events_of(lambda: model(x).sum().backward())
    root, first, second = "Sequential", "Sequential.0", "Sequential.1"
    sent = events.select("op", "phase", "owner").rows()
    assert [owner for op, phase, owner in sent if phase == "forward"] == [root, first, second]
    assert [owner for op, phase, owner in sent if op == "all_gather" and phase == "backward"] == [second, first]
    assert [owner for op, phase, owner in sent if op == "reduce_scatter"] == [second, first, root]
    causes = {
        "forward": ["FSDP1 pre_forward"] * 3,
        "backward": [*["FSDP1 prefetch"] * 2, *["FSDP1 post_backward"] * 3],
    }
    assert {phase: events.filter(phase=phase)["cause"].sort(descending=True).to_list() for phase in causes} == causes
    reduced = events.filter(op="reduce_scatter")
    assert reduced["trigger"].to_list() == reduced["owner"].to_list()


def test_parameters_that_the_program_gathers_itself(world: World) -> None:
    world("dp=4")
    model = FullyShardedDataParallel(FeedForward(), device_id=torch.device("cpu"))

    def look() -> None:
        with FullyShardedDataParallel.summon_full_params(model):
            pass

    assert set(events_of(look).select("cause", "owner", "phase").rows()) == {("FSDP1", "FeedForward", "between steps")}


def test_fsdp_of_a_tensor_parallel_model(world: World, x: torch.Tensor) -> None:
    mesh = world("dp=2,tp=4")
    model = fully_sharded(tensor_parallel(stack(), mesh["tp"]), mesh["dp"])
    events = events_of(lambda: model(x).sum().backward())
    of_both = events.filter(pl.col("cause").str.starts_with("FSDP post_backward: redistribute"))
    assert set(of_both["axis"]) == {"tp"}


def test_fsdp_with_recomputation(world: World, x: torch.Tensor) -> None:
    model = fully_sharded(stack(), world("dp=4"))
    events = events_of(lambda: checkpoint(model, x, use_reentrant=False).sum().backward())
    assert set(events["phase"]) == {"forward", "backward"}  # FSDP gathers for backward before recomputation begins


def test_fsdp_that_gathers_as_the_program_says(world: World, x: torch.Tensor) -> None:
    class Gather(DefaultAllGather):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    model = fully_sharded(stack(), world("dp=4"))
    for block in model:
        block.set_custom_all_gather(Gather())
    events = events_of(lambda: model(x).sum().backward())
    lines = events.filter(pl.col("op") == "all_gather", phase="forward")["source"].unique()
    assert len(lines) == 1  # of the program's own gathering, not that of the module's call


@pytest.mark.parametrize("mesh", ["tp=4", "dp=2,tp=4"])
def test_by_the_program_itself(world: World, mesh: str) -> None:
    model, x = Gathering(), sharded(world(mesh), requires_grad=True)
    events = events_of(lambda: model(x).sum().backward())
    assert set(events["trigger"]) == {"Gathering"}
    assert set(events.filter(phase="forward")["cause"].str.split(" ").list.first()) == {"redistribute"}


def test_in_a_backward_of_the_program_s_own(world: World, x: torch.Tensor) -> None:
    model = OwnBackward(world("tp=4"))
    events = events_of(lambda: model(x).sum().backward())
    assert events["phase"].to_list() == ["backward"] * 2


def test_recomputed(world: World) -> None:
    model, x = Gathering(), sharded(world("tp=4"), requires_grad=True)
    events = events_of(lambda: checkpoint(model, x, use_reentrant=False).sum().backward())
    assert set(events["phase"]) == {"forward", "recompute", "backward"}


def test_under_a_loss_of_shards(world: World, x: torch.Tensor) -> None:
    model = parallelize_module(nn.Linear(COLUMNS, COLUMNS), world("tp=4"), ColwiseParallel(use_local_output=False))
    wanted = torch.zeros(ROWS, dtype=torch.long)

    def program() -> None:
        with loss_parallel():
            nn.functional.cross_entropy(model(x), wanted).backward()

    events = events_of(program)
    assert events["op"].to_list() == ["all_reduce"] * 3


def test_outside_any_module(world: World) -> None:
    x = sharded(world("tp=4"))
    events = events_of(lambda: gathered(x))
    assert events["trigger"].to_list() == [""]


def test_a_backward_that_makes_a_graph(world: World) -> None:
    model, x = Gathering(), sharded(world("tp=4"), requires_grad=True)

    def program() -> None:
        (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        gradient.to_local().pow(2).sum().backward()

    events = events_of(program)
    assert set(events["phase"]) == {"forward", "backward"}


def test_a_backward_in_another_thread(model: nn.Module, x: torch.Tensor) -> None:
    def program() -> None:
        loss = model(x).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join(timeout=240)

    events = events_of(program)
    assert set(events["phase"]) == {"forward", "backward"}
    assert "" not in set(events["trigger"])


def test_a_call_that_began_before_the_recording(world: World) -> None:
    class Late(nn.Module):
        def forward(self, x: DTensor) -> DTensor:
            gathered(x)
            with record() as trace:
                gathered(x)
            self.seen = trace.events
            return x

    x, model = sharded(world("tp=4")), Late()
    model(x)
    assert model.seen["trigger"].to_list() == ["Late"]
    assert model.seen["phase"].to_list() == ["forward"]


def test_the_users_lines_are_all_where_nothing_else_is_on_the_stack() -> None:
    def line(depth: int) -> Any:
        reading = read_stack(depth, sys._getframe(), Modules(lambda _about, message: pytest.fail(message)))
        assert (reading.phase, reading.cause, reading.module, reading.owner) == ("other", "", None, None)
        return [code for code, _ in reading.sources]

    assert line(1) == [line.__code__]
    assert line(2) == [line.__code__, sys._getframe().f_code]


@pytest.mark.parametrize("has_hook", [False, True], ids=["plain", "with a hook"])
def test_a_reading_ends_at_the_module_call_that_was_observed(has_hook: bool) -> None:
    modules, ended = Modules(lambda _about, message: pytest.fail(message)), []

    class Reading(nn.Module):
        def forward(self) -> None:
            reading = read_stack(2, sys._getframe(), modules)
            assert reading.call is modules.own.calls.open[-1]
            assert len(reading.sources) == 2  # the second is known from the call
            ended.append(reading.is_complete)

    model = nn.Sequential()
    inner = Reading()
    if has_hook:
        inner.register_forward_hook(lambda *_: None)
    model.forward = lambda: inner()  # type: ignore[method-assign]
    observer = ModuleCalls(modules)
    observer.install()
    try:
        model()
    finally:
        observer.uninstall()
    assert ended == [True]
