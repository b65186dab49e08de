"""The explorer's timeline, world map and parameters in a real JupyterLab, by mouse and by keyboard alone.

Modules: ``views/explorer/``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from dsexplore import Trace

pytestmark = pytest.mark.browser

CELL = """
import dsexplore
explorer = dsexplore.load('parts.trace').explore()
explorer
"""


@pytest.fixture
def page(lab_page: Any) -> Any:
    return lab_page


@pytest.fixture
def opened(lab: Any, page: Any, make_layered: Any) -> Any:
    return explore(make_layered(8, odd=3), lab, page)


def explore(trace: Trace, lab: Any, page: Any) -> Any:
    """Return the page with the explorer of a trace."""
    trace.save(lab.folder / "parts.trace")
    page.set_viewport_size({"width": 1280, "height": 1500})
    lab.write("parts.ipynb", [CELL])
    lab.open(page, "parts.ipynb")
    lab.run_all(page)
    page.wait_for_selector(".dsx-tree[data-ready]")
    page.wait_for_selector(".dsx-explorer canvas[data-drawn]")
    return page


def told(page: Any, pattern: str) -> None:
    """Wait until the explorer's status line matches."""
    page.wait_for_function(
        "pattern => new RegExp(pattern).test(document.querySelector('.dsx-status').innerText.trim())", arg=pattern
    )


def seqs(lab: Any, page: Any) -> list[int]:
    found: list[int] = lab.evaluate(page, "explorer.selection.events['seq'].to_list()")
    return found


def shows(page: Any, tab: str) -> None:
    """Show a tab."""
    page.click(f"[data-tab={tab}]")
    page.wait_for_selector(f"[data-tab={tab}][aria-selected=true]")


def test_a_range_a_rank_and_a_parameter_filter_everything(opened: Any, lab: Any, shot: Any) -> None:
    page = opened
    box = page.locator(".dsx-explorer canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 200, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"], box["y"] + 40, steps=4)
    page.mouse.up()
    told(page, r"only from \d+ to 25 of the timeline")
    late = seqs(lab, page)
    assert 1 < len(late) < 12
    assert late[-1] == 24
    shown = "[...document.querySelectorAll('.dsx-body .dsx-row .dsx-cell')][0].textContent"
    assert int(page.evaluate(shown)) == len(late)
    shows(page, "map")
    page.click('[data-cell="0.4"]')
    told(page, "only rank 4 on the map")
    assert seqs(lab, page) == [seq for seq in late if seq >= 13 and (seq - 13) % 3 == 0]
    shot(page, "explorer_parts_picked")
    page.click('[data-drop="timeline"]')
    told(page, "^8 of 25")
    page.click("text=clear >> nth=0")
    told(page, "^25 of 25")
    page.click(".dsx-fold")
    page.locator(".dsx-body .dsx-row", has_text="up").first.click()
    page.click('[data-parameter="Net.layers.0.up.weight"]')
    told(page, "only what is sent for Net.layers.0.up.weight in a step")
    assert seqs(lab, page) == [2]
    assert page.requests.foreign == []
    assert page.errors == []


def test_the_keyboard_alone_reaches_boxes_ranges_ranks_and_links(opened: Any, lab: Any) -> None:
    page = opened
    page.focus(".dsx-explorer canvas")
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowRight", "Shift+ArrowRight"):
        page.keyboard.press(key)
    told(page, "only from 1 to 5 of the timeline")
    assert seqs(lab, page) == [1, 2, 3, 4]
    page.keyboard.press("Escape")
    told(page, "^25 of 25")
    page.focus("[data-tab=timeline]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("[data-cell]")
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.cell"):
            break
    for key in ("ArrowDown", "Enter"):
        page.keyboard.press(key)
    told(page, "only rank 4 on the map")
    for _ in range(12):  # the map is drawn anew meanwhile, and the focus stays on its rank
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.link"):
            break
    page.keyboard.press("Enter")
    told(page, "only tp inside a node on the map")
    assert set(lab.evaluate(page, "explorer.selection.events['axis'].to_list()")) == {"tp"}
    assert page.errors == []


def test_the_map_is_shaded_by_bytes_or_by_seconds(lab: Any, page: Any, make_layered: Any, shot: Any) -> None:
    trace = make_layered(8, odd=3)
    place = pl.int_range(pl.len(), dtype=pl.Int64) * 1_000_000
    events = trace.events.with_columns(start=place, end=place + 500_000)
    explore(Trace(replace(trace.tables, events=events)), lab, page)
    shows(page, "map")
    page.wait_for_selector('[data-cell="0.4"]')
    shade = page.locator('select[aria-label="shade of the map"]')
    assert shade.locator("option").all_inner_texts() == ["shade: bytes", "shade: seconds, measured"]
    page.click('[data-cell="0.4"]')
    told(page, "only rank 4 on the map")
    chosen = seqs(lab, page)
    shade.select_option("measured")
    page.wait_for_selector('[data-cell="0.4"][aria-label^="rank 4: 4 ms a step"][aria-pressed="true"]')
    assert seqs(lab, page) == chosen
    shot(page, "explorer_map_seconds")
    lab.evaluate(page, "setattr(explorer.widget, 'shade', 'bytes')")
    page.wait_for_function("() => document.querySelector('select[aria-label=\"shade of the map\"]').value === 'bytes'")
    page.wait_for_selector('[data-cell="0.4"][aria-label^="rank 4: 32 KiB a step"]')
    assert page.errors == []


def test_a_map_without_times_has_no_choice(opened: Any) -> None:
    shows(opened, "map")
    opened.wait_for_selector("[data-cell]")
    assert opened.locator('select[aria-label="shade of the map"]').is_hidden()
    assert "The map cannot be shaded by seconds" in opened.locator(".dsx-explorer").inner_text()


def test_tabs_are_made_when_they_are_shown_and_share_the_selection(opened: Any, lab: Any, shot: Any) -> None:
    page = opened
    assert lab.evaluate(page, "explorer.widget.panel") == ""
    page.focus("[data-tab=timeline]")
    seen = []
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "End", "Home"):
        page.keyboard.press(key)
        page.wait_for_function("() => document.activeElement.getAttribute('aria-selected') === 'true'")
        seen.append(page.evaluate("document.activeElement.dataset.tab"))
    assert seen == ["map", "findings", "parameters", "prediction", "timeline"]
    shows(page, "parameters")
    page.wait_for_function("() => document.querySelectorAll('.dsx-panel [data-parameter]').length === 12")
    page.locator(".dsx-body .dsx-row", has_text="3Block").first.click()
    page.wait_for_function("() => document.querySelectorAll('.dsx-panel [data-parameter]').length === 2")
    page.click(".dsx-panel [data-parameter] >> nth=0")
    told(page, "only what is sent for Net.layers.3.")
    shows(page, "findings")
    page.wait_for_function("() => document.querySelector('.dsx-panel:not([hidden])').innerText.includes('finding')")
    shows(page, "prediction")
    page.wait_for_function("() => document.querySelector('.dsx-panel:not([hidden])').innerText.includes('costs=True')")
    told(page, "only what is sent for Net.layers.3.")
    shot(page, "explorer_tabs")
    assert page.errors == []


