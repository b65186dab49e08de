"""Which recorder records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from dsexplore._internal.capture import recorder_in_use
from dsexplore._internal.capture.collectives import group_methods, ops
from dsexplore._internal.capture.collectives.issued_collective import Issued, Label, Origin
from dsexplore._internal.capture.collectives.observed_op import observed
from dsexplore._internal.capture.record import record
from dsexplore._internal.capture.recorder import Recorder
from dsexplore._internal.errors import UsageError


def test_another_recorder_takes_over_only_between_recordings() -> None:
    before = recorder_in_use.in_use()
    with record(), pytest.raises(UsageError, match="a recording is open"):
        recorder_in_use.use(Recorder())
    assert recorder_in_use.in_use() is before
    after = Recorder()
    recorder_in_use.use(after)
    try:
        with record():
            assert len(after.recordings) == 1
        assert not after.recordings
    finally:
        recorder_in_use.use(before)


class Span:
    """Keeps what it is to watch; a real one needs a device."""

    def __init__(self, is_over: bool = False) -> None:
        self.watched: list[Any] = []
        self.is_over = is_over

    def watch(self, result: Any, runs_here: bool) -> None:
        self.watched.append(result)


def test_what_a_call_waits_for_ends_with_the_call_but_on_a_device_with_its_work() -> None:
    recorder = Recorder(clock=lambda: 5)
    on_host, on_device = (
        Issued("c10d::allreduce_", [], None, 0, Origin("other", None, None, ()), label=Label(True), needs_work=True)
        for _ in range(2)
    )
    span: Any = Span()
    on_host.start, on_device.span = 1, span
    recorder.returned(on_host, "work")
    recorder.returned(on_device, "work")
    assert on_host.end is None
    assert span.watched == ["work"]
    assert on_host.label is not None
    recorder.end_label(on_host.label)
    assert on_host.end is not None


@pytest.mark.parametrize(
    ("times", "is_over"),
    [
        ({}, True),  # nothing is measured
        ({"start": 1}, False),
        ({"start": 1, "end": 2}, True),
        ({"start": 1, "failure": "failed: RuntimeError"}, True),
        ({"span": Span()}, False),
        ({"span": Span(is_over=True)}, True),
        ({"span": Span(), "failure": "failed: RuntimeError"}, True),
    ],
)
def test_when_nothing_more_is_to_be_measured(times: dict[str, Any], is_over: bool) -> None:
    one = Issued("c10d::allreduce_", [], None, 0, Origin("other", None, None, ()), **times)
    assert one.is_over == is_over


class Kernels:
    """Counts what is put in front of ops and taken away."""

    def __init__(self) -> None:
        self.installed = 0
        self.uninstalled = 0

    def install(self, observer: Any) -> None:
        self.installed += 1

    def uninstall(self) -> None:
        self.uninstalled += 1


def test_kernels_stay_between_recordings_as_long_as_they_are_kept() -> None:
    kernels = Kernels()
    recorder = Recorder(lambda: kernels)
    before = recorder_in_use.in_use()
    recorder_in_use.use(recorder)
    try:
        recorder.keep_kernels(True)
        for _ in range(2):
            with record():
                pass
        assert (kernels.installed, kernels.uninstalled) == (1, 0)
        nothing_is_recorded: Any = None
        assert recorder.begins("c10d::allreduce_", nothing_is_recorded, (), nothing_is_recorded) is None
        recorder.keep_kernels(False)
        assert kernels.uninstalled == 1
        with record():
            pass
        assert (kernels.installed, kernels.uninstalled) == (2, 2)
    finally:
        recorder_in_use.use(before)


class TestInsideACall:
    """A call that has not returned: NCCL's first collective of a group waits in it for the other ranks."""

    @staticmethod
    def call(kernel: Callable[..., Any]) -> None:
        """Ask for an all_reduce whose kernel is ``kernel``."""
        entry = ops.lookup("c10d::allreduce_")
        assert entry is not None
        recorded = observed("c10d::allreduce_", entry, kernel, recorder_in_use.in_use())
        recorded(None, [torch.ones(2)], dist.group.WORLD, None, None, False)

    @pytest.mark.usefixtures("gloo")
    def test_what_is_saved_early_has_it(self) -> None:
        recorder, seen = recorder_in_use.in_use(), []

        def kernel(*_: Any) -> None:
            (recording,) = recorder.recordings
            seen.extend(recorder.tables(recording, waits=waits).events["state"].to_list() for waits in (False, True))

        with record() as trace:
            dist.all_reduce(torch.ones(2))
            self.call(kernel)
            (recording,) = recorder.recordings
            seen.append(recorder.tables(recording, waits=False).events["state"].to_list())
        assert seen == [["completed", "scheduled"], ["completed"], ["completed", "completed"]]
        assert trace.events["op"].to_list() == ["all_reduce", "all_reduce"]

    @pytest.mark.usefixtures("gloo")
    @pytest.mark.parametrize(
        ("error", "states"),
        [(dist.DistBackendError("remote process exited"), ["failed"]), (ValueError("not contiguous"), [])],
    )
    def test_one_that_its_backend_gave_up_failed(self, error: Exception, states: list[str]) -> None:
        def kernel(*_: Any) -> None:
            raise error

        recorder = recorder_in_use.in_use()
        with record() as trace:
            with pytest.raises(type(error)):
                self.call(kernel)
            (recording,) = recorder.recordings
            assert recorder.tables(recording, waits=False).events["state"].to_list() == states
            dist.all_reduce(torch.ones(2))
        assert trace.events["state"].to_list() == [*states, "completed"]

    @pytest.mark.usefixtures("gloo")
    def test_a_method_of_the_group_that_raises_is_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def allreduce(*_: Any) -> None:
            raise dist.DistBackendError("remote process exited")

        with record() as trace:
            monkeypatch.setitem(group_methods._replaced, "allreduce", allreduce)
            with pytest.raises(dist.DistBackendError):
                dist.all_reduce(torch.ones(2))
            monkeypatch.undo()
            dist.all_reduce(torch.ones(2))
        assert trace.events["state"].to_list() == ["failed", "completed"]
        assert trace.events["cause"].to_list() == ["failed: DistBackendError", ""]
