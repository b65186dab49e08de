"""Every view by axe-core, by keyboard alone, at 200 %, in forced colors, and narrow.

Modules: ``views/``.

A static view is the page that ``to_html`` writes; an explorer is the widget's own script in a bare page, on a model
that Python's widget has filled.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepConditions, SweepPoint
from dsexplore._internal.trace.trace import Trace
from tests.browser.bare_page import (
    AXE,
    RULES,
    RULES_OF_COLORS,
    STUB,
    axe,
    draw,
    explorers_of,
    opened_page,
    recorded_step,
    state_of,
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    yield from opened_page(browser)


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return recorded_step()


@pytest.fixture(scope="module")
def shown(recorded: Trace, make_layered: Any, make_timed: Any) -> dict[str, Any]:
    """Return an object per kind of view."""
    log = CommsLogger(CommsLoggerConfig(enabled=True), epoch=0)
    log.append("all_reduce", "all_reduce", latency=4.0, msg_size=8_000_000, group_size=8)
    log.append("barrier", "barrier", latency=0.5, msg_size=0, group_size=8)
    conditions = SweepConditions("gloo", "cpu", 1, 4, "float32", "torch", "2026-11-23T10:00:00", ())
    points = [SweepPoint("all_reduce", 1 << n, False, (1e-4,) * 3, 30, 0) for n in (10, 20)]
    layered = make_layered(8, odd=3)
    return {
        "trace": recorded,
        "trace of several": make_timed(),
        "trace that folds": layered,
        "empty trace": Trace(),
        "diff": make_layered(8).diff(layered),
        "findings": recorded.findings(),
        "headline": recorded.headline(),
        "timeline": make_timed().timeline(),
        "world map": recorded.world_map(),
        "parameter": recorded.parameter_history("layers.0.0.weight"),
        "sharding": dsexplore.sharding((8, 6), placements="S(0), R", mesh="dp=2,tp=2"),
        "plan": dsexplore.sharding({"w1": ((512, 64), "S(0), S(1)"), "w2": ((64,), "R, R")}, mesh="dp=2,tp=4"),
        "redistribution": dsexplore.sharding((16, 8), "S(0), R", "dp=2,tp=4").redistribute("R, S(1)"),
        "prediction": recorded.predict(),
        "collectives": CommSweep(conditions, points),
        "log": log.summary(),
    }


@pytest.fixture(scope="module")
def explorers(recorded: Trace, make_timed: Any) -> dict[str, Any]:
    return explorers_of(recorded, make_timed)


def open_one(page: Any, one: Any, folder: Path) -> None:
    """Show an explorer until it is drawn, or the page of a static view."""
    if hasattr(one, "widget"):
        draw(page, one.widget)
        page.wait_for_selector(".dsx-plot[data-drawn],canvas[data-drawn]")
    else:
        open_static(page, one, folder)


def open_static(page: Any, one: Any, folder: Path) -> None:
    page.goto(one.to_html(folder / "shown.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")


def test_axe_finds_no_violation(page: Any, shown: dict[str, Any], explorers: dict[str, Any], tmp_path: Path) -> None:
    source, found = axe(), {}
    for name, one in {**shown, **explorers}.items():
        for theme, rules in (("light", RULES), ("dark", RULES_OF_COLORS)):
            page.emulate_media(color_scheme=theme)
            if theme == "light" or name in explorers:  # what is drawn by a script is drawn in the theme's colors
                open_one(page, one, tmp_path)
                page.evaluate(source)
            violations = page.evaluate(AXE, rules)
            if violations:
                found[f"{name}, {theme}"] = violations
    assert found == {}, json.dumps(found, indent=1)
    assert page.errors == []


CUT = """async () => {
  await document.fonts.ready;
  const barOf = (each) => {
    const { borderTopWidth, borderBottomWidth } = getComputedStyle(each);
    return each.offsetHeight - each.clientHeight - parseFloat(borderTopWidth) - parseFloat(borderBottomWidth);
  };
  const scrolls = (each) => ["auto", "scroll"].includes(getComputedStyle(each).overflowX)
    && each.clientWidth && each.scrollWidth > each.clientWidth + 2;
  const isBare = (each) => scrolls(each) && !each.matches("pre") && barOf(each) < 1;
  // Bars come a few frames after what they scroll, on a busy machine many.
  for (let frame = 0; frame < 6 || (frame < 120 && [...document.querySelectorAll("main *")].some(isBare)); frame += 1)
    await new Promise(requestAnimationFrame);
  const cut = [];
  if (document.documentElement.scrollWidth > innerWidth + 1) cut.push("the page is wider than the window");
  for (const each of document.querySelectorAll("main *")) {
    const style = getComputedStyle(each);
    if (each.scrollWidth <= each.clientWidth + 2 || !each.clientWidth || style.clipPath !== "none") continue;
    if (["svg", "canvas"].includes(each.localName) || each.closest(".dsx-plot,.pic,[aria-hidden=true]")) continue;
    if (style.overflowX === "hidden" && style.textOverflow !== "ellipsis" && each.textContent.trim().length > 2
      && ![...each.children].some((child) => getComputedStyle(child).textOverflow === "ellipsis")) {
      cut.push(`${each.className || each.localName}: ${each.textContent.slice(0, 60)}`);
    }
    if (scrolls(each)) {
      if (isBare(each)) cut.push(`no scroll bar: ${each.className}: ${each.textContent.slice(0, 40)}`);
      const keyed = each.tabIndex >= 0 || each.querySelector("[tabindex='0'],summary,button,a[href]");
      if (!keyed) cut.push(`no key scrolls ${each.className}`);
    }
  }
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT), range = new Range();
  while (texts.nextNode()) {
    for (const word of texts.currentNode.data.matchAll(/[\\p{L}\\p{N}]{2,24}/gu)) {
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((line) => Math.round(line.top)));
      if (lines.size > 1) cut.push(`broken word: ${word[0]} in ${texts.currentNode.data.slice(0, 40)}`);
    }
  }
  return cut;
}"""
"""Texts that a narrow page cuts off without an ellipsis or a way to scroll, and words that are broken."""


@pytest.fixture(scope="module")
def narrow(browser: Any, chromium_arguments: dict[str, Any]) -> Iterator[Any]:
    """Yield a page whose scroll bars are drawn, as those of people's browsers are."""
    with_bars = browser.browser_type.launch(
        **chromium_arguments, ignore_default_args=["--hide-scrollbars"], timeout=120_000
    )
    context = with_bars.new_context(viewport={"width": 640, "height": 450}, device_scale_factor=2)
    context.set_default_timeout(120_000)
    yield context.new_page()
    with_bars.close()