def test_search_completes_and_selects_by_keyboard_and_by_mouse(opened: Any, lab: Any, shot: Any) -> None:
    page = opened
    page.focus(".dsx-port")
    page.keyboard.press("/")
    page.keyboard.type("layers.3")
    page.wait_for_selector(".dsx-found li:has-text('Net.layers.3.up')")
    assert page.get_attribute(".dsx-search", "aria-expanded") == "true"
    assert page.locator(".dsx-body .dsx-row").count() < 8
    shot(page, "explorer_search")
    page.keyboard.press("ArrowDown")
    first = page.get_attribute(".dsx-search", "aria-activedescendant")
    assert page.get_attribute(f"#{first}", "aria-selected") == "true"
    page.keyboard.press("Enter")
    told(page, r"in Net\.layers\.3")
    assert page.input_value(".dsx-search") == ""
    page.fill(".dsx-search", "gather")
    page.click(".dsx-found li:has-text('all_gather')")
    told(page, r"in Net\.layers\.3")
    page.wait_for_function("() => document.querySelector('.dsx-line code').innerText.includes('all_gather')")
    assert set(lab.evaluate(page, "explorer.selection.events['op'].to_list()")) <= {"all_gather"}
    page.fill(".dsx-search", "layers.*.up")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.dsx-line code').innerText.includes('layers.*.up')")
    assert page.input_value(".dsx-search") == "layers.*.up"
    assert page.errors == []


def test_back_forward_and_the_line_of_python(opened: Any, lab: Any) -> None:
    page = opened
    lists = page.locator(".dsx-explorer select")
    lists.first.select_option(index=2)
    told(page, "^8 of 25")
    page.locator(".dsx-body .dsx-row", has_text="3Block").first.click()
    told(page, "^1 of 25")
    page.keyboard.press("p")
    page.wait_for_function("() => document.querySelector('.dsx-line').innerText.includes('copied')")
    line = page.evaluate("navigator.clipboard.readText()")
    assert line.startswith('trace.where(phase="backward", ')
    assert lab.evaluate(page, f"(lambda trace: {line}.events['seq'].to_list())(explorer._trace)") == seqs(lab, page)
    page.keyboard.press("[")
    told(page, "^8 of 25")
    page.click("button[aria-label=back]")
    told(page, "^25 of 25")
    assert lists.first.evaluate("list => list.selectedIndex") == 0
    assert page.get_attribute("button[aria-label=back]", "aria-disabled") == "true"
    page.keyboard.press("]")
    told(page, "^8 of 25")
    page.click("button[aria-label=forward]")
    told(page, "^1 of 25")
    page.click(".dsx-line button")
    assert page.evaluate("navigator.clipboard.readText()") == line
    assert page.errors == []


def test_plotly_is_loaded_when_someone_reaches_for_the_list_of_figures(
    lab: Any, fresh_page: Any, make_layered: Any
) -> None:
    """Loading it keeps the browser busy for some half a second, in which no filter would be answered."""
    page = explore(make_layered(8, odd=3), lab, fresh_page)
    page.evaluate("() => new Promise((done) => requestIdleCallback(() => setTimeout(done, 200)))")
    assert page.evaluate("[typeof globalThis.__dsxPlotly, typeof globalThis.Plotly]") == ["undefined", "undefined"]
    page.hover(".dsx-explorer select[aria-label='figure']")
    page.wait_for_function("async () => Boolean(await globalThis.__dsxPlotly)")
    assert page.errors == []
