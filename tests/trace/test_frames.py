"""What the frames of a stack say."""

import threading
from types import FrameType

import pytest
import torch
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from dsexplore.trace import frames
from dsexplore.trace.recorder import record
from dsexplore.worlds.simulate import simulate


def test_module_calls_on_the_stack_are_counted() -> None:
    class Asking(nn.Module):
        def forward(self) -> int:
            return frames.calls_in_progress()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Asking()

        def forward(self) -> int:
            return int(self.inner())

    assert frames.calls_in_progress() == 0
    assert Asking()() == 1
    assert Outer()() == 2


def test_the_way_to_a_redistribute_is_known_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever else issued that op before."""
    found: list[bool] = []
    innermost = frames.innermost

    def noted(raw_op: str, inside: int) -> FrameType:
        frame = innermost(raw_op, inside + 1)
        found.append(frames.kind_of(frame.f_code) == frames.REDISTRIBUTE)
        return frame

    monkeypatch.setattr(frames, "_redistributes", {})
    monkeypatch.setattr(frames, "innermost", noted)
    with simulate(mesh="tp=4") as mesh, record():
        all_gather_tensor(torch.ones(4), 0, mesh)
        sharded = DTensor.from_local(torch.ones(4), mesh, [Shard(0)])
        for _ in range(3):
            sharded.redistribute(mesh, [Replicate()])
        all_gather_tensor(torch.ones(4), 0, mesh)
    assert found == [False, False, True, True, False]


def test_threads_that_wait_for_their_backward() -> None:
    over, seen = threading.Event(), set()

    def train() -> None:
        weight = torch.ones(400, 400, requires_grad=True)
        for _ in range(10_000):
            (weight @ weight).sum().backward()
            if over.is_set():
                break

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    try:
        while thread.is_alive() and not seen:
            seen = frames.threads_in_engine()
    finally:
        over.set()
        thread.join(timeout=120)
    assert seen == {thread.ident}
    assert not frames.threads_in_engine()
