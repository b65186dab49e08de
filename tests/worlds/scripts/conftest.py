"""The script of a test module, as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsexplore.worlds.real import server_handle


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """``train.py`` with the module's ``SCRIPT``; ranks that played it are gone after the test."""
    path = tmp_path / "train.py"
    path.write_text(request.module.SCRIPT)
    yield path
    server_handle.close()
