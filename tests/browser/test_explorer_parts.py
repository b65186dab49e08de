"""The explorer's timeline, world map and parameters in a real JupyterLab, by mouse and by keyboard alone.

Modules: ``views/explorer/``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from dsexplore import Trace
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

CELL = """
import dsexplore
explorer = dsexplore.load('parts.trace').explore(opened=('timeline', 'map'))
explorer
"""


@pytest.fixture
def page(lab_page: Any) -> Any:
    return lab_page


@pytest.fixture
def opened(lab: Any, page: Any, make_layered: Any) -> Any:
    return explore(make_layered(8, odd=3), lab, page)


def explore(trace: Trace, lab: Any, page: Any) -> Any:
    """The page with the explorer of a trace."""
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


def opens(lab: Any, page: Any, parts: list[str]) -> None:
    """Wait until the kernel knows that these parts are open: the browser says so a moment after they are."""
    wait_until(lambda: lab.evaluate(page, "explorer.widget.opened") == parts, pause=lambda: page.wait_for_timeout(50))


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
    page.focus(".dsx-explorer canvas")
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
    assert opened.locator('select[aria-label="shade of the map"]').is_hidden()
    assert "No seconds to shade it by" in opened.locator(".dsx-explorer").inner_text()


def test_parts_are_made_when_they_are_opened(opened: Any, lab: Any) -> None:
    page = opened
    page.focus(".dsx-fold-part summary")
    page.keyboard.press("Enter")
    page.wait_for_function("() => !document.querySelector('.dsx-fold-part').open")
    opens(lab, page, ["map"])
    page.locator(".dsx-explorer select").first.select_option(index=1)
    told(page, "^17 of 25")
    page.keyboard.press("Escape")
    page.focus(".dsx-fold-part summary")
    page.keyboard.press("Enter")
    page.wait_for_function("() => document.querySelector('.dsx-explorer canvas').clientHeight > 40")
    opens(lab, page, ["map", "timeline"])
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
