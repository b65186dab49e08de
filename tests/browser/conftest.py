"""Fixtures of a real Chromium, a real JupyterLab, and a bare page for the widgets; no other host is asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from dsexplore._internal.trace.trace import Trace
from tests.browser.jupyter_lab import LONG, Lab, running_lab
from tests.views import traces

playwright_api = pytest.importorskip(
    "playwright.sync_api", reason="browser tests need playwright: pip install dsexplore[test]"
)

ARTEFACTS = Path(__file__).parent / "artefacts"
VIEWPORT = {"width": 1280, "height": 900}
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


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
    """The requests of a page."""

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
