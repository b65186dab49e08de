"""Everyday programs: what is recorded is what happened.

Modules: ``capture/record.py``, ``capture/recorder.py``.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import torch.distributed as dist
from talking_models import SIZE, WIDTH, Pair, Reduce, Talker, forward_and_backward, x
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder_in_use import is_recording


@pytest.fixture(autouse=True)
def four(world: Callable[..., DeviceMesh]) -> DeviceMesh:
    return world("dp=4")


def test_several_steps(column: Any) -> None:
    model = Talker()
    with record() as trace:
        for number in range(3):
            if number:
                trace.step()
            model(x()).sum().backward()
    assert column(trace, "step", "phase") == [(n, phase) for n in range(3) for phase in ("forward", "backward")]
    assert column(trace, "seq") == list(range(6))


def test_a_module_called_twice(column: Any) -> None:
    model = Talker()
    with record() as trace:
        model(model(x())).sum().backward()
    assert column(trace, "phase", "trigger") == forward_and_backward("Talker", "Talker")
    assert trace.modules.filter(module="Talker")["calls"].to_list() == [2]
    assert repr(trace) == "<Trace: 4 collectives of rank 0, world of 4>"


def test_a_shared_module(column: Any) -> None:
    shared = Talker()
    model = Pair(shared, shared)
    with record() as trace:
        model(x()).sum().backward()
    assert column(trace, "phase", "trigger") == forward_and_backward("Pair.first", "Pair.first")
    assert trace.modules.filter(module="Pair.first")["calls"].to_list() == [2]


def test_a_module_shared_by_two_models(column: Any) -> None:
    shared = Talker()
    with record() as trace:
        for model in (Pair(shared, nn.ReLU()), Pair(nn.Identity(), shared)):
            model(x())
    assert column(trace, "trigger") == ["Pair.first"] * 2


def test_two_models(column: Any) -> None:
    first, second = Pair(Talker(), nn.ReLU()), Pair(nn.ReLU(), Talker())
    with record() as trace:
        (first(x()) + second(x())).sum().backward()
    assert column(trace, "phase", "trigger") == forward_and_backward("Pair.first", "Pair#2.second")


def test_a_model_without_a_name_of_its_own(column: Any) -> None:
    anonymous = type("", (Talker,), {})()
    sequential = nn.Sequential(Talker(), nn.ReLU())
    with record() as trace:
        anonymous(x())
        sequential(x())
    assert column(trace, "trigger") == ["Module", "Sequential.0"]


def test_no_model_at_all(column: Any) -> None:
    with record() as trace:
        y = Reduce.apply(x(requires_grad=True))
        y.sum().backward()
    assert column(trace, "phase", "trigger") == [("other", ""), ("backward", "")]


def test_nested_traces(column: Any) -> None:
    """Inner traces have the collectives of their block, numbered from 0; the outer one has all."""
    model = Talker()
    with record() as outer:
        model(x())
        with record() as inner:
            model(x())
            inner.step()
            model(x())
        model(x())
    assert (len(outer), len(inner)) == (4, 2)
    assert column(inner, "seq", "step") == [(0, 0), (1, 1)]
    assert column(outer, "step") == [0] * 4
    assert inner.modules.filter(module="Talker")["calls"].to_list() == [2]


def test_traces_that_overlap(column: Any) -> None:
    first, second = record(), record()
    model = Talker()
    one = first.__enter__()
    model(x())
    two = second.__enter__()
    model(x())
    first.__exit__(None, None, None)
    model(x())
    second.__exit__(None, None, None)
    assert (len(one), len(two)) == (2, 2)
    assert not is_recording()


def test_threads(column: Any) -> None:
    """Collectives of other threads are seen, each in the module that its own thread runs."""
    models = [Pair(Talker(), nn.ReLU()) for _ in range(3)]
    gate = threading.Barrier(len(models))

    def run(model: nn.Module) -> None:
        gate.wait(timeout=240)
        model(x()).sum().backward()

    with record() as trace:
        for model in models:
            model.first.linear(x())  # met in this order
        threads = [threading.Thread(target=run, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=240)
    assert sorted(column(trace, "phase")) == ["backward"] * 3 + ["forward"] * 3
    for phase in ("forward", "backward"):
        assert len(set(trace.where(phase=phase).events["trigger"])) == 3
    assert all(name.endswith(".first") for name in column(trace, "trigger"))


def test_backward_in_another_thread_than_forward(column: Any) -> None:
    """Backward runs in another thread, as it does on a GPU."""
    model = Pair(Talker(), nn.ReLU())
    with record() as usual:
        model(x()).sum().backward()
    with record() as trace:
        loss = model(x()).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join(timeout=240)
    assert column(trace, "phase", "trigger") == forward_and_backward("Pair.first")
    assert column(trace, "source") == column(usual, "source")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_as_many_lines_of_the_program_as_asked_for(four: DeviceMesh, column: Any, depth: int) -> None:
    """Innermost first. The all-reduce of a row-wise linear is issued by torch's hook of it, that of the talker by a
    line of its own; in backward the line that called the module comes first, as the stack does not show it."""
    model = Pair(parallelize_module(nn.Linear(WIDTH, WIDTH, bias=False), four, RowwiseParallel()), Talker())
    here = inspect.currentframe()
    assert here is not None
    with record(stack_depth=depth) as trace:
        output, called = model(torch.ones(2, WIDTH // 4)).sum(), here.f_lineno
        output.backward()

    def line(function: Callable[..., Any]) -> int:
        """Return the last line of a function of two or more."""
        return max(number for *_, number in function.__code__.co_lines() if number is not None)

    of_pair, of_talker = line(Pair.forward), line(Talker.forward)
    assert [
        [int(source.rpartition(":")[2]) for source in sources.split(" ← ")] for sources in column(trace, "source")
    ] == [
        [of_pair, called, ANY][:depth],
        [line(Reduce.forward), of_talker, of_pair][:depth],
        [of_pair, line(Reduce.backward), called + 1][:depth],
    ]


def test_what_no_module_made_comes_from_the_line_that_calls_backward(four: DeviceMesh, column: Any) -> None:
    """Each of two backwards from its own."""
    here = inspect.currentframe()
    assert here is not None

    def gathered() -> torch.Tensor:
        whole = DTensor.from_local(torch.ones(2, requires_grad=True), four, [Replicate()])
        return whole.redistribute(four, [Shard(0)]).to_local().sum()

    first, second = gathered(), gathered()
    with record() as trace:
        first.backward()
        line = here.f_lineno - 1
        second.backward()
    assert column(trace, "trigger", "phase") == [("", "backward")] * 2
    assert [source.rpartition(":")[2] for source in column(trace, "source")] == [str(line), str(line + 2)]


def test_a_trace_read_during_backward_tells_the_modules_so_far(column: Any) -> None:
    model = Pair(Talker(), Talker())
    seen: list[Any] = []
    with record() as trace:
        inner = model.first(x())
        inner.register_hook(lambda _: seen.append(column(trace, "phase", "trigger")))
        model.second(inner).sum().backward()
    assert seen == [column(trace, "phase", "trigger")[:3]]
    assert seen[0][2] == ("backward", "Talker#2")


def test_a_recording_opened_during_backward_has_as_many_lines_as_it_asked_for(column: Any) -> None:
    model = Pair(Talker(), Talker())
    here = inspect.currentframe()
    assert here is not None
    with ExitStack() as stack, record() as trace:
        later: list[Any] = []
        between = model.first(x())
        between.register_hook(lambda _: later.append(stack.enter_context(record(stack_depth=3))))
        model.second(between).sum().backward()
        line = here.f_lineno - 1
    assert len(trace) == 4
    (source,) = column(later[0], "source")
    assert source.count(" ← ") == 2
    assert source.endswith(f":{line}")


def test_a_trace_inside_a_thread(column: Any) -> None:
    found: list[Any] = []

    def run() -> None:
        model = Talker()
        with record() as trace:
            model(x()).sum().backward()
        found.append(trace)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=240)
    assert column(found[0], "phase", "trigger") == forward_and_backward("Talker")


def test_a_forward_outside_the_trace(column: Any) -> None:
    model = Talker()
    output = model(x()).sum()
    with record() as trace:
        output.backward()
    assert column(trace, "phase", "op") == [("backward", "all_reduce")]


def test_local_tensors_inside_and_outside(column: Any) -> None:
    """LocalTensorMode runs all ranks in one process: a redistribute is one event all the same, whichever block is
    the outer one."""
    local = pytest.importorskip("torch.distributed._local_tensor", reason="torch 2.9 has no LocalTensorMode")
    mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))

    def gather() -> None:
        DTensor.from_local(torch.ones(2, WIDTH), mesh, [Shard(0)], run_check=False).redistribute(mesh, [Replicate()])

    with record() as outside, local.LocalTensorMode(frozenset(range(4))):
        gather()
    with local.LocalTensorMode(frozenset(range(4))), record() as inside:
        gather()
    for trace in (outside, inside):
        assert column(trace, "op", "message_bytes", "cause") == [("all_gather", 4 * SIZE, "redistribute S(0)→R")]


def test_tensor_parallel_training_loop(
    world: Callable[..., DeviceMesh], block: Any, sizes: SimpleNamespace, totals: Any
) -> None:
    """Three steps, forward, backward and optimizer, each 2 + 5 all_reduce: the same in every step."""
    mesh = world("tp=4")
    columns = ("attn.wq", "attn.wk", "attn.wv", "mlp.w1", "mlp.w3")
    plan = {**dict.fromkeys(columns, ColwiseParallel()), "attn.wo": RowwiseParallel(), "mlp.w2": RowwiseParallel()}
    model = parallelize_module(block(), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    with record() as trace:
        for number in range(3):
            if number:
                trace.step()
            optimizer.zero_grad()
            model(torch.ones(sizes.batch, sizes.seq, sizes.d, requires_grad=True)).sum().backward()
            optimizer.step()
    size = sizes.tokens * sizes.d * sizes.float
    assert totals(trace, "step", "phase", "op") == {
        (number, phase, "all_reduce"): (count, count * size)
        for number in range(3)
        for phase, count in (("forward", 2), ("backward", 5))
    }
