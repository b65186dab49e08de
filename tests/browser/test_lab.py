"""The explorer in a real JupyterLab: linked, read back in Python, saved and reopened, offline.

Modules: ``views/explorer/explorer.py``.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser


@pytest.fixture
def page(lab_page: Any) -> Any:
    return lab_page


@pytest.fixture(scope="module")
def explored(one_lab: Any, make_layered: Any) -> str:
    """Return the cells that explore a small trace."""
    make_layered(8, odd=3).save(one_lab.folder / "layered.trace")
    return "import dsexplore\ntrace = dsexplore.load('layered.trace')\nexplorer = trace.explore()\nexplorer"


def opened(lab: Any, page: Any, name: str, cell: str, dark: bool = False) -> None:
    lab.write(name, [cell])
    lab.open(page, name, dark=dark)
    lab.run_all(page)
    page.wait_for_selector(".dsx-tree[data-ready]")
    page.wait_for_selector(".dsx-plot[data-drawn]")


def redrawn(page: Any, action: Any) -> None:
    """Do something that draws the figure anew, and wait for it."""
    before = int(page.get_attribute(".dsx-plot", "data-drawn"))
    action()
    page.wait_for_function("n => +document.querySelector('.dsx-plot').dataset.drawn > n", arg=before)


def told(page: Any, pattern: str) -> None:
    """Wait until the explorer's status line matches."""
    page.wait_for_function(
        "pattern => new RegExp(pattern).test(document.querySelector('.dsx-status').innerText.trim())", arg=pattern
    )


def row(page: Any, text: str) -> Any:
    return page.locator(".dsx-body .dsx-row", has_text=text).first


def test_tree_figure_and_python_follow_one_another(lab: Any, page: Any, explored: str, shot: Any) -> None:
    opened(lab, page, "linked.ipynb", explored)
    shot(page, "explorer_1280_light")
    assert lab.evaluate(page, "len(explorer.selection)") == 25

    redrawn(page, lambda: row(page, "[0–2, 4–7]").click())
    assert lab.evaluate(page, "len(explorer.selection)") == 21
    redrawn(page, lambda: page.click(".dsx-fold"))
    page.wait_for_function("() => document.querySelectorAll('.dsx-body .dsx-row').length > 12")
    redrawn(page, lambda: row(page, "3Block").click())
    assert lab.evaluate(page, "sorted(set(explorer.selection.events['owner']))") == [
        "Net.layers.3",
        "Net.layers.3.down",
        "Net.layers.3.up",
    ]

    page.locator(".dsx-explorer select").first.select_option(label="phase: backward")
    told(page, r"^1 of 25 collectives")
    assert lab.evaluate(page, "explorer.selection.events['phase'].to_list()") == ["backward"]
    redrawn(page, lambda: page.click("text=clear"))
    assert lab.evaluate(page, "len(explorer.selection)") == 25

    page.click(".dsx-plot .dsx-heat[data-at]")
    page.wait_for_selector('.dsx-row[aria-selected="true"]')
    assert lab.evaluate(page, "explorer.widget.selected") >= 0
    shot(page, "explorer_clicked")
    assert page.requests.foreign == []
    assert page.errors == []


def test_dark_and_narrow(lab: Any, page: Any, explored: str, shot: Any) -> None:
    page.set_viewport_size({"width": 800, "height": 1250})
    opened(lab, page, "dark.ipynb", explored, dark=True)
    shot(page, "explorer_800_dark")
    brightness = """() => [".dsx-tree", ".dsx-plot .dsx-of"].map((place) => {
        const { color } = getComputedStyle(document.querySelector(place));
        return color.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0);
    })"""
    assert min(page.evaluate(brightness)) > 600
    lab.set_theme(page, dark=False)
    page.wait_for_function(f"() => ({brightness})().every((sum) => sum < 150)")
    page.wait_for_selector("#jupyterlab-splash", state="detached")  # drawn over the page while a theme is loaded
    shot(page, "explorer_800_dark_then_light")
    assert page.errors == []


