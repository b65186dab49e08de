"""Programs of tests that run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def python(program: str, *, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    words = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)
