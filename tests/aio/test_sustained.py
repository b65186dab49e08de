"""Sustained writes: what is counted, and where a disk is said to get slower."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from dsexplore import aio
from dsexplore._internal.aio.disk import Disk
from dsexplore._internal.aio.sustained import SustainedWrites, write_pieces
from dsexplore._internal.cli import main
from dsexplore._internal.display import plain_text
from dsexplore._internal.errors import UsageError
from dsexplore._internal.views.aio.disk_views import SustainedWritesView

pytestmark = pytest.mark.usefixtures("open_files")

GB = 10**9
DISK = Disk("/data", "ext4", "/data", "/dev/nvme0", "", "disk", 1 << 40, True, None, 512, 512)


def writes(rates: list[float]) -> SustainedWrites:
    """Pieces of 1 GB at so many GB/s."""
    return SustainedWrites(DISK, tuple((GB, 1 / rate) for rate in rates), 0.5)


def test_pieces_are_timed_one_after_another(tmp_path: Path) -> None:
    """Count ticks of the clock: one per piece and one for the fsync."""
    ticks = count()
    found = write_pieces(tmp_path, 1 << 20, lambda: float(next(ticks)))
    assert found.pieces == ((16384, 1.0),) * 64
    assert (found.nbytes, found.fsync_seconds) == (1 << 20, 1.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rates", "full_at"),
    [
        ([2.0] * 10 + [0.5] * 30, 10 * GB),
        ([2.0, 2.2, 1.9, 0.1, 2.0, 2.1, 2.0, 2.0], None),  # a hiccup
        ([2.0] * 40, None),
        ([2.0] * 38 + [0.5] * 2, None),  # too few to be sure
        ([0.5] * 20 + [2.0] * 20, None),
        ([2.0], None),
    ],
)
def test_where_it_gets_slower_for_good(rates: list[float], full_at: int | None) -> None:
    assert writes(rates).full_at == full_at


def test_the_sentences() -> None:
    slow = writes([2.0] * 10 + [0.5] * 30)
    assert slow.verdict() == (
        "The disk writes 2.00 GB/s (1.86 GiB/s) for the first 9.3 GiB, then 500 MB/s (477 MiB/s): a cache was full."
    )
    assert slow.durable_rate == pytest.approx(40 * GB / 65.5)
    even = writes([2.0] * 40)
    assert even.verdict() == "The disk writes 2.00 GB/s (1.86 GiB/s) throughout 37.3 GiB."
    assert plain_text(even).splitlines()[-1].startswith("A cache larger than what was written is not seen")
    assert list(SustainedWritesView(slow).figure().data[0].y) == pytest.approx([2.0] * 10 + [0.5] * 30)
    assert "a cache was full" in SustainedWritesView(slow).html()


def test_too_little_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="too small to fill a cache"):
        aio.sustained_writes(tmp_path, "1MiB")
    assert main(["aio", str(tmp_path), "--sustained", "1MiB"]) == 1
    assert "too small to fill a cache" in capsys.readouterr().err
