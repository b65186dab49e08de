"""Either a live view or its static twin is visible, for any number of them: in JupyterLab, and in a bare page.

Modules: ``views/widgets/live.py``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.browser.bare_page import draw
from tests.browser.conftest import chromium, page_of_lab

pytestmark = pytest.mark.browser

LOAD = "import dsexplore\ntrace = dsexplore.load('twins.trace')"
VIEWS = {
    "timeline": "trace.timeline().explore()",
    "explorer": "trace.explore()",
    "map": "trace.world_map().explore()",
    "diff": "trace.diff(trace.where(axis='tp')).explore()",
    "several": "for one in (trace.timeline(), trace, trace.timeline()):\n    display(one.explore())",
    "static": "trace.timeline()",
}
"""Cells of one notebook: the explorer stands behind, between and before others."""
LIVE = {"timeline": 1, "explorer": 1, "map": 1, "diff": 1, "several": 3, "static": 0}
SEEN = """() => [...document.querySelectorAll('.jp-CodeCell')].slice(1).map((cell) => {
  const seen = (place) => [...cell.querySelectorAll(place)].filter((each) => each.checkVisibility()).length;
  return [seen(".dsx-twin"), seen(".jp-OutputArea-child:has(.dsx-live)")];
})"""
"""For each cell behind the first, how many twins and how many live views can be seen."""


@dataclass
class Run:
    """Return what JupyterLab showed of the notebook while a kernel answered, and the file that it saved then."""

    seen: list[list[int]]
    errors: list[str]
    path: Path


@pytest.fixture(scope="module")
def notebook(one_lab: Any, browser: Any, pages_of_lab: list[Any], make_layered: Any, shot: Any) -> Run:
    """Run the notebook, save it, and end its kernel: the tests of what remains only read the file."""
    make_layered(4, odd=1).save(one_lab.folder / "twins.trace")
    path = one_lab.write("twins.ipynb", [LOAD, *VIEWS.values()])
    with page_of_lab(one_lab, browser, pages_of_lab) as page:
        one_lab.open(page, path.name)
        one_lab.run_all(page)
        all_live = "n => document.querySelectorAll('.dsx-live.lm-Widget').length >= n"
        page.wait_for_function(all_live, arg=sum(LIVE.values()))
        seen = page.evaluate(SEEN)
        shot(page, "twins_live", full_page=True)
        one_lab.save(page)
        one_lab.close(page, end_kernel=True)
        return Run(seen, [*page.errors], path)


def test_while_a_kernel_answers_each_live_view_is_seen_and_no_twin(notebook: Run) -> None:
    assert notebook.seen == [[0, many] for many in LIVE.values()]
    assert notebook.errors == []


def test_without_a_kernel_each_twin_is_seen_and_nothing_else(lab: Any, notebook: Run, lab_page: Any, shot: Any) -> None:
    lab.open(lab_page, notebook.path.name)
    lab_page.wait_for_selector(".jp-CodeCell .dsx-twin")
    absent = lab_page.locator(".jp-OutputArea-child", has_text=re.compile("Loading widget|Error displaying widget"))
    absent.nth(sum(LIVE.values()) - 1).wait_for(state="attached")
    assert lab_page.evaluate(SEEN) == [[many, 0] for many in LIVE.values()]
    assert [each.is_visible() for each in absent.all()] == [False] * sum(LIVE.values())
    shot(lab_page, "twins_static", full_page=True)


def test_exported_each_twin_is_seen(notebook: Run, fresh_page: Any, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nbconvert", "--to", "html", "--log-level=ERROR", f"--output-dir={tmp_path}"]
    subprocess.run([*command, str(notebook.path)], check=True)
    fresh_page.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    fresh_page.goto((tmp_path / "twins.html").as_uri())
    twins = fresh_page.locator(".dsx-twin")
    assert [twin.is_visible() for twin in twins.all()] == [True] * sum(LIVE.values())


PRINT = """
import json, sys
from functools import partialmethod
from nbconvert import WebPDFExporter
from playwright.async_api import BrowserType, Page

async def noted(page, **options):
    seen = await page.evaluate("[...document.querySelectorAll('.dsx-twin')].map((twin) => twin.checkVisibility())")
    print(json.dumps([seen, [request for request in asked if not request.startswith(("file:", "data:"))]]))
    return await printed(page, **options)

asked, printed, visited = [], Page.pdf, Page.goto
async def watched(page, *given, **options):
    page.on("request", lambda request: asked.append(request.url))
    return await visited(page, *given, **options)

Page.pdf, Page.goto = noted, watched
BrowserType.launch = partialmethod(BrowserType.launch, executable_path=sys.argv[1])
document, _ = WebPDFExporter(disable_sandbox=True).from_filename(sys.argv[2])
open(sys.argv[3], "wb").write(document)
"""
"""Does the same as ``nbconvert --to webpdf`` with the installed Chromium; prints what its page shows and requests."""


def test_printed_as_a_pdf_each_twin_is_seen(notebook: Run, tmp_path: Path) -> None:
    target = tmp_path / "twins.pdf"
    command = [sys.executable, "-c", PRINT, chromium(), str(notebook.path), str(target)]
    seen, asked = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert seen == [True] * sum(LIVE.values())
    assert not [url for url in asked if "widget" in url or "dsx" in url]
    assert target.read_bytes().startswith(b"%PDF")


TWINS = """(behind) => {
  const place = document.getElementById("place");
  for (const text of ["another", "its own"]) {
    const twin = Object.assign(document.createElement("div"), { className: "dsx-twin", textContent: text });
    place.before(twin);
    if (text === "another") place.before(document.createElement("p"));
  }
  if (behind) place.before(Object.assign(document.createElement("p"), { textContent: behind }));
}"""


@pytest.mark.parametrize("between", ["", "what another cell printed"])
def test_where_outputs_are_no_siblings_a_view_hides_the_twin_right_before_it(
    fresh_page: Any, make_layered: Any, between: str
) -> None:
    page, explorer = fresh_page, make_layered(2).timeline().explore()
    draw(page, explorer.widget, before=f"({TWINS})({between!r})")
    page.wait_for_selector("canvas[data-drawn]")
    seen = "[...document.querySelectorAll('.dsx-twin')].filter((e) => e.checkVisibility()).map((e) => e.textContent)"
    left = ["another", "its own"] if between else ["another"]
    page.wait_for_function(f"left => ({seen}).join() === left.join()", arg=left)
    page.evaluate("leave()")
    assert page.evaluate(seen) == ["another", "its own"]
