"""Alignment of direct requests, as the filesystem asks for it."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import pytest

from dsexplore._internal.aio import transfer_file
from dsexplore._internal.aio.aio_constants import SECTOR
from dsexplore._internal.aio.backends import syscalls
from dsexplore._internal.aio.transfer_file import Alignment, TransferFile, direct_alignment


@pytest.mark.parametrize(
    ("known", "asked"), [(Alignment(4, 4096), Alignment(4, 4096)), (None, Alignment(SECTOR, SECTOR))]
)
def test_direct_requests_are_aligned_as_the_filesystem_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Alignment | None, asked: Alignment
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SECTOR))
    monkeypatch.setattr(transfer_file, "direct_alignment", lambda _fd: known)
    for direct in (True, False):
        opened = TransferFile(str(path), write=False, direct=direct)
        try:
            assert opened.alignment == (asked if opened.direct else Alignment(1, 1))
            assert direct or not opened.direct
        finally:
            opened.close()


@pytest.mark.parametrize(
    ("answered", "asked"),
    [
        ((1, 4, 4096), Alignment(4, 4096)),
        ((1, 0, 0), None),
        ((0, 4, 4096), Alignment(SECTOR, SECTOR)),  # a kernel that does not say
    ],
)
def test_what_the_filesystem_says_of_direct_requests(
    monkeypatch: pytest.MonkeyPatch, answered: tuple[int, int, int], asked: Alignment | None
) -> None:
    says_it, *alignments = answered

    def statx(_number: int, _fd: int, _name: int, _flags: int, mask: int, answer: int) -> int:
        ctypes.memmove(answer, struct.pack("=I", mask * says_it), 4)
        ctypes.memmove(answer + 0x98, struct.pack("=II", *alignments), 8)  # the place that the kernel's header gives
        return 0

    monkeypatch.setattr(syscalls, "SUPPORTED", True)
    monkeypatch.setattr(syscalls, "statx", statx)
    assert direct_alignment(0) == asked


@pytest.mark.skipif(not syscalls.SUPPORTED, reason="our numbers of system calls are those of Linux on two processors")
def test_statx_is_the_system_call_that_describes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(123))
    answer = ctypes.create_string_buffer(256)
    with path.open("rb") as file:
        basic = 0x7FF
        assert syscalls.statx(syscalls.STATX, file.fileno(), b"", 0x1000, basic, ctypes.addressof(answer)) == 0
    assert struct.unpack_from("=QQ", answer, 32) == (path.stat().st_ino, 123)
