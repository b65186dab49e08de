"""A heatmap of few cells, drawn as a grid of elements in the place of a figure of plotly's.

Modules: ``views/widgets/part_widgets.py``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsexplore._internal.views.trace.figure_spec import Spec, finished, heatmap_spec, with_top
from dsexplore._internal.views.trace.tally import Grid
from dsexplore._internal.views.widgets.part_widgets import PlotWidget

pytestmark = pytest.mark.browser

DRAWING = """
async ([source, spec]) => {
  const listeners = {}, state = { spec, spoken: "a figure" };
  window.sent = [];
  window.draw = (changed) => { state.spec = changed; listeners["change:spec"](); };
  const send = (message) => { if (message.type === "click") sent.push(message); };
  const model = { get: (name) => state[name], send, on(name, f) { listeners[name] = f; }, off() {} };
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  module.default.render({ model, el: document.body });
}
"""
CELLS = (
    """() => [...document.querySelectorAll(".dsx-heat")].map((e) => [e.textContent, e.style.backgroundColor !== ""])"""
)


def spec_of(values: list[list[float]], columns: list[str], top: float = 0.0) -> Spec:
    rows = [f"<layers>.{i}" for i in range(len(values))]
    return finished(with_top(heatmap_spec(Grid(rows, columns, np.array(values)), "module_axis", rows, columns), top))


def drawn(page: Any, spec: Spec, number: int) -> None:
    if number == 1:
        page.set_content(f"<!DOCTYPE html><style>{PlotWidget._css}</style><body></body>")
        page.evaluate(DRAWING, [PlotWidget._esm, spec])
    else:
        page.evaluate("spec => draw(spec)", spec)
    page.wait_for_selector(f".dsx-plot[data-drawn='{number}']")


def test_cells_names_and_colors_are_those_of_the_figure_without_plotly(page: Any) -> None:
    drawn(page, spec_of([[1024, 0], [2048, 8192]], ["dp", "tp & cp"]), 1)
    assert page.evaluate(CELLS) == [["1 KiB", True], ["", False], ["2 KiB", True], ["8 KiB", True]]
    names = "[...document.querySelectorAll('.dsx-of, .dsx-under')].map((e) => e.textContent)"
    assert page.evaluate(names) == ["<layers>.0", "<layers>.1", "dp", "tp & cp"]
    assert page.inner_text(".dsx-ramp span >> nth=-1") == "8 KiB"
    share = "getComputedStyle(document.querySelectorAll('.dsx-heat')[3]).backgroundColor"
    assert page.evaluate(share) == "color(srgb 0.0705882 0.439216 0.478431 / 0.6)"  # the darkest
    assert page.evaluate("typeof Plotly") == "undefined"
    assert page.errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_larger_values_are_farther_from_the_page_in_both_themes(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    drawn(page, spec_of([[64, 1024, 8192]], ["dp", "tp", "pp"]), 1)
    page.evaluate("document.documentElement.style.colorScheme = 'light dark'")
    colors = page.evaluate(
        """() => [...document.querySelectorAll(".dsx-heat")].map((e) => getComputedStyle(e))
        .map(({ color, backgroundColor }) => [color, Number(backgroundColor.match(/[\\d.]+/g)[3])])"""
    )
    ink = {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}[scheme]
    assert [color for color, _ in colors] == [ink] * 3
    opacities = [opacity for _, opacity in colors]
    assert opacities == sorted(opacities)
    assert opacities[0] < 0.01
    assert opacities[-1] == 0.6


def test_only_cells_that_differ_are_changed_and_another_shape_is_made_anew(page: Any) -> None:
    drawn(page, spec_of([[1024, 64], [2048, 8192]], ["dp", "tp"]), 1)
    page.evaluate(
        """() => { window.changed = [];
        new MutationObserver((all) => changed.push(...all.map(({ target }) => target.dataset.at ?? target.className)))
          .observe(document.querySelector(".dsx-grid"), { subtree: true, childList: true, attributes: true }); }"""
    )
    drawn(page, spec_of([[1024, 64], [4096, 8192]], ["dp", "tp"]), 2)
    page.wait_for_function("changed.length")
    assert set(page.evaluate("changed")) == {"1,0"}
    drawn(page, spec_of([[1024]], ["dp"]), 3)
    assert page.evaluate(CELLS) == [["1 KiB", True]]
    drawn(page, spec_of([[0]], ["dp"], top=1024), 4)
    page.click(".dsx-heat")
    assert page.evaluate("sent") == []  # nothing is there to be chosen
    assert page.errors == []


def test_mouse_and_keys_say_and_choose_a_cell(page: Any) -> None:
    drawn(page, spec_of([[1024, 64], [2048, 8192]], ["dp", "tp"]), 1)
    page.hover(".dsx-heat[data-at='1,1']")
    assert page.inner_text(".dsx-tip") == "<layers>.1, tp: 8 KiB"
    page.click(".dsx-heat[data-at='1,1']")
    page.focus(".dsx-plot")
    page.keyboard.press("Home")
    assert page.inner_text(".dsx-spoken") == "<layers>.0, dp: 1 KiB"
    assert page.get_attribute(".dsx-at", "data-at") == "0,0"
    page.keyboard.press("Enter")
    chosen = [(one["index"], one["customdata"]) for one in page.evaluate("sent")]
    assert chosen == [([1, 1], ["<layers>.1", "tp"]), ([0, 0], ["<layers>.0", "dp"])]
    page.mouse.move(0, 890)
    assert not page.is_visible(".dsx-tip")
    assert page.errors == []


@pytest.mark.parametrize(("columns", "upright"), [(2, False), (10, True)])
def test_names_of_columns_that_do_not_fit_stand_upright_inside_the_figure(
    page: Any, columns: int, upright: bool
) -> None:
    page.set_viewport_size({"width": 420, "height": 600})
    names = [f"axis {i} of many" for i in range(columns)]
    drawn(page, spec_of([[1024.0] * columns] * 16, names), 1)
    assert page.evaluate("document.querySelectorAll('.dsx-upright').length") == upright
    outside = """() => { const box = document.querySelector(".dsx-plot").getBoundingClientRect();
        const cells = [...document.querySelectorAll(".dsx-grid > span")];
        return cells.map((e) => [e.textContent, e.getBoundingClientRect()])
            .filter(([, at]) => at.left < box.left || at.right > box.right || at.bottom > box.bottom)
            .map(([text]) => text); }"""
    assert page.evaluate(outside) == []


@pytest.mark.parametrize("rows", [1, 2, 9])
def test_its_scale_stands_close_below_and_what_is_said_of_a_cell_has_room(page: Any, rows: int) -> None:
    drawn(page, spec_of([[1024.0 * (i + 1)] for i in range(rows)], ["no mesh"]), 1)
    low = "(place) => document.querySelector(place).getBoundingClientRect().bottom"
    assert 0 < page.evaluate(low, ".dsx-ramp") - page.evaluate(low, ".dsx-under") < 80
    for row in range(rows):
        page.hover(f".dsx-heat >> nth={row}")
        box = page.locator(".dsx-tip").bounding_box()
        held = page.locator(".dsx-plot").bounding_box()
        assert held["y"] <= box["y"]
        assert box["y"] + box["height"] <= held["y"] + held["height"]


def test_a_long_name_breaks_before_its_capitals_where_the_page_is_narrow(page: Any) -> None:
    page.set_viewport_size({"width": 320, "height": 600})
    grid = Grid(["DistributedDataParallel"], ["no mesh", "between steps"], np.array([[1.0, 2.0]]))
    drawn(page, finished(heatmap_spec(grid, "module_axis", grid.rows, grid.columns)), 1)
    lines = """[...document.querySelector('.dsx-of>span').childNodes].filter((each) => each.data).map((part) => {
      const range = document.createRange();
      range.selectNodeContents(part);
      return [part.data, new Set([...range.getClientRects()].map((line) => line.top)).size];
    })"""
    assert page.evaluate(lines) == [["Distributed", 1], ["Data", 1], ["Parallel", 1]]
