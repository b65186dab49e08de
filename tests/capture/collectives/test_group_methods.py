"""Collectives that Python asks of a group are recorded before the dispatcher, as its kernels would record them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from dsexplore._internal.capture.collectives import group_methods, observed_op
from dsexplore._internal.capture.collectives.group_methods import GroupMethods
from dsexplore._internal.capture.record import record
from dsexplore._internal.torch_internals.process_groups import ALL_GATHER, ALL_REDUCE, BROADCAST, REDUCE_SCATTER
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.simulate import simulate

_TIMES = ["start", "end", "waited"]
_NAMES = tuple(name.attribute for name in (ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER))

Call = Callable[[], Any]

CALLS: dict[str, Call] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(3, 5)),
    "all_reduce async": lambda: dist.all_reduce(torch.ones(4), async_op=True).wait(),
    "broadcast": lambda: dist.broadcast(torch.ones(2, dtype=torch.float64), 0),
    "all_gather": lambda: dist.all_gather_into_tensor(torch.ones(8), torch.ones(8)),
    "reduce_scatter": lambda: dist.reduce_scatter_tensor(torch.ones(6), torch.ones(6), async_op=True).wait(),
}


pytestmark = pytest.mark.usefixtures("gloo")


@pytest.fixture
def past_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the methods whose collectives pass the kernels by."""
    seen: list[str] = []
    original = observed_op.pass_kernels_by

    def noted(function: Any, *args: Any) -> Any:
        seen.append(function.__name__)
        return original(function, *args)

    monkeypatch.setattr(group_methods, "pass_kernels_by", noted)
    return seen


def recorded(call: Call) -> Trace:
    with record() as trace:
        call()
    return trace


@pytest.mark.parametrize("name", CALLS)
def test_the_event_is_that_of_the_kernel(name: str, past_kernels: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    call = CALLS[name]
    first = recorded(call)
    assert len(past_kernels) == 1
    monkeypatch.setattr(GroupMethods, "install", lambda *_: None)
    second = recorded(call)
    assert len(past_kernels) == 1
    assert first.events.drop(_TIMES).equals(second.events.drop(_TIMES))
    assert first.events[0, "end"] > first.events[0, "start"] > 0
    assert first.events["waited"].is_null().to_list() == second.events["waited"].is_null().to_list()


def test_modules_are_known_as_in_the_kernel(past_kernels: list[str]) -> None:
    class Sending(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)
            return x

    trace = recorded(lambda: Sending()(torch.ones(2)))
    assert past_kernels == ["allreduce"]
    assert trace.events.select("trigger", "phase").rows() == [("Sending", "forward")]


def test_a_functional_op_is_seen_by_its_kernel_which_knows_the_work_inside(past_kernels: list[str]) -> None:
    def by_op() -> None:
        functional = torch.ops._c10d_functional
        functional.wait_tensor(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD.group_name))

    trace = recorded(by_op)
    assert trace.events["end"].null_count() == 0
    assert len(trace) == 1
    assert past_kernels == []


def methods() -> list[Any]:
    return [vars(dist.ProcessGroup)[name] for name in _NAMES]


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_methods_are_given_back(error: type[BaseException] | None) -> None:
    before = methods()
    with nullcontext() if error is None else pytest.raises(error), record():
        assert not any(now is then for now, then in zip(methods(), before, strict=True))
        if error is not None:
            raise error
    assert all(now is then for now, then in zip(methods(), before, strict=True))


