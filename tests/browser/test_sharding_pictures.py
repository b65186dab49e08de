"""Pictures of shardings in a real Chromium: proportions, labels, both themes, narrow pages, keyboard.

Modules: ``views/sharding/``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.sharding.layout import Sharding

pytestmark = pytest.mark.browser

PLANS = {
    "grid": ((10, 8), "S(0), S(1)", "dp=4,tp=2"),
    "strided": ((32, 16), "_S(0, 4), S(0)", "dp=2,tp=4"),
    "copies": ((4096, 1024), "R, S(1)", "dp=4,tp=4"),
    "partial": ((64, 128), "R, P(avg), S(1)", "dp=2,tp=4,cp=2"),
    "strip": ((100,), "R, S(0)", "dp=2,tp=8"),
    "empty-ranks": ((10, 4), "S(0)", "dp=8"),
    "panels": ((8, 6, 4, 10), "S(0), S(1), S(3)", "a=2,b=3,c=2"),
    "thin": ((1, 100_000), "R, S(1)", "dp=2,tp=8"),
    "tall": ((128256, 16384), "_S(0, 8), S(0)", "dp=2048,tp=8"),
    "scale": ((53248, 16384), "S(0), S(1)", "dp=2048,tp=8"),
    "many": ((1000, 500), "S(0), S(1)", "dp=12,tp=7"),
    "none": ((), "R", "dp=6"),
}

FAULTS = """() => {
  const faults = [];
  const overlap = (list, what) => {
    for (let i = 0; i < list.length; i++) for (let j = i + 1; j < list.length; j++) {
      const [a, b] = [list[i][1], list[j][1]];
      const across = a.left < b.right - 1 && b.left < a.right - 1, down = a.top < b.bottom - 1 && b.top < a.bottom - 1;
      if (across && down) faults.push(`${what} overlap: ${list[i][0]} and ${list[j][0]}`);
    }
  };
  for (const picture of document.querySelectorAll(".pic")) {
    const boxes = (selector) => [...picture.querySelectorAll(selector)]
      .map((element) => [element.textContent, element.getBoundingClientRect()]);
    overlap(boxes(".b > span"), "labels");
    overlap(boxes(".t"), "ticks");
    overlap(boxes(".k").concat(boxes(".t")), "brackets");
    for (const bracket of picture.querySelectorAll(".k")) {
      const cut = bracket.scrollWidth > bracket.clientWidth + 2 || bracket.scrollHeight > bracket.clientHeight + 2;
      if (cut && bracket.textContent) faults.push(`bracket cut: ${bracket.textContent}`);
    }
    for (const label of picture.querySelectorAll(".b > span")) {
      const [inner, outer] = [label.getBoundingClientRect(), label.parentElement.getBoundingClientRect()];
      const wide = inner.left < outer.left - 1 || inner.right > outer.right + 1;
      const high = inner.top < outer.top - 2 || inner.bottom > outer.bottom + 2;
      if (wide || high) faults.push(`clipped: ${label.textContent}`);
    }
    const around = picture.getBoundingClientRect();
    for (const [text, box] of [...boxes(".t"), ...boxes(".k"), ...boxes(".none")])
      if (box.left < around.left - 1 || box.right > around.right + 1) faults.push(`tick outside: ${text}`);
  }
  for (const cell of document.querySelectorAll(".line > span, td"))
    if (cell.scrollWidth > cell.clientWidth + 1) faults.push(`cut: ${cell.textContent}`);
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is wider than the window");
  return faults;
}"""

COLORS = """() => [".dsx", ".pic .b", ".pic .b > span"].map((selector) => {
  const style = getComputedStyle(document.querySelector(selector));
  return [style.color, style.backgroundColor];
})"""


def show(page: Any, shown: Sharding, folder: Path, width: int = 1280, dark: bool = False) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.goto(shown.to_html(folder / "shown.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")


def model() -> Sharding:
    plan = {"tok_embeddings.weight": ((128256, 4096), "_S(0, 4), S(0)")}
    for layer in range(32):
        plan |= {
            f"layers.{layer}.attention.wq.weight": ((4096, 4096), "_S(0, 4), S(0)"),
            f"layers.{layer}.attention.wo.weight": ((4096, 4096), "S(0), S(1)"),
            f"layers.{layer}.attention_norm.weight": ((4096,), "S(0), R"),
            f"layers.{layer}.a_module_with_quite_a_long_name_for_a_weight.scale": ((10,), "S(0), R"),
        }
    return dsexplore.sharding(plan, mesh="dp=8,tp=4", dtype="bfloat16")


@pytest.mark.parametrize("name", PLANS)
def test_nothing_overlaps_and_nothing_is_clipped(name: str, page: Any, shot: Any, tmp_path: Path) -> None:
    check_wide_and_narrow(name, dsexplore.sharding(*PLANS[name]), page, shot, tmp_path)
    assert page.errors == []
    assert page.requests.foreign == []


def test_a_model_is_readable(page: Any, shot: Any, tmp_path: Path) -> None:
    check_wide_and_narrow("model", model(), page, shot, tmp_path)


def check_wide_and_narrow(name: str, shown: Sharding, page: Any, shot: Any, folder: Path) -> None:
    """Look for faults in a page that is wide and light, then narrow and dark."""
    show(page, shown, folder)
    for width, theme in ((1280, "light"), (800, "dark")):
        page.set_viewport_size({"width": width, "height": 700})
        page.emulate_media(color_scheme=theme)
        shot(page, f"sharding-{name}-{width}-{theme}", full_page=True)
        assert page.evaluate(FAULTS) == []


def test_faults_are_found(page: Any, tmp_path: Path) -> None:
    show(page, dsexplore.sharding(*PLANS["grid"]), tmp_path)
    page.add_style_tag(content=".dsx.dsx .pic .b > span { font-size: 200px } .dsx .pic .t { left: 0 !important }")
    faults = " ".join(page.evaluate(FAULTS))
    assert "clipped: 0" in faults
    assert "ticks overlap" in faults


def test_blocks_have_the_proportions_of_the_shards(page: Any, tmp_path: Path) -> None:
    show(page, dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2"), tmp_path)
    boxes = page.evaluate("[...document.querySelectorAll('.pic .b')].map((b) => b.getBoundingClientRect().toJSON())")
    sizes = [(box["width"], box["height"]) for box in boxes]
    unit = sizes[0][1] / 3
    assert [round(height / unit, 1) for _, height in sizes] == [3, 3, 3, 3, 3, 3, 1, 1]
    assert all(width == pytest.approx(4 * unit, rel=0.02) for width, _ in sizes)


def test_dark_and_light_differ_in_every_color(page: Any, tmp_path: Path) -> None:
    shown = dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2")
    show(page, shown, tmp_path)
    light = page.evaluate(COLORS)
    show(page, shown, tmp_path, dark=True)
    for (ink, ground), (dark_ink, dark_ground) in zip(light, page.evaluate(COLORS), strict=True):
        assert ink != dark_ink
        assert ground != dark_ground


def test_lines_open_from_the_keyboard(page: Any, tmp_path: Path) -> None:
    page.goto(model().to_html(tmp_path / "model.html").as_uri())
    assert page.locator("details[open]").count() == 0
    page.keyboard.press("Tab")
    while page.evaluate("document.activeElement.tagName") != "SUMMARY":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("details[open] .pic").first.is_visible()


def test_hovering_over_a_piece_marks_all_pieces_of_its_rank(page: Any, tmp_path: Path) -> None:
    show(page, dsexplore.sharding((16, 8), "_S(0, 4)", "dp=2"), tmp_path)
    page.locator(".pic .b").first.hover()
    outlined = page.evaluate(
        "[...document.querySelectorAll('.pic .b')].map((b) => getComputedStyle(b).outlineStyle === 'solid')"
    )
    assert outlined == [True] * 4 + [False] * 4
    assert page.locator(".who").first.get_attribute("title").startswith("rank 0\ndp 0\n")


LIT = """() => [...document.querySelectorAll(".list path, .ranks label, .pic .b")]
  .filter((each) => {
    const { fill, backgroundColor } = getComputedStyle(each);
    return each.checkVisibility() && [fill, backgroundColor].includes("rgb(240, 228, 66)");
  })
  .map((each) => each.tagName === "LABEL" ? each.textContent : each.tagName)"""


def test_a_rank_lights_its_shards_in_every_parameter(page: Any, tmp_path: Path) -> None:
    plan = {"w": ((8, 8), "S(0), S(1)"), "b": ((10,), "S(0), R"), "v": ((8, 4), "S(1), R")}
    page.goto(dsexplore.sharding(plan, mesh="dp=2,tp=2").to_html(tmp_path / "shown.html").as_uri())
    assert page.evaluate(LIT) == []
    page.locator(".ranks label").nth(3).hover()
    assert page.evaluate(LIT) == ["3", "path", "path", "path"]
    page.mouse.move(0, 0)
    page.locator(".list path").first.hover()
    assert page.evaluate(LIT) == ["0", "path", "path", "path"]
    page.mouse.move(0, 0)
    page.locator(".ranks input").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.evaluate(LIT) == ["1", "path", "path", "path"]
    page.locator("summary").first.click()
    page.mouse.move(0, 0)  # off the small picture in the line, which lights a rank too
    assert page.evaluate(LIT).count("DIV") == 1
    assert page.url.endswith("shown.html")
    assert page.errors == []


def test_a_rank_that_holds_nothing_of_a_tensor_is_said_in_its_line(page: Any, tmp_path: Path) -> None:
    plan = {"w": ((10, 4), "S(0)"), "b": ((16,), "S(0)")}
    page.goto(dsexplore.sharding(plan, mesh="dp=8").to_html(tmp_path / "shown.html").as_uri())
    said = "[...document.querySelectorAll('summary .n')].map((n) => getComputedStyle(n, '::after').content)"
    page.locator(".ranks label").nth(6).hover()
    assert page.evaluate(said) == ['" ∅ no shard"', '""']


def test_in_jupyterlab(lab: Any, page: Any, shot: Any) -> None:
    plan = "{'w': ((10, 8), 'S(0), S(1)'), 'b': ((10,), 'S(0), R')}"
    lab.write("sharding.ipynb", [f"import dsexplore\ndsexplore.sharding({plan}, mesh='dp=4,tp=2')"])
    lab.open(page, "sharding.ipynb", dark=True)
    lab.run_all(page)
    page.wait_for_selector(".dsx .list")
    page.evaluate("document.querySelectorAll('.dsx details').forEach((each) => { each.open = true })")
    shot(page, "sharding-lab-dark")
    # JupyterLab's own rules say: cells to the right, code on grey.
    assert page.locator(".dsx .bars td").first.evaluate("e => getComputedStyle(e).textAlign") == "left"
    assert page.locator(".dsx code").first.evaluate("e => getComputedStyle(e).backgroundColor") == "rgba(0, 0, 0, 0)"
    red = int(page.locator(".dsx").first.evaluate("e => getComputedStyle(e).color.match(/[0-9]+/)[0]"))
    assert red > 128
    assert page.requests.foreign == []
