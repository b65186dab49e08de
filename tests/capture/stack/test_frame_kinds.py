"""What the frames of a stack say."""

import gc
import sys
import threading
import weakref
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor

from dsexplore._internal.capture import recorder
from dsexplore._internal.capture.modules.recorded_modules import Modules
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.stack import frame_kinds
from dsexplore._internal.capture.stack.source_lines import Sources, source_text
from dsexplore._internal.capture.stack.stack_reading import StackReading, read_stack
from dsexplore._internal.torch_internals import frames
from dsexplore._internal.torch_internals.dispatch import has_kernel_for
from dsexplore._internal.worlds.simulate import simulate


def test_an_op_is_the_engines_where_no_python_of_the_program_issued_it() -> None:
    assert frame_kinds.kind_of_issuer(sys._getframe()) == frame_kinds.USER
    assert frame_kinds.kind_of_issuer(None) == frames.ENGINE
    asked: list[int] = []
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda _: asked.append(frame_kinds.kind_of_issuer(sys._getframe())))
    x.sum().backward()
    assert asked == [frame_kinds.USER]


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
        thread.join(timeout=240)
    assert seen == {thread.ident}
    assert not frame_kinds.threads_in_engine()


def test_the_line_is_the_programs_where_numpy_makes_the_call() -> None:
    with simulate(4), record() as trace:
        np.fromfunction(dist.barrier, ())
    assert "test_frame_kinds.py:" in trace.events["source"].item()


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


def test_the_users_lines_are_found_between_other_code() -> None:
    def inner() -> Sources:
        return frame_kinds.user_lines(sys._getframe(), depth)

    def outer() -> Sources:
        found: Sources = eval("inner()", {"inner": inner})  # code that is not a line of the program
        return found

    for depth in range(4):
        codes = [code for code, _ in outer()]
        assert codes == [inner.__code__, outer.__code__, sys._getframe().f_code][:depth]
    assert frame_kinds.user_lines(None, 1) == ()


class TestUserLines:
    def test_a_line_is_one_object_however_often_it_runs(self) -> None:
        lines = frame_kinds.UserLines()
        first, again = [lines.innermost(sys._getframe()) for _ in range(2)]
        other = lines.innermost(sys._getframe())
        assert first is again
        assert [source_text(*line) for (line,) in (first, other)] == [
            f"tests/capture/stack/test_frame_kinds.py:{sys._getframe().f_lineno - 4 + later}" for later in (0, 1)
        ]

    def test_code_that_is_no_line_of_the_program_is_passed_over(self) -> None:
        lines = frame_kinds.UserLines()
        ((code, _),) = eval("lines.innermost(getframe())", {"lines": lines, "getframe": sys._getframe})
        assert code is sys._getframe().f_code
        assert lines.innermost(None) == ()

    def test_lines_of_a_program_that_makes_code_are_forgotten(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(frame_kinds, "_MOST_LINES", 2)
        lines = frame_kinds.UserLines()
        for number in range(5):
            code = compile("lines.innermost(getframe())", f"generated{number}.py", "eval")
            ((found, _),) = eval(code, {"lines": lines, "getframe": sys._getframe})
            assert found is code
        kept = weakref.ref(code)
        lines.release()
        del code, found
        assert kept() is None


def test_the_stack_of_a_functional_op_is_read_from_outside_its_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[str] = []

    def noted(depth: int, innermost: FrameType, modules: Modules) -> StackReading:
        met.append(innermost.f_code.co_name)
        return read_stack(depth, innermost, modules)

    monkeypatch.setattr(recorder, "read_stack", noted)
    with simulate(4), record() as trace:
        all_gather_tensor(torch.ones(2), 0, dist.group.WORLD)
        dist.all_reduce(torch.ones(2))
    assert len(trace) == 2
    has_autograd = has_kernel_for("_c10d_functional::all_gather_into_tensor", "Autograd")  # not in torch 2.9
    assert met == ["autograd_impl" if has_autograd else "recorded", "recorded"]
