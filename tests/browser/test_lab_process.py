"""The JupyterLab of these tests ends with them, also when they are killed.

Modules: none of the package.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.browser

RUN = """
import sys
from pathlib import Path
from types import SimpleNamespace
from tests.browser.jupyter_lab import running_lab

def made(name):
    path = Path(sys.argv[1]) / name
    path.mkdir()
    return path

for lab in running_lab(SimpleNamespace(mktemp=made)):
    print(lab.pid, flush=True)
    sys.stdin.read()
"""


def ended(pid: int, seconds: float) -> bool:
    """Return whether a process ends within some time."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], seconds)[0])
    finally:
        os.close(process)


def test_no_server_outlives_a_test_run_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    run = subprocess.Popen(command, **pipes, text=True, cwd=Path(__file__).parents[2])
    server = 0
    try:
        assert run.stdout is not None
        server = int(run.stdout.readline())
        run.kill()
        assert run.wait(120) == -signal.SIGKILL
        assert ended(server, 120)
    finally:
        run.kill()
        run.communicate()
        if server and not ended(server, 0):
            os.killpg(server, signal.SIGKILL)
