"""The timeline's canvas in a bare page, answered by the Python that answers it in a notebook.

Modules: ``views/timeline/timeline_explorer.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page import theme
from dsexplore._internal.views.timeline.timeline_explorer import TimelineExplorer
from dsexplore._internal.views.widgets.part_widgets import TimelineWidget
from tests.analysis.late_programs import Program
from tests.waiting import wait_until

pytestmark = pytest.mark.browser

STUB = """
async ([source, state]) => {
  const listeners = {};
  window.state = state;
  const put = (changes) => {
    const drawn = changes.timeline;
    drawn.boxes = Object.fromEntries(Object.entries(drawn.boxes).map(
      ([name, text]) => [name, new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer)]));
    // As a comm does, only what changed is told.
    const before = window.told;
    window.told = JSON.stringify({ ...drawn, boxes: 0 });
    if (window.told === before) delete changes.timeline;
    Object.assign(state, changes);
    for (const name of Object.keys(changes)) (listeners["change:" + name] || []).forEach((f) => f());
  };
  put(state);
  const model = {
    get: (name) => state[name],
    set(name, value) { state[name] = value; (listeners["change:" + name] || []).forEach((f) => f()); },
    async save_changes() {},
    async send(message) { put(await window.kernel(message)); },
    on(name, f) { (listeners[name] ||= []).push(f); },
    off(name, f) { listeners[name] = (listeners[name] || []).filter((g) => g !== f); },
  };
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.leave = module.default.render({ model, el: document.getElementById("place") });
}
"""


def state_of(widget: TimelineWidget) -> dict[str, Any]:
    import base64

    boxes = {name: base64.b64encode(column).decode() for name, column in widget.timeline["boxes"].items()}
    return {"timeline": {**widget.timeline, "boxes": boxes}, "brushed": widget.brushed}


@pytest.fixture
def draw(page: Any) -> Callable[..., TimelineExplorer]:
    """Draw a trace's timeline in a bare page, whose messages reach its explorer."""

    def drawn(trace: Trace, dark: bool = False, **options: Any) -> TimelineExplorer:
        explorer: TimelineExplorer = trace.timeline(**options).explore()

        def kernel(sent: dict[str, Any]) -> dict[str, Any]:
            explorer._on_event(sent)
            return state_of(explorer.widget)

        page.expose_function("kernel", kernel)
        colors = "background:#111;color:#eee;color-scheme:dark" if dark else "background:#fff;color:#000"
        page.set_content(f"<style>{TimelineWidget._css}</style><body style='{colors}'><div id=place></div>")
        page.evaluate(STUB, [TimelineWidget._esm, state_of(explorer.widget)])
        page.wait_for_selector("canvas[data-drawn]")
        return explorer

    return drawn


def status(page: Any) -> str:
    return str(page.inner_text("[role=status]"))


def test_a_range_that_is_dragged_over_is_the_selection(
    draw: Callable[..., TimelineExplorer], page: Any, make_timed: Callable[..., Trace], shot: Any
) -> None:
    explorer = draw(make_timed(4))
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 40, steps=4)
    page.mouse.up()
    page.wait_for_function("() => document.querySelector('[role=status]').textContent.includes('collectives from')")
    assert 0 < len(explorer.selection) < len(explorer.timeline.spans)
    shot(page, "timeline-light")
    page.click("text=clear the selection")
    page.wait_for_function("() => document.querySelector('[role=status]').textContent === ''")
    assert len(explorer.selection) == len(explorer.timeline.spans)
    assert page.errors == []


def test_the_keyboard_alone_reaches_selects_and_zooms(
    draw: Callable[..., TimelineExplorer], page: Any, make_layered: Callable[..., Trace]
) -> None:
    explorer = draw(make_layered(8), lanes="axis")
    page.keyboard.press("Tab")
    page.focus("canvas")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    assert status(page).startswith("reduce_scatter · backward · 3 KiB on the wire")
    page.keyboard.press("Enter")
    page.wait_for_function("() => window.state.brushed.status !== ''")
    assert explorer.selection.events["axis"].to_list() == ["tp"]
    page.keyboard.press("+")
    page.wait_for_function("() => window.state.timeline.zoomed")
    assert explorer.window == pytest.approx((2.4, 21.6))
    page.keyboard.press("Home")
    page.wait_for_function("() => !window.state.timeline.zoomed")
    page.keyboard.press("Escape")
    page.wait_for_function("() => window.state.brushed.status === ''")
    assert len(explorer.selection) == 24
    page.keyboard.press("ArrowRight")
    for _ in range(2):
        page.keyboard.press("Shift+ArrowRight")
    page.wait_for_function("() => window.state.brushed.status.startsWith('7 collectives from 0 to 7')")
    assert len(explorer.selection) == 7


