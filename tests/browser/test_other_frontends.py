"""Explorers in Notebook 7, Voilà and marimo, each with a server of its own: live, without their twins, and answered.

Modules: ``views/explorer/``, ``views/widgets/``.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.browser.jupyter_lab import LONG, ROOT, WITH_US, Lab

pytestmark = pytest.mark.browser

LOAD = "import dsexplore\ntrace = dsexplore.load('other.trace')"
CELLS = [LOAD, "trace.timeline().explore()", "explorer = trace.explore()\nexplorer", "trace.timeline()"]
APP = """
import marimo
app = marimo.App()

@app.cell
def _():
    import dsexplore
    trace = dsexplore.load('other.trace')
    return (trace,)

@app.cell
def _(trace):
    trace.timeline().explore()

@app.cell
def _(trace):
    explorer = trace.explore()
    explorer

@app.cell
def _(trace):
    trace.timeline()
"""
SEEN = """() => ["dsx-twin", "dsx-live", "tl"].map((name) => {
  const roots = [document, ...[...document.querySelectorAll("marimo-anywidget")].map((each) => each.shadowRoot)];
  return roots.flatMap((root) => [...root.querySelectorAll(`.${name}`)]).filter((e) => e.checkVisibility()).length;
})"""
"""How many twins, live views, and static drawings of a timeline can be seen."""


@contextmanager
def serving(folder: Path, *command: str) -> Iterator[str]:
    """Yield a server of pages in a folder, and its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{key}_DIR": str(folder / key) for key in ("CONFIG", "DATA", "RUNTIME")}
    environment = {**os.environ, **places, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    given = [sys.executable, "-c", WITH_US, str(os.getpid()), "-m", *(part.format(port=port) for part in command)]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(given, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        _until_it_listens(server, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def _until_it_listens(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + LONG / 1e3
    while time.monotonic() < deadline and server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    pytest.fail("the server did not start")


@pytest.fixture
def folder(tmp_path: Path, make_layered: Any) -> Path:
    make_layered(4, odd=1).save(tmp_path / "other.trace")
    Lab(tmp_path, "", 0).write("other.ipynb", CELLS)
    (tmp_path / "other.py").write_text(APP)
    return tmp_path


def check_live(page: Any) -> None:
    """Both explorers are seen without their twins, one static drawing is, and a choice is answered."""
    page.wait_for_function(f"() => ({SEEN})()[1] >= 2 && ({SEEN})()[2] === 1", timeout=2 * LONG)
    assert page.evaluate(SEEN) == [0, 2, 1]
    page.locator(".dsx-explorer select").first.select_option(index=2)
    page.locator(".dsx-status", has_text="4 of 13 collectives").wait_for()
    assert page.locator(".dsx-explorer > .dsx-state").get_attribute("data-waiting") == "0"


def test_notebook_7(folder: Path, fresh_page: Any) -> None:
    pytest.importorskip("notebook", minversion="7", reason="Notebook 7 is not installed: pip install notebook")
    options = ("--ServerApp.ip=127.0.0.1", "--IdentityProvider.token=", "--ServerApp.allow_root=True")
    command = ("notebook", "--no-browser", "--expose-app-in-browser", "--ServerApp.port={port}", *options)
    with serving(folder, *command) as address:
        fresh_page.goto(f"{address}/notebooks/other.ipynb")
        fresh_page.wait_for_function("() => globalThis.jupyterapp")
        Lab(folder, address, 0).run_all(fresh_page)
        check_live(fresh_page)


def test_voila(folder: Path, fresh_page: Any) -> None:
    pytest.importorskip("voila", reason="Voilà is not installed: pip install voila")
    command = ("voila", "--no-browser", "--Voila.ip=127.0.0.1", "--port={port}", "other.ipynb")
    with serving(folder, *command) as address:
        fresh_page.goto(address, timeout=2 * LONG)
        check_live(fresh_page)


def test_marimo(folder: Path, fresh_page: Any) -> None:
    pytest.importorskip("marimo", reason="marimo is not installed: pip install marimo")
    command = ("marimo", "run", "--headless", "--no-token", "--host=127.0.0.1", "--port={port}", "other.py")
    with serving(folder, *command) as address:
        fresh_page.goto(address)
        check_live(fresh_page)


def test_the_example_for_marimo(folder: Path, fresh_page: Any) -> None:
    pytest.importorskip("marimo", reason="marimo is not installed: pip install marimo")
    example = ROOT / "examples" / "marimo_first_trace.py"
    (folder / "first.py").write_text(example.read_text())
    command = ("marimo", "run", "--headless", "--no-token", "--host=127.0.0.1", "--port={port}", "first.py")
    with serving(folder, *command) as address:
        fresh_page.goto(address)
        fresh_page.wait_for_selector(".dsx-tree[data-ready]", timeout=2 * LONG)
        assert fresh_page.locator(".dsx-line code").inner_text() == "trace"
        fresh_page.locator("[data-tab=findings]").click()
        fresh_page.locator("[data-tab=findings][aria-selected=true]").wait_for()


def test_the_table_of_front_ends_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_\w+)`", (ROOT / "docs" / "front_ends.md").read_text("utf-8"))
    assert len(named) > 4
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text("utf-8")
