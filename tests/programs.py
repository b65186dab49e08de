"""Programs of tests that run in a process of their own, with dsexplore and the tests from this tree."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(program: str, *, folder: Path = ROOT, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, to its end."""
    words = [sys.executable, "-c", textwrap.dedent(program)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


def printed(program: str) -> str:
    """Return what a program prints; fails the test, with its standard error, where it does not end well."""
    done = python(program)
    assert done.returncode == 0, done.stderr
    return done.stdout
