"""A real JupyterLab of the browser tests: started, driven through its page, and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none", "recordTiming": False},
}
LONG = 180_000
"""Milliseconds after which any wait of these tests ends; other work may keep the machine busy."""
WITH_US = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Runs the command line that follows, which the system ends when the test run ends for any reason."""
RESET = """
import sys
if "ipywidgets" in sys.modules:
    sys.modules["ipywidgets"].Widget.close_all()
get_ipython().run_line_magic("reset", "-f")
"""
"""Python that removes all variables and widgets of a kernel, but keeps imported modules."""


class Lab:
    """A running JupyterLab.

    Attributes:
        folder: Folder of its notebooks.
        address: Its URL.
        pid: Process of its server.
        spare: Kernel that no notebook uses, and that was reset; None if there is none. Starting a kernel takes longer
            than most tests.
    """

    def __init__(self, folder: Path, address: str, pid: int) -> None:
        self.folder, self.address, self.pid = folder, address, pid
        self.spare: str | None = None

    def write(self, name: str, cells: list[str]) -> Path:
        """Write a notebook of code cells."""
        made = [
            {"cell_type": "code", "id": f"c{i}", "metadata": {}, "source": c, "outputs": [], "execution_count": None}
            for i, c in enumerate(cells)
        ]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        path = self.folder / name
        path.write_text(json.dumps({"cells": made, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}))
        return path

    def open(self, page: Any, name: str, dark: bool = False) -> None:
        """Open a notebook, with the spare kernel if there is one."""
        if not page.url.startswith(self.address):
            page.goto(f"{self.address}/lab/workspaces/{name.partition('.')[0]}?reset")
            page.wait_for_function("() => globalThis.jupyterapp")
            page.evaluate("async () => { await jupyterapp.restored; }")
        kernel = {"id": self.spare} if self.spare else None
        self.spare = None
        page.evaluate("args => void jupyterapp.commands.execute('docmanager:open', args)",
                      {"path": name, "kernel": kernel})  # fmt: skip
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=LONG)
        self.set_theme(page, dark)
        page.evaluate("() => { const l = jupyterapp.shell; if (!l.leftCollapsed) l.collapseLeft(); }")

    def close(self, page: Any, end_kernel: bool = False) -> None:
        """Close the open notebooks, saved or not; an idle kernel becomes the spare one, unless it is to end."""
        self.spare = page.evaluate(
            """async (reset) => {
                let spare = null;
                for (const shown of [...jupyterapp.shell.widgets("main")].filter((shown) => shown.context)) {
                    const kernel = shown.sessionContext?.session?.kernel;
                    if (reset && !spare && kernel?.status === "idle") {
                        await kernel.requestExecute({ code: reset, silent: true, store_history: false }).done;
                        spare = kernel.id;
                    } else await shown.sessionContext?.shutdown();
                    shown.dispose();
                }
                return spare;
            }""",
            None if end_kernel else RESET,
        )
        page.wait_for_selector(".jp-NotebookPanel", state="detached")

    def set_theme(self, page: Any, dark: bool) -> None:
        """Choose a theme, and wait until the page has it."""
        theme = "JupyterLab Dark" if dark else "JupyterLab Light"
        page.evaluate("t => void jupyterapp.commands.execute('apputils:change-theme', { theme: t })", theme)
        page.wait_for_function("t => document.body.dataset.jpThemeName === t", arg=theme, timeout=LONG)

    def wait_for_kernel(self, page: Any) -> None:
        """Wait until the open notebook's kernel is idle."""
        page.wait_for_function(
            "() => jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'", timeout=LONG
        )

    def start_all(self, page: Any) -> None:
        """Begin to run every cell."""
        self.wait_for_kernel(page)
        page.evaluate("() => void jupyterapp.commands.execute('notebook:run-all-cells')")

    def run_all(self, page: Any) -> None:
        """Run every cell and wait for the last; a cell that raises fails the test."""
        self.start_all(page)
        page.wait_for_function(
            "() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]"
            ".every((prompt) => /[0-9]/.test(prompt.textContent))",
            timeout=LONG,
        )
        error = page.query_selector('[data-mime-type="application/vnd.jupyter.error"]')
        assert error is None, error.inner_text()

    def evaluate(self, page: Any, expression: str) -> Any:
        """Evaluate a Python expression in the open notebook's kernel, through JSON, after all changes of the page.

        While the kernel handles a message of a widget, ipywidgets holds the next one back. The first request is
        answered after that, so the second one is behind all messages.
        """
        return json.loads(
            page.evaluate(
                """async (code) => {
                    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
                    let text = "";
                    await kernel.requestExecute({ code: "", silent: true, store_history: false }).done;
                    const future = kernel.requestExecute({ code, silent: false, store_history: false });
                    future.onIOPub = (m) => {
                        if (m.header.msg_type === "stream" && m.content.name === "stdout") text += m.content.text;
                        if (m.header.msg_type === "error") text = JSON.stringify({ error: m.content.evalue });
                    };
                    await future.done;
                    return text;
                }""",
                f"import json as _json; print(_json.dumps({expression}))",
            )
        )

    def save(self, page: Any) -> None:
        """Save the open notebook, and wait until it is saved."""
        page.evaluate("async () => { await jupyterapp.commands.execute('docmanager:save'); }")
        page.wait_for_function("() => !jupyterapp.shell.currentWidget.context.model.dirty", timeout=LONG)

    def end_kernels(self, but: str | None = None) -> None:
        """Shut down what still runs, except for one kernel: each has torch loaded.

        A kernel that ends by itself meanwhile makes Jupyter's server answer with an error of its own; the next list
        lacks it.
        """
        for _ in range(10):
            try:
                for kernel in self._ask("/api/kernels"):
                    if kernel["id"] != but:
                        self._ask(f"/api/kernels/{kernel['id']}", "DELETE")
                self.spare = but
                return
            except urllib.error.HTTPError as error:
                last = error
        raise last

    def _ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(f"{self.address}{path}", method=method)
        with urllib.request.urlopen(request, timeout=LONG / 1e3) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def running_lab(tmp_path_factory: Any) -> Iterator[Lab]:
    """Yield a JupyterLab on a free port, with settings, workspaces and notebooks of its own; stopped at the end."""
    folder, home = tmp_path_factory.mktemp("notebooks"), tmp_path_factory.mktemp("jupyter")
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {"CONFIG_DIR": "config", "DATA_DIR": "data", "RUNTIME_DIR": "run"}
    environment = {
        **os.environ,
        **{f"JUPYTER_{key}": str(home / value) for key, value in places.items()},
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    options = {
        "ServerApp.ip": "127.0.0.1", "ServerApp.port": port, "IdentityProvider.token": "",
        "ServerApp.password": "", "ServerApp.root_dir": folder, "ServerApp.allow_root": True,
        "ServerApp.disable_check_xsrf": True,  # else none but a page may end a kernel
    }  # fmt: skip
    command = [sys.executable, "-c", WITH_US, str(os.getpid()), "-m", "jupyter", "lab"]
    command += ["--no-browser", "--expose-app-in-browser"]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *(f"--{k}={v}" for k, v in options.items())],
            env=environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield Lab(folder, _address(server, home), server.pid)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait(60)


def _address(server: subprocess.Popen[bytes], home: Path) -> str:
    """Return where the server listens, when it does: it takes another port where its own was taken meanwhile."""
    deadline = time.monotonic() + LONG / 1e3
    told = home / "run" / f"jpserver-{server.pid}.json"
    while time.monotonic() < deadline and server.poll() is None:
        try:
            address = f"http://127.0.0.1:{json.loads(told.read_text())['port']}"
            urllib.request.urlopen(f"{address}/api", timeout=2).close()
            return address
        except (OSError, ValueError):
            time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{(home / 'log').read_text()[-2000:]}")