def test_at_200_percent_and_800_wide_nothing_is_cut_off_without_a_cue(
    narrow: Any, shown: dict[str, Any], explorers: dict[str, Any], tmp_path: Path
) -> None:
    """At 200 %, a window of 1280 pixels is 640 pixels wide for the page."""
    found = {}
    for name, one in {**shown, **explorers}.items():
        for width in (640, 800):
            narrow.set_viewport_size({"width": width, "height": 450})
            if width == 640 or name in explorers:  # a script draws for the width that there is
                open_one(narrow, one, tmp_path)
            cut = narrow.evaluate(CUT)
            if cut:
                found[f"{name}, {width}"] = cut
    assert found == {}, json.dumps(found, indent=1)


LOST = """() => [...document.querySelectorAll(
    ".key,.thin i,.headline .bar span,.nodes .rank[style*=background],.ramp,.level i,"
    + ".pic .b,.pic .cut,.pic .k,.sw,.ranks label,.axis")]
  .filter((mark) => getComputedStyle(mark).forcedColorAdjust !== "none").map((mark) => mark.outerHTML.slice(0, 120))"""


def test_in_forced_colors_marks_keep_theirs_and_the_selected_row_is_seen(
    page: Any, shown: dict[str, Any], explorers: dict[str, Any], tmp_path: Path
) -> None:
    page.emulate_media(forced_colors="active")
    try:
        for name in ("trace", "timeline", "world map", "diff", "sharding", "plan", "redistribution", "parameter"):
            open_static(page, shown[name], tmp_path)
            assert page.evaluate(LOST) == [], name
        draw(page, explorers["explorer"].widget)
        page.wait_for_selector(".dsx-selected")
        assert page.evaluate(LOST) == []
        outline = "getComputedStyle(document.querySelector('.dsx-selected')).outlineStyle"
        assert page.evaluate(outline) == "solid"
    finally:
        page.emulate_media(forced_colors="none")


def test_keys_alone_reach_every_control_and_every_mark(page: Any, explorers: dict[str, Any]) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    draw(page, explorers["tab of the map"].widget)
    page.wait_for_selector(".dsx-plot[data-drawn]")
    wanted = page.evaluate(
        "[...document.querySelectorAll('button,select,input,summary,[tabindex=\"0\"]')]"
        ".filter((e) => e.checkVisibility() && !e.disabled && e.tabIndex >= 0).map((e, i) => (e.dataset.stop = i, i))"
    )
    reached = set()
    for _ in range(len(wanted) + 10):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("Number(document.activeElement.dataset.stop ?? -1)"))
    missed = page.evaluate("l => l.map((i) => document.querySelector(`[data-stop='${i}']`).outerHTML.slice(0, 90))",
                           [i for i in wanted if i not in reached])  # fmt: skip
    assert missed == []
    page.focus(".nodes .rank[tabindex='0']")  # one stop for all ranks, and arrows from one to the next
    first = page.evaluate("document.activeElement.dataset.cell")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.cell") not in (None, first)
    page.focus(".dsx-plot")
    said = "document.querySelector('.dsx-spoken').textContent"
    words = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "End", "Home"):
        page.keyboard.press(key)
        words.append(page.evaluate(said))
    assert all(words)
    assert words[0] != words[1]
    assert words[-1] == words[0]
    assert "KiB" in words[0]
    assert page.is_visible(".dsx-spoken")  # what hovering shows, below the figure
    page.keyboard.press("Enter")
    assert page.evaluate("sent.at(-1)") == "click"
    page.keyboard.press("Escape")
    assert page.evaluate(said) == ""
    assert page.errors == []


