"""Which recorder records."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dsexplore.capture import recorder_in_use
from dsexplore.capture.issued_collective import Issued, Label, Origin
from dsexplore.capture.record import record
from dsexplore.capture.recorder import Recorder
from dsexplore.errors import UsageError


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

    def __init__(self) -> None:
        self.watched: list[Any] = []

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
        assert recorder.begins("c10d::allreduce_", cast(Any, None), ()) is None  # nothing is recorded now
        recorder.keep_kernels(False)
        assert kernels.uninstalled == 1
        with record():
            pass
        assert (kernels.installed, kernels.uninstalled) == (2, 2)
    finally:
        recorder_in_use.use(before)
