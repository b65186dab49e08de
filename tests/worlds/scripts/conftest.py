"""The script of a test module, as a file."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """``train.py`` with the module's ``SCRIPT``."""
    path = tmp_path / "train.py"
    path.write_text(request.module.SCRIPT)
    return path
