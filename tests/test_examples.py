"""The scripts in ``examples/`` run as their first lines say.

Modules: none of the package.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
COMMANDS = {
    "trace_a_step.py": ([], "A step sends 3.2 MiB"),
    "train_ddp.py": (["-m", "dsexplore", "run", "--world-size", "16"], "all_reduce"),
    "compare_plans.py": ([], "sends"),
    "late_rank.py": ([], "Rank 1 arrives"),
    "test_what_is_sent.py": (["-m", "pytest", "-q", "-p", "no:cacheprovider"], "1 passed"),
}
"""By script: what stands before it after ``python``, and a word that its output has."""


def test_every_example_is_run() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == COMMANDS.keys()


@pytest.mark.processes
@pytest.mark.parametrize("name", COMMANDS)
def test_example(name: str, tmp_path: Path) -> None:
    before, word = COMMANDS[name]
    finished = subprocess.run(
        [sys.executable, *before, str(FOLDER / name)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert word in finished.stdout + finished.stderr
    assert len((FOLDER / name).read_text().splitlines()) <= 50, "an example fits on one screen"
