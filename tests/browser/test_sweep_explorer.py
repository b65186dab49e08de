"""The explorer of a sweep in a real JupyterLab: a point of a measured disk clicked, its block; every figure.

Modules: ``views/widgets/chart_explorer.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.views.aio.test_sweep_view import invented

pytestmark = pytest.mark.browser

CELL = """\
from dsexplore import aio
result = aio.sweep(".", "32MiB", None, read_share=1.0, queue_depth=[2, 8], block_size=[1 << 18, 1 << 20],
                   thread_count=[1], single_submit=[False], overlap_events=[True], progress=False)
explorer = result.explore()
explorer
"""
LOADED = "from dsexplore.aio import SweepResult\nSweepResult.load('sweep.json').explore()"


FILLED = """(number) => {
  const plot = document.querySelector(".dsx-plot"), picture = plot.querySelector(".main-svg");
  return plot.dataset.drawn >= number && picture?.getBoundingClientRect().width === plot.getBoundingClientRect().width;
}"""
"""Whether at least so many drawings were made, the last of which is as wide as its place."""


@pytest.fixture
def page(lab_page: Any) -> Any:
    return lab_page


def opened(lab: Any, page: Any, name: str, cell: str = CELL, dark: bool = False) -> None:
    lab.write(name, [cell])
    lab.open(page, name, dark=dark)
    lab.run_all(page)
    page.wait_for_selector(".dsx-plot[data-drawn] .heatmaplayer image")


def test_a_click_on_a_point_gives_its_block(lab: Any, page: Any, shot: Any) -> None:
    opened(lab, page, "sweep.ipynb")
    shot(page, "sweep_explorer_1280_light")
    for x, depth in ((0.25, 2), (0.75, 8)):
        for y, block in ((0.75, 1 << 18), (0.25, 1 << 20)):
            box = page.locator(".dsx-plot .nsewdrag").first.bounding_box()
            page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
            page.wait_for_function(
                "wanted => wanted.every((w) => document.querySelector('.widget-textarea textarea').value.includes(w))",
                arg=[f'"block_size": {block},', f'"queue_depth": {depth},'],
            )
            shown = json.loads(page.input_value(".widget-textarea textarea"))
            assert lab.evaluate(page, "explorer.selection.to_ds_config()") == shown
            page.wait_for_timeout(350)  # plotly takes a click within 300 ms of the last for a double click
    assert page.requests.foreign == []
    assert page.errors == []


def test_every_picture_dark_and_narrow(lab: Any, page: Any, shot: Any) -> None:
    page.set_viewport_size({"width": 800, "height": 1000})
    invented().save(lab.folder / "sweep.json")
    opened(lab, page, "sweep_dark.ipynb", LOADED, dark=True)
    shot(page, "sweep_explorer_800_dark")
    for number, kind in enumerate(("depth", "latency", "parallel"), 2):
        page.locator(".widget-dropdown select").first.select_option(label=kind)
        page.wait_for_function(FILLED, arg=number)
        shot(page, f"sweep_explorer_{kind}_dark")
        assert page.locator(".dsx-plot").bounding_box()["width"] <= 640
    halos = "[...document.querySelectorAll('.parcoords text')].map((text) => getComputedStyle(text).textShadow)"
    assert set(page.evaluate(halos)) == {"none"}
    assert page.errors == []
