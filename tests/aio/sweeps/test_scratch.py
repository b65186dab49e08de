"""Files that a sweep makes for itself: without a name where that can be, and never left behind."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from dsexplore._internal.aio.sweeps import scratch
from dsexplore._internal.aio.sweeps.scratch import PREFIX, Scratch, remove_abandoned
from dsexplore._internal.aio.transfer_file import TransferFile
from dsexplore.aio import sweep


def test_a_sweep_checks_the_space_before_it_writes(loop_disk: Path) -> None:
    with pytest.raises(OSError, match=r"64 MiB are needed and .* are free: give a smaller size") as caught:
        sweep(loop_disk, "64MiB", 1)
    assert caught.value.errno == errno.ENOSPC
    assert [entry.name for entry in loop_disk.iterdir()] == ["lost+found"]


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a system on which open files cannot be reached through /proc."""
    monkeypatch.setattr(Path, "exists", lambda _: False)


@pytest.mark.usefixtures("without_proc")
def test_a_file_that_keeps_its_name_is_removed_with_its_owner(tmp_path: Path) -> None:
    (tmp_path / "mine.tmp").write_bytes(b"the user's")
    with Scratch(tmp_path, 4096) as own, Scratch(tmp_path, 4096) as other:  # those in use are left alone
        assert {str(entry) for entry in tmp_path.glob(f"{PREFIX}*")} == {own.path, other.path}
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine.tmp"]


def test_a_scratch_file_has_no_name_and_is_reached_by_its_path(tmp_path: Path) -> None:
    with Scratch(tmp_path, 4096) as own:
        assert list(tmp_path.iterdir()) == []
        Path(own.path).write_bytes(b"abc")
        assert os.pread(own.fd, 10, 0) == b"abc"
        done = subprocess.run(["cat", own.path], capture_output=True, check=True)  # as fio opens it
        assert done.stdout == b"abc"
        target = TransferFile(own.path, write=False)
        assert target.path.startswith(f"{tmp_path}/{PREFIX}")  # what errors name
        target.close()
        own.close()  # and again as the block ends, which does nothing


@pytest.mark.usefixtures("without_proc")
def test_a_filesystem_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep files whose owner is unknown."""

    def refused(*_: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(scratch.fcntl, "flock", refused)
    with Scratch(tmp_path, 4096) as one, Scratch(tmp_path, 4096) as other:
        assert {entry.name for entry in tmp_path.iterdir()} == {Path(one.path).name, Path(other.path).name}
    assert list(tmp_path.iterdir()) == []


def test_abandoned_files_are_told_from_others(tmp_path: Path) -> None:
    abandoned = tmp_path / f"{PREFIX}99999-0123abcd.tmp"
    abandoned.write_bytes(b"x")
    link = tmp_path / f"{PREFIX}1-link.tmp"
    (tmp_path / "precious").write_bytes(b"y")
    link.symlink_to(tmp_path / "precious")
    assert remove_abandoned(tmp_path) == [abandoned]
    assert (tmp_path / "precious").read_bytes() == b"y"
    assert link.is_symlink()
