"""What callbacks of futures issue has the module and lines of the call that gave them, whichever thread runs them."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.capture.stack.future_callbacks import observe_callbacks

Row = tuple[Any, ...]
COLUMNS = ("op", "phase", "trigger", "owner", "message_bytes", "source", "cause")


class Waits(nn.Module):
    """A module whose forward gives a future a callback that sends."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method, self.future = method, torch.futures.Future[int]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        getattr(self.future, self.method)(lambda done: dist.all_reduce(torch.ones(done.value())))
        return x


@pytest.mark.parametrize("method", ["then", "add_done_callback"])
@pytest.mark.parametrize("in_thread", [True, False])
def test_a_callback_that_another_thread_runs_has_the_module_that_gave_it(method: str, in_thread: bool) -> None:
    with dsexplore.simulate(4), dsexplore.commtrace(stack_depth=2) as trace:
        module = Waits(method)
        module(torch.ones(1))
        if in_thread:
            thread = Thread(target=module.future.set_result, args=(3,))
            thread.start()
            thread.join()
        else:
            module.future.set_result(3)
    (row,) = trace.events.select("message_bytes", "trigger", "phase").rows()
    (lines,) = trace.events["source"].to_list()
    if in_thread:
        assert row == (12, "Waits", "forward")
        assert lines.count("test_future_callbacks.py") == 2
    else:  # this stack says it all: the callback runs inside of set_result, after the module
        assert row[1:] == ("", "other")


def test_afterwards_futures_are_as_torch_made_them() -> None:
    future = torch.futures.Future.__mro__[1]
    before = vars(future)["then"], vars(future)["add_done_callback"]
    end = observe_callbacks(lambda _frame: pytest.fail("no callback was given"))
    assert vars(future)["then"] is not before[0]
    end()
    assert (vars(future)["then"], vars(future)["add_done_callback"]) == before


def test_a_callback_whose_origin_cannot_be_read_runs_all_the_same() -> None:
    def fails(_frame: Any) -> Any:
        raise ValueError

    end = observe_callbacks(fails)
    try:
        future = torch.futures.Future[int]()
        then = future.then(lambda done: done.value() + 1)
        future.set_result(1)
        assert then.wait() == 2
    finally:
        end()


def then_reduce(_state, bucket):  # type: ignore[no-untyped-def] # DDP compares annotations, which are texts here
    def then(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        dist.all_reduce(torch.ones(3))
        return done.value()[0]

    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(then)


def hooked(kind: str) -> list[Row]:
    """Train with a hook that sends in a callback, or with hooks of gradients."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    if kind == "gradient":
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(lambda parameter: dist.all_reduce(parameter.grad))
    else:
        model = ddp = DistributedDataParallel(model)
        if kind == "powerSGD":
            state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
            ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        else:
            ddp.register_comm_hook(None, then_reduce)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with dsexplore.commtrace() as trace:
        for _ in range(4):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return trace.where(step=3).events.select(*COLUMNS).rows()


@pytest.mark.parametrize("kind", ["powerSGD", "then", "gradient"])
def test_real_ranks_name_the_module_and_line_that_simulated_ones_do(kind: str) -> None:
    real = dsexplore.run_ranks(hooked, 2, args=(kind,)).values
    with dsexplore.simulate(2, hardware="cpu"):
        simulated = hooked(kind)
    assert real == [simulated, simulated]
    assert all(trigger and source for _, _, trigger, _, _, source, _ in simulated)
