"""Futures of simulated collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsexplore.worlds.simulate import simulate

RANKS = 4


def gathered() -> list[torch.Tensor]:
    return [torch.zeros(3) for _ in range(RANKS)]


COLLECTIVES: dict[str, Callable[[torch.Tensor], tuple[Any, Any]]] = {
    # the work, and what its future must hold
    "all_reduce": lambda x: (dist.all_reduce(x, async_op=True), [x]),
    "broadcast": lambda x: (dist.broadcast(x, 0, async_op=True), [x]),
    "reduce": lambda x: (dist.reduce(x, 0, async_op=True), [x]),
    "all_gather": lambda x: (dist.all_gather(out := gathered(), x, async_op=True), [out]),
    "all_gather_into_tensor": lambda x: (dist.all_gather_into_tensor(out := x.repeat(RANKS), x, async_op=True), [out]),
    "reduce_scatter": lambda x: (dist.reduce_scatter(x, gathered(), async_op=True), [x]),
    "reduce_scatter_tensor": lambda x: (dist.reduce_scatter_tensor(x, x.repeat(RANKS), async_op=True), [x]),
    "all_to_all": lambda x: (dist.all_to_all(out := gathered(), gathered(), async_op=True), out),
    "all_to_all_single": lambda x: (dist.all_to_all_single(out := torch.zeros(4), torch.ones(4), async_op=True), [out]),
}


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_hold_what_the_collective_wrote(name: str, fake: bool) -> None:
    with simulate(RANKS, fake=fake):
        work, written = COLLECTIVES[name](torch.ones(3))
        assert work.wait()
        value = work.get_future().value()
    assert [*map(type, value)] == [*map(type, written)]
    same = [torch.utils._pytree.tree_leaves(each) for each in (value, written)]
    assert [*map(id, same[0])] == [*map(id, same[1])]


def test_that_somebody_waits_for_go_on() -> None:
    with simulate(RANKS):
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [2, 2, 2]


def test_are_not_made_where_nobody_can_ask_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.futures.Future[Any]] = []

    class Counted(torch.futures.Future[Any]):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(torch.futures, "Future", Counted)
    with simulate(RANKS):
        dist.all_reduce(torch.ones(3))
        assert len(made) == 0
        dist.all_reduce(torch.ones(3), async_op=True)
        assert len(made) == 1