def test_a_wheel_turned_with_control_zooms_at_the_pointer(
    draw: Callable[..., TimelineExplorer], page: Any, make_layered: Callable[..., Trace], shot: Any
) -> None:
    page.set_viewport_size({"width": 800, "height": 600})
    explorer = draw(make_layered(3000), dark=True, lanes="axis")
    shot(page, "timeline-dark-800")
    box = page.locator("canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 2, box["y"] + 10)
    page.keyboard.down("Control")
    for _ in range(6):
        page.mouse.wheel(0, -100)
        page.wait_for_timeout(50)
    page.keyboard.up("Control")
    # Each turn zooms a little further.
    wait_until(lambda: explorer.window[0] > 4500, pause=lambda: page.wait_for_timeout(50))
    assert page.evaluate("window.state.timeline.zoomed")
    assert explorer.window[1] > 8900


WRITTEN = """
window.written = [];
const fill = CanvasRenderingContext2D.prototype.fillText;
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...given) { written.length = 0; clear.apply(this, given); };
CanvasRenderingContext2D.prototype.fillText = function (...given) { written.push(given[0]); fill.apply(this, given); };
const stroke = CanvasRenderingContext2D.prototype.stroke;
CanvasRenderingContext2D.prototype.stroke = function () { written.push("a line"); stroke.apply(this); };
"""


@pytest.mark.parametrize(("size", "letters"), [(0, 1), (1 << 20, 0)], ids=["no bytes", "bytes"])
def test_a_box_that_is_covered_has_no_letter_and_one_of_no_bytes_covers_none(
    draw: Callable[..., TimelineExplorer], page: Any, make_timed: Callable[..., Trace], size: int, letters: int
) -> None:
    tables = make_timed(1).tables
    first = pl.int_range(pl.len()) == 0
    events = tables.events.head(2).with_columns(
        pl.lit(0, pl.Int64).alias("start"),
        pl.when(first).then(pl.lit(1000)).otherwise(pl.lit(900)).cast(pl.Int64).alias("end"),
        pl.when(first).then(pl.lit(1 << 20)).otherwise(pl.lit(size)).cast(pl.Int64).alias("wire_bytes"),
        pl.lit("forward", tables.events.schema["phase"]).alias("phase"),
    )
    page.add_init_script(WRITTEN)
    page.goto("about:blank")
    draw(Trace(replace(tables, events=events)))
    assert page.evaluate("written").count("dp") == letters


def test_waiting_and_late_ranks_are_drawn_and_named_as_in_the_static_view(
    draw: Callable[..., TimelineExplorer], page: Any
) -> None:
    late = Program(ranks=4, steps=6, jitter=1e-3, late_rank=1, late_by=0.2)
    page.add_init_script(WRITTEN)
    page.goto("about:blank")
    trace = Trace(late.trace())
    draw(trace)
    key = page.locator(".keyed .named").all_inner_texts()
    static = trace.timeline()._repr_mimebundle_()["text/html"]
    for words in ("waiting for a rank that comes later", "late"):
        assert any(text.endswith(words) for text in key)
        assert f"</i>{words}</span>" in static
    assert sum(text.startswith("+20") for text in page.evaluate("written")) > 2
    count = """color => { const canvas = document.querySelector("canvas"), pen = canvas.getContext("2d");
      const { data } = pen.getImageData(0, 0, canvas.width, canvas.height); let found = 0;
      for (let i = 0; i < data.length; i += 4) found += color.every((each, k) => data[i + k] === each);
      return found; }"""
    waiting, alarm = ([int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in (theme.WAITING, theme.ALARM))
    assert page.evaluate(count, waiting) > 5000
    assert page.evaluate(count, alarm) > 500


def pipeline() -> Trace:
    schedule = {"schedule": "Schedule1F1B", "stages": 4, "microbatches": 8, "order": {}}
    return Trace(Tables(info=TraceInfo(world_size=4, ranks=(0,), schedule=json.dumps(schedule))))


def test_lines_between_stages_run_behind_labels(draw: Callable[..., TimelineExplorer], page: Any) -> None:
    page.add_init_script(WRITTEN)
    page.goto("about:blank")
    draw(pipeline(), lanes="stage")
    written = page.evaluate("written")
    assert written.index("stage 0") < written.index("a line") < written.index("B0")


def test_boxes_of_one_color_are_told_apart_in_a_static_view(page: Any, tmp_path: Path) -> None:
    """In a schedule the backward of a microbatch may follow its forward at once, in the same color."""
    page.goto(pipeline().timeline(lanes="stage").to_html(tmp_path / "shown.html").as_uri())
    edges = """[...document.querySelectorAll('.tl .l > i')].map((box) => {
      const { borderRightWidth, borderRightColor, backgroundColor } = getComputedStyle(box);
      return [parseFloat(borderRightWidth), borderRightColor === backgroundColor, box.offsetWidth >= 2];
    })"""
    assert {tuple(each) for each in page.evaluate(edges)} == {(1, False, True)}


def test_lines_between_stages_run_behind_labels_of_a_static_view(page: Any, tmp_path: Path) -> None:
    page.goto(pipeline().timeline(lanes="stage").to_html(tmp_path / "shown.html").as_uri())
    label = "[...document.querySelectorAll('.tl b')].find((each) => each.textContent === 'B0')"
    page.add_style_tag(content=".dsx .tl>.ties{pointer-events:auto!important;pointer-events:bounding-box!important}")
    page.evaluate(f"{label}.scrollIntoView()")
    on_top = (
        f"(() => {{ const one = {label}, at = one.getBoundingClientRect(); "
        "return document.elementFromPoint((at.left + at.right) / 2, (at.top + at.bottom) / 2) === one; })()"
    )
    assert page.evaluate(on_top)


def test_names_are_data(draw: Callable[..., TimelineExplorer], page: Any, trace_of_names: Callable[..., Trace]) -> None:
    draw(trace_of_names(["<img src=x onerror=window.pwned=1>", "b" * 300]), lanes="axis")
    assert page.query_selector("img") is None
    assert page.evaluate("window.pwned") is None
    assert page.requests.foreign == []


def test_a_long_name_in_the_key_is_as_wide_as_a_narrow_page(
    draw: Callable[..., TimelineExplorer], page: Any, trace_of_names: Callable[..., Trace]
) -> None:
    page.set_viewport_size({"width": 320, "height": 600})
    draw(trace_of_names(["a_long_name_" * 8, "b" * 300]))
    ends = (
        "[...document.querySelectorAll('.named')].map((each) => each.scrollWidth + each.getBoundingClientRect().left)"
    )
    assert max(page.evaluate(ends)) <= 320
    assert "…" in page.inner_text(".keyed")


PARTED = """
() => [...document.querySelectorAll('.key')].filter((swatch) => {
  const name = document.createRange();
  name.selectNodeContents(swatch.nextSibling);
  const [first] = name.getClientRects(), box = swatch.getBoundingClientRect(), middle = (box.top + box.bottom) / 2;
  return middle < first.top || middle > first.bottom;
}).map((swatch) => swatch.nextSibling.textContent)
"""


INDENTS = """
() => [...document.querySelectorAll('.key')].map(
  (swatch) => Math.round(swatch.getBoundingClientRect().left - swatch.closest('p,.keyed').getBoundingClientRect().left))
"""


@pytest.mark.parametrize("live", [False, True], ids=["static", "live"])
def test_no_line_of_the_key_breaks_between_a_swatch_and_its_name(
    draw: Callable[..., TimelineExplorer], page: Any, make_timed: Callable[..., Trace], tmp_path: Path, live: bool
) -> None:
    if live:
        draw(make_timed(4))
    else:
        page.goto(make_timed(4).timeline().to_html(tmp_path / "shown.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true })")
    assert page.locator(".key").count() > 3
    parted, indents = {}, set()
    for width in range(300, 820, 10):
        page.set_viewport_size({"width": width, "height": 600})
        parted[width] = page.evaluate(PARTED)
        indents |= set(page.evaluate(INDENTS))
    assert not any(parted.values()), parted
    assert min(indents) == 0
    assert not indents & set(range(1, 16)), "a line begins at the left edge, or with words"
