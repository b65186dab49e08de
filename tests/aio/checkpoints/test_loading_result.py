"""Advice of a `LoadingResult` with given seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore._internal.aio.checkpoints.checkpoint_files import Checkpoint
from dsexplore._internal.aio.checkpoints.loading_result import CheckpointTimes, LoaderTimes, LoadingResult, LoadTime
from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.errors import UsageError

DISK = Disk("/data", "ext4", "/data", "/dev/nvme0", "", "disk", 1 << 40, True, None, 512, 512)
GIB = 1 << 30


def loader(
    name: str, cold: list[float], warm: float, fill: float = 0.0, *, maps: bool = False, cached: float | None = 0.0
) -> LoaderTimes:
    """Loads of so many seconds, of which `fill` is copying."""
    return LoaderTimes(
        name, maps, tuple(LoadTime(each - fill, fill) for each in cold), (LoadTime(warm - fill, fill),), cached
    )


def loading(*loaders: LoaderTimes, disk_seconds: float = 1.0, disk: Disk = DISK) -> LoadingResult:
    checkpoint = Checkpoint(Path("model.pt"), "torch.save", (Path("model.pt"),), (GIB,))
    return LoadingResult("model.pt", disk, (CheckpointTimes(checkpoint, loaders, (GIB / disk_seconds,)),))


USUAL = loader("torch.load", [4.0, 4.2, 4.1], 1.0)


def test_a_surely_faster_call_is_advised() -> None:
    found = loading(USUAL, loader("other", [2.0, 2.1, 2.05], 0.5))
    assert (
        found.verdict() == "Load with other: 2.05 s cold, 500 ms warm; 2 times as fast as torch.load from a cold disk."
    )
    assert "torch.load: 4.1 s cold, of which 1 s remain when the file is in memory" in found.lines()[1]


@pytest.mark.parametrize("cold", [[4.0, 4.0, 3.8], [3.0, 3.0, 4.1], [5.0]])
def test_what_is_not_surely_faster_is_not_advised(cold: list[float]) -> None:
    verdict = loading(USUAL, loader("other", cold, 0.1)).verdict()
    assert verdict == "Load with torch.load: 4.1 s cold, 1 s warm; nothing measured is reliably faster."


def test_what_limits_is_said() -> None:
    at_limit = loading(USUAL, disk_seconds=4.0).lines()
    assert at_limit[1].endswith("it is the limit.")
    assert at_limit[2].startswith("Only fewer bytes")
    assert loading(USUAL).lines()[1].endswith("it waits for requests.")
    busy = loading(loader("torch.load", [4.0], 3.0)).lines()
    assert busy[1].endswith("most is the processor's work.")
    assert busy[2] == "75 % of it is the processor's work, which a faster disk does not shorten."


def test_copying_is_advised_against_where_the_call_has_read_the_bytes() -> None:
    said = "load_state_dict(…, assign=True)"
    assert any(said in line for line in loading(loader("torch.load", [4.0], 1.0, 0.9)).lines())
    assert not any(said in line for line in loading(loader("torch.load", [4.0], 1.0, 0.9, maps=True)).lines())


def test_direct_reading_is_advised_for_cold_files_alone() -> None:
    found = loading(USUAL, loader("dsexplore.aio.load_file", [1.5], 1.5))
    assert any("read or written just before" in line for line in found.lines())


@pytest.mark.parametrize(("cached", "said"), [(0.4, "Up to 40 % of the files"), (None, "does not say")])
def test_files_that_stay_cached_are_said(cached: float | None, said: str) -> None:
    assert any(said in line for line in loading(loader("torch.load", [1.0], 1.0, cached=cached)).lines())


def test_the_table_has_a_row_per_call() -> None:
    found = loading(USUAL, loader("other", [2.0], 0.5, 0.25))
    frame = found.to_frame()
    assert frame["call"].to_list() == ["torch.load", "other"]
    assert frame.row(1, named=True) == {
        "format": "torch.save",
        "call": "other",
        "bytes": GIB,
        "cold": 2.0,
        "warm": 0.5,
        "cold_call": 1.75,
        "warm_call": 0.25,
        "waiting": 1.5,
        "disk": 1.0,
        "rate": GIB / 2,
        "still_cached": 0.0,
    }


def test_a_format_that_was_not_measured_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'DCP' was not measured: there is torch\.save"):
        loading(USUAL)["DCP"]
