"""Which recorder records."""

from __future__ import annotations

import pytest

from dsexplore.capture import recorder
from dsexplore.capture.record import record
from dsexplore.capture.recorder import Recorder
from dsexplore.errors import UsageError


def test_another_recorder_takes_over_only_between_recordings() -> None:
    before = recorder.in_use()
    with record(), pytest.raises(UsageError, match="a recording is open"):
        recorder.use(Recorder())
    assert recorder.in_use() is before
    after = Recorder()
    recorder.use(after)
    try:
        with record():
            assert len(after.recordings) == 1
        assert not after.recordings
    finally:
        recorder.use(before)
