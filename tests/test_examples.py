"""The scripts in ``examples/`` run as their first lines say.

Modules: none of the package.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from dsexplore._internal.cli import main

FOLDER = Path(__file__).parents[1] / "examples"
RUN_BY_PYTHON = {
    "trace_a_step.py": "A step sends 3.2 MiB",
    "compare_plans.py": "sends",
    "late_rank.py": "Rank 1 arrives",
}
"""By script: words that its output has."""
RUN_BY_COMMANDS = {"train_ddp.py", "test_what_is_sent.py", "marimo_first_trace.py"}


def test_every_example_is_run() -> None:
    names = {path.name for path in FOLDER.glob("*.py")}
    assert names == RUN_BY_PYTHON.keys() | RUN_BY_COMMANDS
    assert all(len((FOLDER / name).read_text().splitlines()) <= 50 for name in names), "an example fits on one screen"


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
@pytest.mark.parametrize("name", RUN_BY_PYTHON)
def test_a_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # where some write their pages
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert RUN_BY_PYTHON[name] in capsys.readouterr().out


def test_a_script_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--world-size", "16", str(FOLDER / "train_ddp.py")]) == 0
    assert "all_reduce" in capsys.readouterr().out


@pytest.mark.processes
def test_a_test(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / "test_what_is_sent.py")]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert finished.returncode == 0, finished.stdout
    assert "1 passed" in finished.stdout
