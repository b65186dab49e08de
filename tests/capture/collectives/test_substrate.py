"""Kernels are replaced for as long as it takes, seen from everywhere, and put back."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from dsexplore._internal.capture import recorder, recorder_in_use
from dsexplore._internal.capture.collectives import observed_op, ops
from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.simulate import simulate


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with simulate(world_size=4):
        yield


def dispatcher_state() -> dict[str, str]:
    return {name: torch._C._dispatch_dump(name) for name in ops.op_names()}


def test_the_dispatcher_is_as_before() -> None:
    before = dispatcher_state()
    with record():
        assert dispatcher_state() != before
    assert dispatcher_state() == before


def test_an_exception_while_installing_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dispatcher_state()
    calls = iter(range(1000))

    def failing(raw_op: str) -> Any:
        if next(calls) > 20:
            raise KeyboardInterrupt
        return ops.COMMUNICATION_OPS.get(raw_op)

    monkeypatch.setattr(ops, "lookup", failing)
    with pytest.raises(KeyboardInterrupt), record():
        pytest.fail("the block must not run")
    assert dispatcher_state() == before
    assert not recorder_in_use.is_recording()


@pytest.mark.parametrize("function", ["exclude_key", "include_key"])
@pytest.mark.parametrize("moment", [True, False])
def test_ctrl_c_beside_a_functional_op_leaves_the_thread_as_it_was(
    function: str, moment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python raises it at the return of any C function, such as those that take our kernel out of the way."""
    original = getattr(observed_op, function)
    included = torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.CPU)

    def interrupted(key: Any, value: bool) -> None:
        original(key, value)
        if value is moment:
            monkeypatch.undo()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), record():
        monkeypatch.setattr(observed_op, function, interrupted)
        torch.ops._c10d_functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD.group_name)
    assert not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.BackendSelect)
    assert torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.CPU) == included


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_ends_the_block_is_passed_on_and_nothing_is_left(error: type[BaseException]) -> None:
    before = dispatcher_state()
    with pytest.raises(error), record() as trace:
        dist.all_reduce(torch.ones(2))
        raise error
    assert dispatcher_state() == before
    assert len(trace) == 1
    assert trace.info.notes == (f"the recording ended early, with {error.__name__}",)


def test_other_threads_are_seen() -> None:
    with record() as trace:
        thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(3),))
        thread.start()
        thread.join()
    assert trace.events["message_bytes"].to_list() == [12]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("fake", [False, True])
def test_a_collective_is_seen_once_on_any_kind_of_tensor(device: str, fake: bool) -> None:
    mode = FakeTensorMode() if fake else torch.no_grad()
    with record() as trace, mode:
        tensor = torch.ones(4, device=device)
        dist.all_reduce(tensor)
        functional = torch.distributed._functional_collectives.all_reduce(tensor, "sum", dist.group.WORLD)
        torch.distributed._functional_collectives.wait_tensor(functional)
    assert trace.events["raw_op"].to_list() == ["c10d::allreduce_", "_c10d_functional::all_reduce"]
    assert trace.events["message_bytes"].to_list() == [16, 16]


def test_results_are_those_of_the_original() -> None:
    tensor = torch.arange(8.0)
    out = torch.empty(32)
    dist.all_gather_into_tensor(out, tensor)
    with record():
        seen = torch.empty(32)
        dist.all_gather_into_tensor(seen, tensor)
        work = dist.all_reduce(tensor, async_op=True)
        assert work is not None
        work.wait()
    assert torch.equal(out[:8], seen[:8])


def test_a_collective_that_fails_is_no_traffic() -> None:
    with record() as trace, pytest.raises((RuntimeError, ValueError)):
        torch.ops._c10d_functional.all_reduce(torch.ones(2), "no such reduction", dist.group.WORLD.group_name)
    assert len(trace) == 0


def test_an_unknown_op_is_recorded_and_warned_of_once() -> None:
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("swirl_(Tensor x, __torch__.torch.classes.c10d.ProcessGroup group) -> Tensor")
    library.impl("swirl_", lambda x, group: x.clone(), "CPU")
    try:
        with pytest.warns(RuntimeWarning, match="does not know .* c10d::swirl_") as caught, record() as trace:
            for _ in range(2):
                torch.ops.c10d.swirl_(torch.ones(4), dist.group.WORLD.boxed())
        assert len(caught) == 1
        assert trace.events["op"].to_list() == ["unknown:swirl_"] * 2
        assert trace.events["message_bytes"].to_list() == [16, 16]
        assert trace.events["group_size"].to_list() == [4, 4]
    finally:
        library._destroy()


def test_an_unknown_op_without_a_group_is_counted_as_of_this_rank_alone() -> None:
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("lonely_(Tensor x) -> Tensor")
    library.impl("lonely_", lambda x: x.clone(), "CPU")
    try:
        with pytest.warns(RuntimeWarning, match="does not know .* c10d::lonely_"), record() as trace:
            torch.ops.c10d.lonely_(torch.ones(4))
        event = trace.events.row(0, named=True)
        assert (event["group"], event["group_size"], event["message_bytes"]) == ("", 1, 16)
    finally:
        library._destroy()


def test_a_fault_of_the_recorder_does_not_end_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("fault of ours")

    monkeypatch.setattr(recorder, "read_stack", broken)
    with pytest.warns(RuntimeWarning, match="fault of ours") as caught, record() as trace:
        dist.all_reduce(torch.ones(2))
        dist.all_reduce(torch.ones(2))
    assert len(caught) == 1
    assert len(trace) == 0
    assert "fault of ours" in trace.info.notes[0]
