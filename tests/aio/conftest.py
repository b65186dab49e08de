"""Fixtures of the disk room: every engine that runs here, random bytes, and filesystems made for one test."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dsexplore._internal.aio.backends import compiled_loop
from dsexplore._internal.aio.backends.choose import ENGINES, why_not
from dsexplore._internal.aio.sweeps import search, sweep_setup, sweeping
from tests.waiting import wait_until


@pytest.fixture(params=[*ENGINES, "linux-aio in Python", "io_uring in Python"])
def backend(request: pytest.FixtureRequest) -> str:
    """Return an engine, each in turn, without its loop in C, too; one that the system lacks is reported as such, not as
    passed."""
    name, _, loop = request.param.partition(" in ")
    reason = why_not(name)
    if reason is not None:
        pytest.skip(reason)
    if loop:
        request.getfixturevalue("python_loop")
    return str(name)


@pytest.fixture
def python_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines without their loop in C."""
    monkeypatch.setattr(compiled_loop, "_library", lambda: "a test asks for it")


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps that measure each setting for no longer than 20 ms at a time, whatever they may spend."""
    monkeypatch.setattr(sweep_setup, "_SLICE", (0.02, 0.02))


@pytest.fixture
def ended_by_bytes(monkeypatch: pytest.MonkeyPatch, short_slices: None) -> None:
    """Sweeps that only what may be written ends, on slow disks and on even ones, too: their clock does not run, and
    the finals find no interval narrow enough."""
    monkeypatch.setattr(sweeping, "time", SimpleNamespace(monotonic=lambda: 0.0))
    monkeypatch.setattr(search, "finals", partial(search.finals, width=0.0))


@pytest.fixture(scope="session")
def random_bytes() -> Callable[[int], bytes]:
    """``random_bytes(n)``: the same n random bytes every time."""
    pool = np.random.default_rng(7).integers(0, 256, 8 << 20, np.uint8).tobytes()

    def take(n: int) -> bytes:
        assert n <= len(pool)
        return pool[:n]

    return take


@pytest.fixture
def open_files() -> Iterator[None]:
    """Fail the test if it leaves a descriptor open."""
    before = descriptors()
    yield
    if descriptors() - before:
        gc.collect()
    assert descriptors() - before == set()


def descriptors() -> set[tuple[str, str]]:
    """Return the open descriptors of this process, each with what it is open on."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor that lists this folder
            found.add((link.name, str(link.readlink())))
    return found


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """``mounted("size=4m")``: a tmpfs with these options for one test."""
    points: list[Path] = []

    def mount(options: str) -> Path:
        point = tmp_path / f"mount{len(points)}"
        point.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            pytest.skip(f"this user may not mount: {done.stderr.strip()}")
        points.append(point)
        return point

    yield mount
    for point in points:
        unmount(point)


@pytest.fixture
def loop_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a 24 MiB ext4 filesystem on a loop device: direct I/O on a disk that fills."""
    image, point = tmp_path / "disk.img", tmp_path / "disk"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(24 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", str(image)], check=True, capture_output=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(point)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this user may not mount a loop device: {done.stderr.strip()}")
    yield point
    unmount(point)


def unmount(point: Path) -> None:
    """Unmount what nothing uses any more: the kernel may let go of a file a moment after its request has finished."""
    wait_until(lambda: subprocess.run(["umount", str(point)], check=False).returncode == 0, seconds=60)


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sweeps take the disk for a fast one, so that their files have the size that a test gives."""
    monkeypatch.setattr("dsexplore._internal.aio.sweeps.sweep_setup.probed_rate", lambda *_: 1e13)
