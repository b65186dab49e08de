"""A rank ignores SIGTERM while its report is being sent."""

from __future__ import annotations

import marshal
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.worlds.real.cell_process import run_cell
from dsexplore._internal.worlds.real.messages import Cell


@pytest.fixture(autouse=True)
def handler() -> Iterator[Any]:
    """Yield the handler of SIGTERM before the cell, and restore it."""
    before = signal.getsignal(signal.SIGTERM)
    yield before
    signal.signal(signal.SIGTERM, before)


def run(source: str, save: Path | str = "") -> Any:
    """Run one cell in this process, and return SIGTERM's handler after it."""
    code = marshal.dumps((compile(source, "cell", "exec"), None))
    report = run_cell(Cell(code, "cell", sources={}, names=b"", save=str(save)), {})
    assert report.ok, report
    return signal.getsignal(signal.SIGTERM)


def test_a_rank_that_saves_its_trace_ignores_sigterm_once_its_cell_is_over(tmp_path: Path) -> None:
    assert (
        run("import signal; assert signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN", tmp_path) is signal.SIG_IGN
    )


def test_a_rank_that_saves_nothing_keeps_its_handler(handler: Any) -> None:
    assert run("pass") == handler


def test_a_handler_that_a_cell_has_set_stays(tmp_path: Path) -> None:
    assert run("import signal; signal.signal(signal.SIGTERM, signal.SIG_DFL)", tmp_path) is signal.SIG_DFL


def test_an_error_inside_a_module_is_reported_without_the_recorders_frames() -> None:
    source = """
from torch import nn

class Broken(nn.Module):
    def forward(self):
        raise ValueError("inside")

nn.Sequential(Broken()).append(Broken())[1]()
"""
    code = marshal.dumps((compile(source, "cell", "exec"), None))
    report = run_cell(Cell(code, "cell", sources={}, names=b"", save=""), {})
    assert (report.ok, report.error, report.line) == (False, "ValueError: inside", 6)
    assert report.traceback is not None
    assert "in forward" in report.traceback
    assert "dsexplore" not in report.traceback.replace(str(Path(__file__).parents[3]), "")
