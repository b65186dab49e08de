"""Static pages in a real Chromium: nothing clipped, both themes, keyboard alone, no JavaScript, no network.

Modules: ``views/page/``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.display import Displayable
from dsexplore._internal.trace.trace import Trace

pytestmark = pytest.mark.browser

FAULTS = """() => {
  const faults = [];
  if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is wider than the window");
  for (const cell of document.querySelectorAll(".row .c:not(.wide), .row .n, td, th, summary, p"))
    if (cell.scrollWidth > cell.clientWidth + 1 && cell.clientWidth) faults.push(`cut: ${cell.textContent}`);
  for (const row of document.querySelectorAll(".row")) {
    const boxes = [...row.children].map((cell) => cell.getBoundingClientRect());
    for (let i = 1; i < boxes.length; i++)
      if (boxes[i].width && boxes[i].left < boxes[i - 1].right - 1) faults.push(`overlap in: ${row.textContent}`);
  }
  return faults;
}"""

BRIGHTNESS = """() => {
  const style = getComputedStyle(document.querySelector(".dsx"));
  return [style.color, style.backgroundColor].map((rgb) => rgb.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0));
}"""
"""Of text and background, 0 to 765."""


@pytest.fixture
def pages(make_layered: Callable[..., Trace], trace_of_names: Callable[..., Trace]) -> dict[str, Displayable]:
    whole = make_layered(12, odd=3)
    return {
        "trace": whole,
        "slice": whole.where(implicit=True),
        "diff": make_layered(12).diff(whole.where(axis="tp")),
        "names": trace_of_names(["<img src=x onerror=alert(1)>", "x" * 10_000, "اسم الطبقة", "日本語", "layers.0"]),
        "empty": Trace(),
    }


def show(page: Any, shown: Displayable, folder: Path, width: int = 1280, dark: bool = False) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.emulate_media(color_scheme="dark" if dark else "light")
    page.goto(shown.to_html(folder / "shown.html").as_uri())


@pytest.mark.parametrize("name", ["trace", "slice", "diff", "names", "empty"])
def test_nothing_is_clipped(name: str, pages: dict[str, Displayable], page: Any, shot: Any, tmp_path: Path) -> None:
    show(page, pages[name], tmp_path)
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    for width, theme in ((1280, "light"), (800, "dark")):
        page.set_viewport_size({"width": width, "height": 700})
        page.emulate_media(color_scheme=theme)
        assert page.evaluate(FAULTS) == []
        shot(page, f"static_{name}_{width}_{theme}", full_page=True)
    assert page.errors == []
    assert [url for url in page.requests.urls if not url.startswith("file:")] == []


def test_the_theme_is_that_of_the_page(pages: dict[str, Displayable], page: Any, tmp_path: Path) -> None:
    show(page, pages["trace"], tmp_path)
    text, background = page.evaluate(BRIGHTNESS)
    assert background - text > 600
    show(page, pages["trace"], tmp_path, dark=True)
    text, background = page.evaluate(BRIGHTNESS)
    assert text - background > 600


def test_the_first_column_stays_in_view(pages: dict[str, Displayable], page: Any, tmp_path: Path) -> None:
    show(page, pages["trace"], tmp_path, 800)
    tree = page.locator("[role=region]")
    before = tree.locator(".n").first.bounding_box()
    tree.evaluate("(element) => { element.scrollLeft = 300 }")
    assert tree.evaluate("(element) => element.scrollLeft") > 100
    assert tree.locator(".n").first.bounding_box() == before


def test_keyboard_alone_opens_a_row(pages: dict[str, Displayable], page: Any, tmp_path: Path) -> None:
    show(page, pages["trace"], tmp_path)
    row = page.locator("summary", has_text="×").first
    inside = row.locator("xpath=..").locator("table").first
    assert not inside.is_visible()
    for _ in range(20):
        page.keyboard.press("Tab")
        if row.evaluate("(element) => element === document.activeElement"):
            break
    assert row.evaluate("(element) => getComputedStyle(element).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert inside.is_visible()


def test_without_javascript(pages: dict[str, Displayable], browser: Any, tmp_path: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        show(page, pages["trace"], tmp_path)
        page.locator("summary", has_text="Bytes by op and phase").click()
        assert page.locator(".bars").is_visible()
    finally:
        context.close()
