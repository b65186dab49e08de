"""The explorer in a real JupyterLab: linked, read back in Python, saved and reopened, offline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsexplore.trace.files import save

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def explored(lab: Any, make_layered: Any) -> str:
    """The cells that explore a small trace."""
    save(make_layered(8, odd=3), lab.folder / "layered.trace")
    return "import dsexplore\ntrace = dsexplore.load('layered.trace')\nexplorer = trace.explore()\nexplorer"


def opened(lab: Any, page: Any, name: str, cell: str, dark: bool = False) -> None:
    lab.write(name, [cell])
    lab.open(page, name, dark=dark)
    lab.run_all(page)
    page.wait_for_selector(".dsx-tree[data-ready]", timeout=20_000)
    page.wait_for_selector(".dsx-plot[data-drawn]", timeout=20_000)


def redrawn(page: Any, action: Any) -> None:
    """Do something that draws the figure anew, and wait for it."""
    before = int(page.get_attribute(".dsx-plot", "data-drawn"))
    action()
    page.wait_for_function("n => +document.querySelector('.dsx-plot').dataset.drawn > n", arg=before, timeout=10_000)


def row(page: Any, text: str) -> Any:
    return page.locator(".dsx-body .dsx-row", has_text=text).first


def test_tree_figure_and_python_follow_one_another(lab: Any, page: Any, explored: str, shot: Any) -> None:
    opened(lab, page, "linked.ipynb", explored)
    shot(page, "explorer_1280_light")
    assert lab.evaluate(page, "len(explorer.selection)") == 25

    redrawn(page, lambda: row(page, "[0–2, 4–7]").click())
    assert lab.evaluate(page, "len(explorer.selection)") == 21
    page.click(".dsx-fold")
    page.wait_for_function("() => document.querySelectorAll('.dsx-body .dsx-row').length > 12")
    redrawn(page, lambda: row(page, "3Block").click())
    assert lab.evaluate(page, "sorted(set(explorer.selection.events['owner']))") == [
        "Net.layers.3",
        "Net.layers.3.down",
        "Net.layers.3.up",
    ]

    page.locator(".dsx-explorer select").first.select_option(label="phase: backward")
    page.wait_for_function("() => document.querySelector('.dsx-explorer').innerText.includes('1 of 25 collectives')")
    assert lab.evaluate(page, "explorer.selection.events['phase'].to_list()") == ["backward"]
    redrawn(page, lambda: page.click("text=clear"))
    assert lab.evaluate(page, "len(explorer.selection)") == 25

    page.wait_for_timeout(100)
    box = page.locator(".dsx-plot .hm, .dsx-plot .plot").first.bounding_box()
    page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + 0.2 * box["height"])
    page.wait_for_function(
        "() => document.querySelector('.dsx-explorer').innerText.includes('train.py:10')", timeout=10_000
    )
    assert lab.evaluate(page, "explorer.tree.selected") >= 0
    shot(page, "explorer_clicked")
    assert page.requests.foreign == []
    assert page.errors == []


def test_dark_and_narrow(lab: Any, page: Any, explored: str, shot: Any) -> None:
    page.set_viewport_size({"width": 800, "height": 1250})
    opened(lab, page, "dark.ipynb", explored, dark=True)
    page.wait_for_timeout(300)
    shot(page, "explorer_800_dark")
    assert page.evaluate("getComputedStyle(document.querySelector('.dsx-tree')).color") != "rgb(0, 0, 0)"
    assert page.locator(".dsx-tree.dsx-dark").count() == 1
    assert lab.evaluate(page, "explorer.tree.dark") is True


def test_saved_small_reopened_without_a_kernel_and_exported(lab: Any, page: Any, explored: str, shot: Any) -> None:
    opened(lab, page, "saved.ipynb", explored)
    assert page.locator(".dsx .tree").first.is_visible() is False
    path: Path = lab.folder / "saved.ipynb"
    empty = path.stat().st_size
    lab.save(page)
    page.wait_for_function("() => !jupyterapp.shell.currentWidget.context.model.dirty", timeout=10_000)
    grown = path.stat().st_size - empty
    assert 0 < grown <= 50_000
    assert "widgets" not in json.loads(path.read_text())["metadata"]

    reopened = page.context.new_page()
    page.evaluate("() => void jupyterapp.commands.execute('kernelmenu:shutdown')")
    reopened.goto(f"{lab.address}/lab/workspaces/again/tree/saved.ipynb?reset")
    reopened.wait_for_selector(".jp-RenderedHTMLCommon .dsx .tree", timeout=30_000)
    assert "Net" in reopened.inner_text(".dsx .tree")
    shot(reopened, "explorer_reopened")

    subprocess.run(
        [sys.executable, "-m", "nbconvert", "--to", "html", "--log-level=ERROR", str(path)], check=True, timeout=120
    )
    exported = page.context.new_page()
    exported.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    exported.goto(path.with_suffix(".html").as_uri())
    assert exported.locator(".dsx .tree").first.is_visible()
    shot(exported, "explorer_exported")


def test_the_static_view_follows_the_theme(lab: Any, page: Any, explored: str, shot: Any) -> None:
    lab.write("static.ipynb", [explored.replace("explorer = trace.explore()\nexplorer", "trace")])
    lab.open(page, "static.ipynb", dark=True)
    lab.run_all(page)
    page.wait_for_selector(".dsx .tree")
    page.focus(".dsx summary >> nth=1")
    page.keyboard.press("Enter")
    shot(page, "static_lab_dark")
    dark = page.evaluate("getComputedStyle(document.querySelector('.dsx')).color")
    page.evaluate("() => void jupyterapp.commands.execute('apputils:change-theme', { theme: 'JupyterLab Light' })")
    page.wait_for_function("c => getComputedStyle(document.querySelector('.dsx')).color !== c", arg=dark)
    shot(page, "static_lab_light")
