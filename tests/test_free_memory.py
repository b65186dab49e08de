"""The memory that is still available comes from the kernel, where it reports it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsexplore._internal.free_memory import free_memory


def test_a_system_that_reports_nothing_has_an_unknown_amount(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_named: "MemTotal: 8 kB\nMemAvailable: 2 kB\n")
    assert free_memory() == 2048
    monkeypatch.setattr(Path, "read_text", lambda *_args, **_named: "MemTotal: 8 kB\n")
    assert free_memory() is None