def test_two_explorers_share_no_id_and_heads_have_their_roles(page: Any, explorers: dict[str, Any]) -> None:
    widget = explorers["explorer"].widget
    draw(page, widget)
    page.evaluate("document.getElementById('place').id = 'first'")
    page.evaluate(
        "document.querySelector('main').append(Object.assign(document.createElement('div'), { id: 'place' }))"
    )
    page.evaluate(STUB, [widget._esm, state_of(widget), True])
    page.wait_for_selector("#place .dsx-selected")
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(({ id }) => id)")
    assert len(ids) > 20
    assert len(ids) == len(set(ids))
    roles = "[...document.querySelectorAll('#place .dsx-head > *')].map((e) => e.getAttribute('role'))"
    assert set(page.evaluate(roles)) == {"columnheader"}
    page.click("#place .dsx-head button >> nth=0")
    assert page.get_attribute("#place .dsx-head .dsx-cell >> nth=0", "aria-sort") == "descending"
    assert page.get_attribute("#place .dsx-status", "role") == "status"


def test_text_is_as_large_as_jupyterlabs(
    page: Any, explorers: dict[str, Any], shown: dict[str, Any], tmp_path: Path
) -> None:
    sizes = """() => ['.dsx-body .dsx-row', '.dsx-body .dsx-name'].map((place) => {
      const row = document.querySelector(place);
      return [parseFloat(getComputedStyle(row).fontSize), Math.round(row.getBoundingClientRect().height)];
    })"""
    found = []
    for size in (14, 21):
        draw(page, explorers["explorer"].widget, f":root{{--jp-content-font-size1:{size}px}}")
        page.wait_for_selector(".dsx-tree[data-ready]")
        found.append(page.evaluate(sizes))
    assert found[0][0] == [12, 22]
    assert found[1][0] == [18, 33]
    rows = "[...document.querySelectorAll('.dsx-body .dsx-row')].map((row) => row.getBoundingClientRect().top)"
    tops = page.evaluate(rows)
    assert {round(below - above) for above, below in itertools.pairwise(tops)} == {33}


def test_all_words_of_an_explorer_grow_with_jupyterlabs(page: Any, recorded: Trace) -> None:
    live = recorded.explore()
    live.between(0, 5)
    live.parameter("layers.0.0.weight")
    sizes = """() => [...document.querySelectorAll("#place *")].filter((each) => {
        return each.checkVisibility() && !each.closest(".dsx-plot,.pic,svg,sub")
          && [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
      }).map((each) => [`${each.localName}.${each.className}`, parseFloat(getComputedStyle(each).fontSize)])"""
    found: list[dict[str, float]] = []
    tall = []
    for size in (14, 21):
        found.append({})
        for tab in ("parameters", "timeline"):
            live.widget.tab = tab
            draw(page, live.widget, f":root{{--jp-content-font-size1:{size}px}}")
            page.wait_for_selector(".dsx-tree[data-ready]")
            page.wait_for_selector("canvas[data-drawn]" if tab == "timeline" else ".dsx-panel table")
            found[-1].update(page.evaluate(sizes))
        tall.append(page.evaluate("document.querySelector('canvas').clientHeight"))
    small, large = found
    assert {"summary.", "button.dsx-drop", "button.to", "td.l"} <= {*small} & {*large}
    assert {name for name, size in small.items() if large.get(name, 2 * size) < 1.45 * size} == set()
    assert tall[1] > 1.45 * tall[0]


def test_a_bar_is_level_with_its_number(page: Any, explorers: dict[str, Any]) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    draw(page, explorers["explorer"].widget)
    page.wait_for_selector(".dsx-body .thin")
    away = """[...document.querySelectorAll(".dsx-body .dsx-row:has(.thin)")].map((row) => {
      const middle = (part) => { const box = part.getBoundingClientRect(); return box.top + box.height / 2; };
      return Math.abs(middle(row) - middle(row.querySelector(".thin")));
    })"""
    found = page.evaluate(away)
    assert len(found) > 2
    assert max(found) <= 1