def test_a_simulated_world_that_begins_and_ends_later_leaves_nothing_of_either() -> None:
    before = methods()
    trace = record()
    trace.__enter__()
    dist.destroy_process_group()
    world = simulate(world_size=4)
    world.__enter__()
    trace.__exit__(None, None, None)
    dist.all_reduce(torch.ones(2), async_op=True).wait()
    world.__exit__(None, None, None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with record() as second:
        dist.all_reduce(torch.ones(2))
    assert len(second) == 1
    assert all(now is then for now, then in zip(methods(), before, strict=True))


def test_a_simulated_world_that_ends_first_takes_nothing_from_the_recording() -> None:
    before = methods()
    dist.destroy_process_group()
    world = simulate(world_size=4)
    world.__enter__()
    with record() as trace:
        world.__exit__(None, None, None)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        dist.all_reduce(torch.ones(2))
    assert len(trace) == 1
    assert all(now is then for now, then in zip(methods(), before, strict=True))
    with record() as trace:
        dist.all_reduce(torch.ones(2))
    assert len(trace) == 1


def test_a_method_that_somebody_else_replaced_is_left_to_the_kernels(
    past_kernels: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = dist.ProcessGroup.allreduce

    def theirs(group: Any, *args: Any) -> Any:
        return original(group, *args)

    monkeypatch.setattr(dist.ProcessGroup, "allreduce", theirs)
    assert len(recorded(CALLS["all_reduce"])) == 1
    assert past_kernels == []
    assert dist.ProcessGroup.allreduce is theirs


class Passing(TorchDispatchMode):
    """A dispatch mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def under_a_mode() -> None:
    with Passing():
        dist.all_reduce(torch.ones(2))


def on_fake_tensors() -> None:
    with FakeTensorMode():
        dist.all_reduce(torch.ones(2))


def by_keyword() -> None:
    dist.group.WORLD.allreduce(tensors=[torch.ones(2)], opts=AllreduceOptions()).wait()


def by_another_form() -> None:
    dist.group.WORLD.allreduce(torch.ones(2), dist.ReduceOp.SUM).wait()


def on_a_sparse_tensor() -> None:
    dist.all_reduce(torch.eye(3).to_sparse())


class Tagged(torch.Tensor):
    """A tensor subclass of the user."""


def on_a_subclass() -> None:
    dist.all_reduce(torch.ones(2).as_subclass(Tagged))


@pytest.mark.parametrize(
    "call", [under_a_mode, on_fake_tensors, by_keyword, by_another_form, on_a_sparse_tensor, on_a_subclass]
)
def test_what_is_not_plain_is_seen_once_by_the_kernels(call: Call, past_kernels: list[str]) -> None:
    assert len(recorded(call)) == 1
    assert past_kernels == []


def test_a_simulated_group_is_seen_once_by_the_kernels(past_kernels: list[str]) -> None:
    dist.destroy_process_group()
    with simulate(world_size=4):
        assert len(recorded(CALLS["all_reduce"])) == 1
    assert past_kernels == []
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: dist.group.WORLD.allreduce(AllreduceOptions()), TypeError),
        (lambda: dist.group.WORLD.allreduce([1], AllreduceOptions()), TypeError),
        (lambda: dist.group.WORLD.allreduce(), TypeError),
        (lambda: dist.all_gather_into_tensor(torch.ones(3), torch.ones(2)), (RuntimeError, ValueError)),
    ],
)
def test_errors_are_torchs_own_and_no_traffic(call: Call, error: Any) -> None:
    with pytest.raises(error) as untraced:
        call()
    with pytest.raises(error) as traced, record() as trace:
        call()
    first_line = str(untraced.value).partition("\n")[0]  # the last one has addresses
    assert str(traced.value).startswith(first_line)
    assert len(trace) == 0
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.BackendSelect)


def test_a_fault_of_the_recorder_does_not_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> Any:
        raise ArithmeticError("on purpose")

    with record() as trace:
        monkeypatch.setattr("dsexplore._internal.capture.recorder.read_stack", failing)
        x = torch.ones(2)
        with pytest.warns(RuntimeWarning, match=r"could not describe c10d::allreduce_.*on purpose"):
            dist.all_reduce(x)
        monkeypatch.undo()
        dist.all_reduce(x)
    assert trace.events.select(pl.len()).item() == 1