def reopened(lab: Any, page: Any, name: str) -> None:
    """Close what is open, end its kernel, and open the notebook as it was saved."""
    lab.close(page, end_kernel=True)
    lab.open(page, name)


def test_saved_small_and_reopened_without_its_kernel(lab: Any, page: Any, explored: str, shot: Any) -> None:
    empty = lab.write("empty.ipynb", [explored]).stat().st_size
    opened(lab, page, "saved.ipynb", explored)
    assert page.locator(".dsx .tree").first.is_visible() is False
    path: Path = lab.folder / "saved.ipynb"
    lab.save(page)
    grown = path.stat().st_size - empty
    assert 0 < grown <= 50_000
    assert "widgets" not in json.loads(path.read_text())["metadata"]

    reopened(lab, page, "saved.ipynb")
    page.wait_for_selector(".jp-RenderedHTMLCommon .dsx .tree")
    assert "Net" in page.inner_text(".dsx .tree")
    absent = page.locator(".jp-OutputArea-child", has_text=re.compile("Loading widget|Error displaying widget"))
    absent.wait_for(state="attached")
    assert not absent.is_visible()
    shot(page, "explorer_reopened")


def test_exported_as_a_page_or_as_plain_html(lab: Any, page: Any, explored: str, shot: Any) -> None:
    opened(lab, page, "exported.ipynb", explored)
    lab.save(page)
    exported = page.context.new_page()
    exported.route(lambda url: not url.startswith("file:"), lambda route: route.abort())
    for template in ("lab", "basic"):
        command = [sys.executable, "-m", "nbconvert", "--to", "html", "--template", template, "--log-level=ERROR"]
        subprocess.run([*command, f"--output={template}", str(lab.folder / "exported.ipynb")], check=True)
        exported.goto((lab.folder / f"{template}.html").as_uri())
        assert exported.locator(".dsx .tree").first.is_visible()
        assert exported.locator("text=run this cell again to use it").is_visible()
        shot(exported, f"explorer_exported_{template}")


def test_plotly_comes_from_the_kernel_where_lab_has_none(lab: Any, fresh_page: Any, explored: str) -> None:
    page = fresh_page
    page.route("**/jupyterlab-plotly/**", lambda route: route.abort())
    opened(lab, page, "fallback.ipynb", explored)
    redrawn(page, lambda: page.select_option(".dsx-explorer select[aria-label='figure']", "ops"))
    assert page.evaluate("!(globalThis._JUPYTERLAB || {})['jupyterlab-plotly']")
    assert page.evaluate("typeof globalThis.Plotly.react") == "function"
    assert page.locator(".dsx-plot .barlayer path").count() >= 1
    redrawn(page, lambda: row(page, "[0–2, 4–7]").click())
    assert page.requests.foreign == []


def test_the_keyboard_alone_filters_selects_and_clears(lab: Any, page: Any, explored: str, shot: Any) -> None:
    opened(lab, page, "keyboard.ipynb", explored)
    page.focus(".dsx-explorer select >> nth=0")
    redrawn(page, lambda: page.keyboard.press("ArrowDown"))
    assert set(lab.evaluate(page, "explorer.selection.events['phase'].to_list()")) == {"forward"}
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.classList.contains('dsx-port')"):
            break
        assert page.evaluate("document.activeElement.closest('.dsx-explorer') !== null")
    page.focus("input[aria-label='search']")
    page.keyboard.type("layers.3")
    redrawn(page, lambda: page.keyboard.press("Enter"))
    assert lab.evaluate(page, "len(explorer.selection)") == 3
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    redrawn(page, lambda: page.keyboard.press("Enter"))
    page.focus(".dsx-port")
    before = page.locator(".dsx-body .dsx-row").count()
    redrawn(page, lambda: page.keyboard.press("End"))
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("() => document.querySelector('.dsx-selected .dsx-name').textContent.startsWith('▾3')")
    page.keyboard.press("ArrowLeft")
    assert page.locator(".dsx-body .dsx-row").count() == before - 2
    told(page, r"in Net\.layers\.3 –")
    assert len(lab.evaluate(page, "explorer.selection.events['owner'].to_list()")) == 3
    shot(page, "explorer_keyboard")
    redrawn(page, lambda: page.keyboard.press("Escape"))
    assert lab.evaluate(page, "len(explorer.selection)") == 17


