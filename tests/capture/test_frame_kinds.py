"""What the frames of a stack say."""

import gc
import threading
import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dsexplore.capture import frame_kinds
from dsexplore.capture.recorder import record
from dsexplore.worlds.simulate import simulate


def test_module_calls_on_the_stack_are_counted() -> None:
    class Asking(nn.Module):
        def forward(self) -> int:
            return frame_kinds.calls_in_progress()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Asking()

        def forward(self) -> int:
            return int(self.inner())

    assert frame_kinds.calls_in_progress() == 0
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
            seen = frame_kinds.threads_in_engine()
    finally:
        over.set()
        thread.join(timeout=120)
    assert seen == {thread.ident}
    assert not frame_kinds.threads_in_engine()


def test_code_that_a_program_generates_is_not_kept_alive() -> None:
    before = dict(frame_kinds.kinds)
    with simulate(world_size=4), record() as trace:
        for number in range(20):
            generated: dict[str, Any] = {"dist": dist, "torch": torch}
            exec(
                compile(f"def send():\n    dist.all_reduce(torch.ones({number + 1}))", "generated.py", "exec"),
                generated,
            )
            generated["send"]()
            code = weakref.ref(generated["send"].__code__)
            assert frame_kinds.kinds[id(code())] == frame_kinds.USER
    assert len(trace) == 20
    del generated
    gc.collect()
    assert code() is None
    assert len(frame_kinds.kinds) < len(before) + 20


def test_the_kind_of_freed_code_is_forgotten() -> None:
    code = compile("1", "generated.py", "eval")
    key = id(code)
    assert frame_kinds.kind_of(code) == frame_kinds.USER
    assert key in frame_kinds.kinds
    del code
    assert key not in frame_kinds.kinds
