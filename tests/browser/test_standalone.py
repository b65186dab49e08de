"""The explorer in a file of its own: the same numbers as with a kernel, no network, and readable without JavaScript.

Modules: ``views/explorer/standalone.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.trace.trace import Trace
from tests.analysis.late_programs import Program

pytestmark = pytest.mark.browser

COLUMN = """title => { const m = globalThis.dsexplore, at = m.state.titles.findIndex(([name]) => name === title);
    return [...m.state.values.slice(at * m.rows.count, (at + 1) * m.rows.count)]; }"""
CHOSEN = "() => [...globalThis.dsexplore.selection()].flatMap((kept, i) => (kept ? [i] : []))"
STATUS = "document.querySelector('.dsx-status').innerText"


def show(page: Any, trace: Trace, folder: Path, **options: Any) -> None:
    page.goto(trace.to_html(folder / "shown.html", interactive=True, **options).as_uri())
    page.wait_for_function("globalThis.dsexplore !== undefined")
    page.wait_for_selector(".dsx-explorer canvas[data-drawn]")


def columns(explorer: Any, title: str) -> list[float]:
    rows = len(explorer.widget.labels)
    values = np.frombuffer(explorer.widget.values, np.float32).reshape(-1, rows)
    place = explorer.widget.columns[[name for name, *_ in explorer.widget.titles].index(title)]
    return values[place].tolist() if place >= 0 else [0.0] * rows


def compare(page: Any, explorer: Any) -> None:
    """Assert that the page has what Python answers in a notebook: every column of the tree, the events, and how
    many."""
    for title, *_ in explorer.widget.titles:
        assert page.evaluate(COLUMN, title) == pytest.approx(columns(explorer, title), rel=1e-6), title
    assert len(page.evaluate(CHOSEN)) == len(explorer.selection)
    sent = explorer.widget.timeline["boxes"]
    for name in ("begin", "end", "level"):  # drawn in another order
        drawn = page.evaluate(
            "name => [...globalThis.dsexplore.state.timeline.boxes[name]].sort((a, b) => a - b)", name
        )
        assert drawn == pytest.approx(sorted(np.frombuffer(sent[name], np.float32).tolist()), abs=1e-6), name
    ticks = page.evaluate("globalThis.dsexplore.state.timeline.ticks")
    assert [text for _, text in ticks] == [text for _, text in explorer.widget.timeline["ticks"]]
    assert [at for at, _ in ticks] == pytest.approx([at for at, _ in explorer.widget.timeline["ticks"]])
    assert page.evaluate(STATUS).startswith(explorer._selected.summary)


@pytest.mark.parametrize("which", ["layered", "timed"])
def test_it_answers_as_the_kernel_does(
    page: Any, tmp_path: Path, make_layered: Any, make_timed: Any, which: str, shot: Any
) -> None:
    trace = make_layered(8, odd=3) if which == "layered" else make_timed(4, 2)
    explorer = trace.explore()
    show(page, trace, tmp_path)
    compare(page, explorer)
    page.select_option("select[aria-label=phase]", index=1)
    explorer.filter(phase="forward")
    compare(page, explorer)
    page.select_option("select[aria-label=sizes]", "message")
    explorer.widget.sizes = "message"
    compare(page, explorer)
    page.click("text=clear >> nth=0")
    explorer.filter()
    for pattern in ("layers.[1-3]*", "*up", "layers.[^1]", "[z-a]", "nothing?"):
        page.fill("input[aria-label='search']", pattern)
        page.press("input[aria-label='search']", "Enter")
        explorer.widget.pattern = pattern
        compare(page, explorer)
    assert "no module is called nothing?" in page.evaluate(STATUS)
    page.click("text=clear >> nth=0")
    explorer.filter()
    page.click(".dsx-fold")
    explorer.widget.folding = False
    compare(page, explorer)
    page.evaluate("globalThis.dsexplore.set('selected', 3)")
    explorer.widget.selected = 3
    compare(page, explorer)
    shot(page, f"standalone_{which}", full_page=True)
    assert page.errors == []
    assert [url for url in page.requests.urls if not url.startswith(("file:", "blob:"))] == []


def test_waiting_and_late_ranks_are_those_of_the_kernel(page: Any, tmp_path: Path) -> None:
    trace = Trace(Program(ranks=4, steps=6, jitter=1e-3, late_rank=1, late_by=0.2).trace())
    explorer = trace.explore()
    show(page, trace, tmp_path)

    def drawn() -> dict[str, Any]:
        return page.evaluate(
            "() => { const { boxes, late, texts } = globalThis.dsexplore.state.timeline;"
            " return { waiting: [...boxes.waiting], late, texts }; }"
        )

    def same_as(sent: dict[str, Any]) -> None:
        shown = drawn()
        waiting = np.frombuffer(sent["boxes"]["waiting"], np.float32)
        assert sorted(shown["waiting"]) == pytest.approx(sorted(waiting.tolist()), abs=1e-6)
        assert [line[1::2] for line in shown["late"]] == [list(line[1::2]) for line in sent["late"]]
        for end in (0, 2):
            assert [line[end] for line in shown["late"]] == pytest.approx(
                [line[end] for line in sent["late"]], abs=1e-5
            )
        assert sorted(shown["texts"]) == sorted(sent["texts"])

    assert len(drawn()["late"]) == 6
    same_as(explorer.widget.timeline)
    page.evaluate("globalThis.dsexplore.zoom(0.3, 0.9)")
    explorer._drawing.lanes.state.zoom(0.3, 0.9)
    explorer._drawing.timeline()
    assert 0 < len(drawn()["late"]) < 6
    same_as(explorer.widget.timeline)


def test_a_range_and_a_sentence_filter_without_a_kernel(page: Any, tmp_path: Path, make_layered: Any) -> None:
    trace = make_layered(8, odd=3)
    show(page, trace, tmp_path)
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 200, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"], box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_selector("[data-drop=timeline]")
    late = page.evaluate(CHOSEN)
    assert late[-1] == 24
    assert 1 < len(late) < 12
    page.click("[data-drop=timeline]")
    assert len(page.evaluate(CHOSEN)) == 25
    page.click("[data-sentence] >> nth=0")
    wanted = trace.headline().sentences[0].rows.tolist()
    assert page.evaluate(CHOSEN) == sorted(wanted)
    number = next(i for i, one in enumerate(trace.headline().sentences) if len(one.rows) < len(trace))
    page.click(f"[data-sentence='{number}']")
    some = trace.headline().sentences[number].rows.tolist()
    drawn = "[...globalThis.dsexplore.held].flat().sort((a, b) => a - b)"
    assert page.evaluate(CHOSEN) == page.evaluate(drawn) == sorted(some), "the timeline shows them alone"
    page.click("[data-drop=sentence]")
    assert page.evaluate(drawn) == page.evaluate(CHOSEN), "then all of the row that it selected"
    assert "sentence" not in page.inner_text(".dsx-status")
    page.click("[data-sentence] >> nth=0")
    page.focus("canvas")
    for key in ("ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate(CHOSEN) == [1]
    assert "train.py:10" in page.inner_text(".dsx-details")
    assert page.evaluate("globalThis.dsexplore.state.timeline.texts[1]") in page.inner_text(".dsx-status")
    assert page.errors == []


def messages(rank: int) -> Trace:
    """Two ranks that send each other two messages of unlike size."""
    with dsexplore.simulate(2, rank=rank), dsexplore.commtrace() as trace:
        for size in (64, 256):
            for sender in (0, 1):
                act = dist.send if rank == sender else dist.recv
                act(torch.ones(size), 1 - rank)
    return trace


def test_sends_are_tied_to_receives_where_both_are_shown(page: Any, tmp_path: Path) -> None:
    trace = Trace.merge([messages(0), messages(1)])
    explorer = trace.explore()
    show(page, trace, tmp_path)
    tied = "globalThis.dsexplore.state.timeline.ties"
    drawn = explorer.widget.timeline["ties"]
    assert len(drawn) == 4
    texts = dict(explorer.widget.lists)["op"]
    assert sorted(page.evaluate(tied)) == [pytest.approx(tie, abs=1e-6) for tie in sorted(drawn)]
    page.select_option("select[aria-label=op]", index=next(i for i, text in enumerate(texts) if "send" in text))
    explorer.filter(op="send")
    assert page.evaluate(tied) == explorer.widget.timeline["ties"] == []


def test_many_events_are_drawn_in_columns_that_zoom(page: Any, tmp_path: Path, make_layered: Any) -> None:
    trace = make_layered(3000)
    show(page, trace, tmp_path)
    explorer = trace.explore()
    compare(page, explorer)
    sent = explorer.widget.timeline["boxes"]
    counts = page.evaluate("() => [...globalThis.dsexplore.state.timeline.boxes.count]")
    assert counts == np.frombuffer(sent["count"], np.uint32).tolist()
    page.focus("canvas")
    for key in ("ArrowRight", "Enter"):
        page.keyboard.press(key)
    lane = page.evaluate("globalThis.dsexplore.state.timeline.lanes[globalThis.dsexplore.state.timeline.boxes.lane[0]]")
    assert f"in {lane}, from " in page.inner_text(".dsx-status")
    for _ in range(14):
        page.keyboard.press("+")
    page.wait_for_function("globalThis.dsexplore.state.timeline.texts.length > 0")
    assert page.errors == []


def test_without_javascript_the_static_view_is_there(browser: Any, tmp_path: Path, make_layered: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(make_layered(3).to_html(tmp_path / "shown.html", interactive=True).as_uri())
        assert page.locator("#dsx-static .tree").is_visible()
    finally:
        context.close()


def test_names_are_data(page: Any, tmp_path: Path, trace_of_names: Any) -> None:
    show(page, trace_of_names(["<img src=x onerror=window.pwned=1>", "</script><b>", "b" * 300]), tmp_path)
    page.locator(".dsx-body .dsx-row").nth(0).click()
    page.locator(".dsx-body .dsx-row").nth(1).click()
    assert page.evaluate("window.pwned") is None
    assert page.locator("#dsx-explorer img").count() == 0
    assert page.errors == []


LAID_OUT = """
async () => {
  const { get } = Object.getOwnPropertyDescriptor(HTMLElement.prototype, "offsetHeight"), texts = [];
  Object.defineProperty(HTMLElement.prototype, "offsetHeight", { configurable: true, get() {
    if (this.matches(".dsx-explorer")) texts.push(document.querySelector(".dsx-status").textContent);
    return get.call(this);
  } });
  const list = document.querySelector("select[aria-label=phase]");
  list.selectedIndex = 1;
  list.dispatchEvent(new Event("change"));
  while (!texts.length) await new Promise((done) => setTimeout(done, 20));
  await new Promise((done) => setTimeout(done, 200));  // in which a second time would come
  return texts;
}
"""


def test_a_choice_is_laid_out_once_when_all_parts_show_it(page: Any, tmp_path: Path, make_layered: Any) -> None:
    """The browser lays out the page while it waits for the next frame."""
    trace = make_layered(8, odd=3)
    show(page, trace, tmp_path)
    explorer = trace.explore()
    explorer.filter(phase="forward")
    texts = page.evaluate(LAID_OUT)
    assert len(texts) == 1
    assert texts[0].startswith(explorer._selected.summary)


def test_a_link_alone_on_a_line_begins_where_the_line_does(page: Any, tmp_path: Path, make_layered: Any) -> None:
    show(page, make_layered(8, odd=3), tmp_path)
    indents = """() => [...document.querySelectorAll('.headline .to')].map(
      (link) => Math.round(link.getBoundingClientRect().left - link.closest('p').getBoundingClientRect().left))"""
    seen: set[int] = set()
    for width in range(320, 900, 10):
        page.set_viewport_size({"width": width, "height": 600})
        seen |= set(page.evaluate(indents))
    assert min(seen) == 0
    assert not seen & set(range(1, 16))