def answered(page: Any) -> None:
    """Wait until the kernel has answered all that was chosen."""
    page.wait_for_function("() => document.querySelector('.dsx-state').dataset.waiting === '0'")


def test_quick_choices_and_a_held_key_are_all_answered(lab: Any, page: Any, explored: str) -> None:
    """ipywidgets keeps only one of the waiting messages, which has the number of the last."""
    opened(lab, page, "quick.ipynb", explored)
    page.evaluate("""() => {
      const list = document.querySelector(".dsx-explorer select");
      for (const index of [1, 2, 1, 2]) {
        list.selectedIndex = index;
        list.dispatchEvent(new Event("change"));
      }
    }""")
    answered(page)
    told(page, "^[0-9]+ of 25 collectives")
    assert lab.evaluate(page, "set(explorer.selection.events['phase']) == {'backward'}")
    page.focus(".dsx-port")
    for _ in range(12):
        page.keyboard.down("ArrowDown")  # again and again: a key that is held
    page.keyboard.up("ArrowDown")
    answered(page)
    assert lab.evaluate(page, "explorer.widget.selected") == int(page.get_attribute(".dsx-selected", "data-row"))
    assert page.inner_text(".dsx-state") == ""
    assert page.errors == []


def test_after_a_restart_tree_filters_and_status_line_agree(lab: Any, page: Any, explored: str) -> None:
    """Changes that the kernel has not handled are undone, and those that it has answered are kept."""
    opened(lab, page, "restarted.ipynb", explored)
    row(page, "[0–2, 4–7]").click()
    row(page, "up").click()
    told(page, r"in Net\.layers\.\[0–2, 4–7\]\.up ×7")
    answered(page)
    os.kill(lab.evaluate(page, "__import__('os').getpid()"), signal.SIGSTOP)
    row(page, "down").click()
    page.locator(".dsx-explorer select").first.select_option(index=1)
    page.wait_for_function("() => document.querySelector('.dsx-state').innerText.startsWith('The kernel is busy')")
    page.evaluate("() => void jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.wait_for_function("() => document.querySelector('.dsx-state').innerText.includes('has ended')")
    assert "up" in page.inner_text(".dsx-selected")
    assert page.locator(".dsx-explorer select").first.evaluate("list => list.selectedIndex") == 0
    assert "in Net.layers.[0–2, 4–7].up ×7" in page.inner_text(".dsx-status")
    lab.wait_for_kernel(page)
    page.locator(".dsx-body .dsx-row").first.click()
    assert "up" in page.inner_text(".dsx-selected")
    assert page.errors == []
    lab.close(page, end_kernel=True)


def test_a_row_of_the_table_of_causes_selects_its_module(lab: Any, page: Any, explored: str) -> None:
    opened(lab, page, "causes.ipynb", explored)
    page.locator(".dsx-details tr[data-cause]", has_text="S(0)→R").click()
    told(page, r"in S\(0\)→R in Net\.layers\.\*\.up –")
    assert lab.evaluate(page, "explorer.selection.events['owner'].to_list()") == ["Net.layers.3.up"]
    page.keyboard.press("Escape")
    told(page, r"^25 of 25")
    page.locator(".dsx-details tr[data-cause]", has_text="P→R").focus()
    page.keyboard.press("Enter")
    told(page, r"in P→R in Net\.layers\.\*\.down –")
    assert lab.evaluate(page, "explorer.selection.events['owner'].to_list()") == ["Net.layers.3.down"]
    assert page.errors == []


def test_a_traced_cell_offers_its_explorer_in_one_click(lab: Any, page: Any) -> None:
    cell = "%%commtrace --world-size 4\nimport torch, torch.distributed as dist\ndist.all_reduce(torch.ones(4))"
    lab.write("offered.ipynb", ["%load_ext dsexplore", cell])
    lab.open(page, "offered.ipynb")
    lab.run_all(page)
    page.wait_for_selector(".dsx-offer button")
    assert page.locator(".dsx-twin").is_visible()
    lab.save(page)
    page.click(".dsx-offer button")
    page.wait_for_selector(".dsx-tree[data-ready]")
    assert not page.locator(".dsx-twin").is_visible()
    told(page, "^1 of 1 collectives")
    assert page.inner_text(".dsx-line code") == "_trace"
    reopened(lab, page, "offered.ipynb")
    page.wait_for_selector(".dsx-twin")
    absent = page.locator(".jp-OutputArea-child", has_text=re.compile("Loading widget|Error displaying widget"))
    absent.wait_for(state="attached")
    assert not absent.is_visible()


HOSTILE = "<img src=x onerror=window.pwned=1>"


def test_hostile_names_are_text_in_the_whole_application(
    lab: Any, page: Any, trace_of_names: Any, kinds: list[str], shot: Any
) -> None:
    hostile = trace_of_names([HOSTILE, "x" * 10_000, "اسم\u202e", "日本語" * 30, "other"], mesh="dp=2")
    hostile.save(lab.folder / "hostile.trace")
    cell = "import dsexplore\nexplorer = dsexplore.load('hostile.trace').explore()\nexplorer"
    opened(lab, page, "hostile.ipynb", cell)
    redrawn(page, lambda: row(page, HOSTILE).click())
    figure = page.locator(".dsx-explorer select[aria-label='figure']")
    for kind in kinds[1:]:
        redrawn(page, lambda kind=kind: figure.select_option(index=kinds.index(kind)))
    page.wait_for_function("h => document.querySelector('.dsx-details').innerText.includes(h)", arg=HOSTILE)
    redrawn(page, lambda: figure.select_option(index=0))
    assert page.evaluate("window.pwned") is None
    assert page.locator(".dsx-explorer img").count() == 0
    assert page.evaluate("(e => e.scrollWidth <= e.clientWidth + 1)(document.querySelector('.dsx-explorer'))")
    shot(page.locator(".dsx-explorer"), "explorer_hostile")
    assert page.errors == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (800, True)])
