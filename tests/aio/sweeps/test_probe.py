"""The first look at a disk's rate, by a clock that is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore._internal.aio.sweeps.probe import probed_rate


def test_the_fastest_of_a_few_tries_counts(tmp_path: Path) -> None:
    looks = iter([0.0, 0.2, 1.0, 1.05, 2.0, 2.1])
    with (tmp_path / "file").open("wb") as file:
        assert probed_rate(file.fileno(), 8 << 20, lambda: next(looks)) == pytest.approx((8 << 20) / 0.05)
    assert (tmp_path / "file").stat().st_size == 8 << 20
    assert list(looks) == []  # a third of a second was used up


def test_a_slow_disk_is_tried_once(tmp_path: Path) -> None:
    looks = iter([0.0, 2.0])
    with (tmp_path / "file").open("wb") as file:
        assert probed_rate(file.fileno(), 1 << 30, lambda: next(looks)) == 8 << 20
    assert (tmp_path / "file").stat().st_size == 16 << 20
