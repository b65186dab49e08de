"""What a file asks of direct requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore.aio import target as target_module
from dsexplore.aio.aio_constants import SECTOR
from dsexplore.aio.target import Alignment, Target


@pytest.mark.parametrize(
    ("known", "asked"), [(Alignment(4, 4096), Alignment(4, 4096)), (None, Alignment(SECTOR, SECTOR))]
)
def test_direct_requests_are_aligned_as_the_filesystem_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: Alignment | None, asked: Alignment
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SECTOR))
    monkeypatch.setattr(target_module, "direct_alignment", lambda _fd: known)
    for direct in (True, False):
        opened = Target(str(path), write=False, direct=direct)
        try:
            assert opened.alignment == (asked if opened.direct else Alignment(1, 1))
            assert direct or not opened.direct
        finally:
            opened.close()