def test_every_figure_is_legible(
    lab: Any, page: Any, make_timed: Any, kinds: list[str], shot: Any, width: int, dark: bool
) -> None:
    make_timed().save(lab.folder / "timed.trace")
    theme = "dark" if dark else "light"
    page.set_viewport_size({"width": width, "height": 1250})
    cell = "import dsexplore\nexplorer = dsexplore.load('timed.trace').explore()\nexplorer"
    opened(lab, page, f"figures_{width}_{theme}.ipynb", cell, dark=dark)
    figure = page.locator(".dsx-explorer select[aria-label='figure']")
    for kind in kinds:
        if kind != kinds[0]:
            redrawn(page, lambda kind=kind: figure.select_option(index=kinds.index(kind)))
        page.mouse.move(0, 0)
        place = page.locator(".dsx-plot")
        shot(place, f"figure_{kind}_{width}_{theme}")
        outside = page.evaluate(
            """() => { const box = document.querySelector(".dsx-plot").getBoundingClientRect();
                return [...document.querySelectorAll(".dsx-plot svg text, .dsx-grid > span")]
                    .filter((text) => text.textContent.trim())
                    .map((text) => [text.textContent, text.getBoundingClientRect()])
                    .filter(([, at]) => at.width && (at.left < box.left - 1 || at.right > box.right + 1))
                    .map(([text]) => text); }"""
        )
        assert outside == [], kind
    assert page.errors == []


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
