"""What the frames of a stack say."""

import threading

import torch
from torch import nn

from dsexplore.trace import frames


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
        thread.join(timeout=20)
    assert seen == {thread.ident}
    assert not frames.threads_in_engine()
