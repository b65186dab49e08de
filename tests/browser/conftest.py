"""A real Chromium, a real JupyterLab, and a bare page for the widgets; all on this machine, no other host asked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dsexplore._internal.trace.trace import Trace
from tests.views import traces

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need playwright: pip install dsexplore[test]"
)

ROOT = Path(__file__).parents[2]
ARTEFACTS = Path(__file__).parent / "artefacts"
VIEWPORT = {"width": 1280, "height": 900}
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "notebook-extension/tracker": {"windowingMode": "none", "recordTiming": False},
}
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


LONG = 180_000
"""Milliseconds that anything may take where other work keeps the machine busy: all waits of these tests end by then."""

WITH_US = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Runs what follows on the command line, and has the system end it when the test run ends, in whatever way."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give a test in a browser the time of several such waits."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(5 * LONG / 1e3))


def chromium() -> str:
    found = os.environ.get("DSEXPLORE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.fail("no Chromium found: install Debian's chromium, or name one in DSEXPLORE_CHROMIUM")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=ARGUMENTS, timeout=LONG)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def chromium_arguments() -> dict[str, Any]:
    """Return what another Chromium is launched with."""
    return {"executable_path": chromium(), "args": ARGUMENTS}


class Requests:
    """What a page asked for, by host."""

    def __init__(self, page: Any) -> None:
        self.urls: list[str] = []
        page.on("request", lambda request: self.urls.append(request.url))

    @property
    def foreign(self) -> list[str]:
        local = ("127.0.0.1", "localhost", None, "")
        return [
            u
            for u in self.urls
            if urlsplit(u).scheme in ("http", "https", "ws", "wss") and urlsplit(u).hostname not in local
        ]


def new_page(browser: Any) -> Any:
    """Return a page with a profile of its own, and with what went wrong in it and what it asked for."""
    context = browser.new_context(viewport=VIEWPORT, permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(LONG)
    opened = context.new_page()
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    opened.requests = Requests(opened)
    return opened


@pytest.fixture
def fresh_page(browser: Any) -> Iterator[Any]:
    """Yield a page that nothing was loaded into."""
    opened = new_page(browser)
    yield opened
    opened.context.close()


@pytest.fixture
def page(fresh_page: Any) -> Any:
    """Return the page of a test; files whose tests open notebooks put `lab_page` in its place."""
    return fresh_page


RESET = """
import sys
if "ipywidgets" in sys.modules:
    sys.modules["ipywidgets"].Widget.close_all()
get_ipython().run_line_magic("reset", "-f")
"""
"""Python that leaves a kernel with the modules that it has imported, and no variables and widgets."""


class Lab:
    """A running JupyterLab.

    Attributes:
        folder: the folder of its notebooks.
        address: its URL.
        pid: of its server.
        spare: a kernel that no notebook uses, and that was reset; None if there is none. Starting one takes longer
            than most tests take otherwise.
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
        """Until the open notebook's kernel is idle."""
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
        """Evaluate a Python expression in the open notebook's kernel, through JSON, after all that the page did before.

        While the kernel has a message of a widget, ipywidgets keeps the next until its end is heard: the first request
        is answered after that, and the second one asks behind all messages.
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


@pytest.fixture(scope="session")
def one_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    yield from running_lab(tmp_path_factory)


@pytest.fixture
def lab(one_lab: Lab) -> Iterator[Lab]:
    """Yield the JupyterLab of all tests; the kernels of each end with it, except for the spare one."""
    yield one_lab
    one_lab.end_kernels(but=one_lab.spare)


@pytest.fixture(scope="session")
def pages_of_lab(browser: Any) -> Iterator[list[Any]]:
    """Yield where a test leaves JupyterLab's page for the next one: empty, or that page."""
    pages: list[Any] = []
    yield pages
    for page in pages:
        page.context.close()


@pytest.fixture
def lab_page(lab: Lab, browser: Any, pages_of_lab: list[Any]) -> Iterator[Any]:
    """JupyterLab's page with no notebook open. Errors and requests are those of one test."""
    with page_of_lab(lab, browser, pages_of_lab) as page:
        yield page


@contextmanager
def page_of_lab(lab: Lab, browser: Any, pages: list[Any]) -> Iterator[Any]:
    """Take JupyterLab's page, which takes longer to load than most tests take otherwise, and leave it to the next
    test, unless closing its notebooks fails."""
    page = pages.pop() if pages else new_page(browser)
    page.set_viewport_size(VIEWPORT)
    page.mouse.move(0, 0)
    page.errors.clear()
    page.requests.urls.clear()
    try:
        yield page
        for other in page.context.pages:
            if other is not page:  # the browser gives a page behind another one few frames
                other.close()
        lab.close(page)
        pages.append(page)
    finally:
        if not pages:
            page.context.close()


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


@pytest.fixture(scope="session")
def shot() -> Any:
    """Keep a picture of a page or of one element."""

    def take(target: Any, name: str, **options: Any) -> Path:
        ARTEFACTS.mkdir(exist_ok=True)
        path = ARTEFACTS / f"{name}.png"
        target.screenshot(path=path, **options)
        return path

    return take


@pytest.fixture(scope="session")
def make_layered() -> Callable[..., Trace]:
    """See `traces.layered`."""
    return traces.layered


@pytest.fixture(scope="session")
def trace_of_names() -> Callable[..., Trace]:
    return traces.of_names


@pytest.fixture(scope="session")
def make_timed() -> Callable[..., Trace]:
    return traces.timed


@pytest.fixture(scope="session")
def kinds() -> list[str]:
    """Return the kinds of figure, in the order of the list to choose from."""
    from dsexplore._internal.views.trace.figures import FIGURES

    return list(FIGURES)
