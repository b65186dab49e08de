"""The tree's ESM in a bare page, with a stub of the widget model: no kernel, no Lab.

Modules: ``views/explorer/module_rows.py``, ``views/widgets/part_widgets.py``.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from dsexplore._internal.trace.select import modules_inside
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.explorer.filters import FilteredEvents
from dsexplore._internal.views.explorer.module_rows import ModuleRows, rows_of
from dsexplore._internal.views.explorer.selection import Filters
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.widgets.part_widgets import TreeWidget

pytestmark = pytest.mark.browser
HOSTILE = "<img src=x onerror=window.pwned=1>"

STATE = (
    "labels", "types", "notes", "folded", "titles", "axes", "columns", "height", "selected", "folding",
)  # fmt: skip

STUB = """
async ([source, state, buffers]) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  for (const [key, text] of Object.entries(buffers)) state[key] = bytes(text);
  const listeners = {};
  window.saved = [];
  window.model = {
    model_id: "stub", get: (key) => state[key],
    set(key, value) {
      if (state[key] === value) return;
      state[key] = value;
      (listeners["change:" + key] || []).forEach((f) => f());
    },
    save_changes() { window.saved.push({ ...state, structure: 0, values: 0 }); },
    on(name, f) { (listeners[name] ||= []).push(f); },
    off(name, f) { listeners[name] = (listeners[name] || []).filter((g) => g !== f); },
    send() {},
  };
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const el = document.getElementById("place");
  window.leave = module.default.render({ model: window.model, el });
}
"""


@pytest.fixture
def draw(page: Any) -> Callable[..., Any]:
    """Draw a trace's tree in a bare page and wait until it is there."""

    def drawn(trace: Trace, dark: bool = False, **facets: Any) -> Any:
        codes = EventCodes(trace.tables)
        widget = TreeWidget(**rows_of(codes))
        ModuleRows(codes, widget).fill(FilteredEvents(codes, Filters(facets)))
        state = {name: getattr(widget, name) for name in STATE}
        buffers = {name: base64.b64encode(getattr(widget, name)).decode() for name in ("structure", "values")}
        widget.close()
        colors = "background:#111;color:#eee;color-scheme:dark" if dark else "background:#fff;color:#000"
        page.set_content(f"<style>{TreeWidget._css}</style><body style='{colors}'><div id=place></div>")
        page.evaluate(STUB, [TreeWidget._esm, json.loads(json.dumps(state)), buffers])
        page.wait_for_selector("#place[data-ready]")
        return page

    return drawn


def names(page: Any) -> list[str]:
    return [bdi.inner_text() for bdi in page.query_selector_all(".dsx-body .dsx-name > bdi:first-of-type")]


def test_equal_layers_are_one_row_and_unfold(draw: Callable[..., Any], make_layered: Callable[..., Trace]) -> None:
    page = draw(make_layered(8, odd=3))
    assert names(page) == ["Net", "layers", "[0–2, 4–7]", "up", "down", "3", "up", "down"]
    assert page.inner_text(".dsx-times") == "×7"
    page.click(".dsx-fold")
    assert names(page)[:3] == ["Net", "layers", "0"]
    assert "26 of 26 modules" in page.inner_text(".dsx-count")


def test_filter_shows_matches_with_their_parents(draw: Callable[..., Any], make_layered: Callable[..., Trace]) -> None:
    page = draw(make_layered(4, odd=1))
    for pattern in ("layers.1.up", "*1.up", "Net.layers.?.up "):
        page.fill(".dsx-filter", pattern)
        assert names(page)[-2:] == ["1", "up"], pattern
    page.fill(".dsx-filter", "layers.1")
    assert names(page) == ["Net", "layers", "1", "up", "down"]
    page.fill(".dsx-filter", "up")
    assert names(page) == []
    assert "* is any text: try *up*" in page.inner_text(".dsx-count")


MATCHING = """
async ([source, patterns, names]) => {
  const { modulePattern } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  return patterns.map((pattern) => names.filter((name) => modulePattern(pattern).test(name)));
}
"""


def test_the_box_above_the_tree_takes_the_patterns_that_where_takes(page: Any) -> None:
    names_of = [
        "Net",
        "Net.layers.1",
        "Net.layers.10.up",
        "Net.layers.1.a-b",
        "Net.up",
        "Net.[x]",
        "Other.up^",
        "",
        "é.☃",
    ]
    patterns = [
        "layers.1", "layers.1*", "*up", "up", "Net", "layers.[0-9]", "layers.[!2].a-b", "[[]x]", "[x]", "[", "[]",
        "?.?", "*", "", "**up", "Other.up^", "layers.(1|10)", "NET", "layers.[]1]", "*.a-b", "[^x]", "[!]]", "a\\",
    ]  # fmt: skip
    page.goto("about:blank")
    found = page.evaluate(MATCHING, [TreeWidget._esm, patterns, names_of])
    assert found == [[n for n in names_of if n in modules_inside(names_of, [pattern])] for pattern in patterns]


def test_columns_sort_both_ways_and_back(draw: Callable[..., Any], make_layered: Callable[..., Trace]) -> None:
    page = draw(make_layered(4, odd=2))
    rows = lambda: [name for name in names(page) if name in ("2", "[0–1, 3]")]  # noqa: E731
    count = ".dsx-head button >> nth=0"
    page.click(count)
    assert rows() == ["[0–1, 3]", "2"]
    page.click(count)
    assert rows() == ["2", "[0–1, 3]"]
    page.click(count)
    assert rows() == ["[0–1, 3]", "2"]


def test_keyboard_alone_opens_selects_and_copies(
    draw: Callable[..., Any], make_layered: Callable[..., Trace], shot: Any
) -> None:
    page = draw(make_layered(4, odd=2))
    page.focus(".dsx-port")
    for key in ("Home", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("model.get('selected')") == 2
    shown = len(names(page))
    page.keyboard.press("ArrowLeft")
    assert len(names(page)) == shown - 2
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    active = page.get_attribute(".dsx-port", "aria-activedescendant")
    assert page.evaluate("id => document.getElementById(id).dataset.row", active) == "3"
    page.fill(".dsx-filter", "layers.2")  # the selected row is not in sight any more
    assert page.get_attribute(".dsx-port", "aria-activedescendant") is None
    page.fill(".dsx-filter", "")
    page.focus(".dsx-port")
    page.evaluate("document.execCommand = (c) => { window.copied = [c, document.activeElement.value]; }")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    page.keyboard.press("c")
    assert page.evaluate("window.copied") == ["copy", "Net.layers.0.up\nNet.layers.1.up\nNet.layers.3.up"]
    shot(page, "tree_keyboard")


def test_hostile_names_are_text(draw: Callable[..., Any], trace_of_names: Callable[..., Trace], shot: Any) -> None:
    page = draw(trace_of_names([HOSTILE, "x" * 10_000, "اسم‮", "a\u0000b"]))
    assert page.evaluate("window.pwned") is None
    assert page.query_selector("#place img") is None
    assert HOSTILE in names(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(page, "tree_hostile")


def test_rows_that_stay_in_sight_keep_their_elements(
    draw: Callable[..., Any], make_layered: Callable[..., Trace]
) -> None:
    page = draw(make_layered(4, odd=2))
    shown = names(page)
    page.evaluate("document.querySelectorAll('.dsx-body .dsx-row').forEach((row) => { row.kept = true; })")
    page.evaluate("document.querySelector('.dsx-body .dsx-cell').firstChild.kept = true")
    page.click(".dsx-body .dsx-row >> nth=2")
    page.evaluate("model.set('columns', model.get('columns').map(() => -1))")
    page.wait_for_function("() => document.querySelector('.dsx-body .dsx-cell').textContent === '–'")
    assert page.evaluate("document.querySelector('.dsx-body .dsx-cell').firstChild.kept")  # its text node too
    assert page.get_attribute(".dsx-body .dsx-row >> nth=2", "aria-selected") == "true"
    page.click(".dsx-body .dsx-twist >> nth=2")
    page.click(".dsx-body .dsx-twist >> nth=2")
    kept = page.evaluate("[...document.querySelectorAll('.dsx-body .dsx-row')].map((row) => Boolean(row.kept))")
    assert (names(page), kept) == (shown, [True, True, True, False, False, True, True, True])


def test_a_thousand_rows_are_few_elements(draw: Callable[..., Any], trace_of_names: Callable[..., Trace]) -> None:
    page = draw(trace_of_names([f"m{i}" for i in range(5000)]))
    assert len(names(page)) < 60
    page.focus(".dsx-port")
    page.keyboard.press("End")
    page.wait_for_function("() => [...document.querySelectorAll('.dsx-name > bdi')].at(-1).innerText === 'm4999'")


FILLING = """
async () => {
  const read = model.get("values"), values = new Float32Array(read.buffer.slice(0)), many = model.get("labels").length;
  let set = 0;
  new MutationObserver((found) => { set += found.length; }).observe(document.querySelector(".dsx-body"),
    { subtree: true, attributes: true, attributeFilter: ["style"] });
  const fill = async (of) => {
    set = 0;
    model.set("values", new DataView(values.map((value, at) => value * of(at % many)).buffer));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return [set > 0, ...[...document.querySelectorAll(".dsx-body .thin i:first-child")].slice(0, 2)
      .map((part) => Math.round(100 * part.offsetWidth / part.parentNode.offsetWidth))];
  };
  return [await fill((row) => 1 + row % 3), await fill((row) => (row ? 1 : many - 1))];
}
"""


def test_a_bar_is_set_only_where_it_would_look_different(
    draw: Callable[..., Any], trace_of_names: Callable[..., Trace]
) -> None:
    """Styling and layout of visible bars take the browser milliseconds; most filters change none of them."""
    trace = trace_of_names([f"m{i}" for i in range(1000)])
    page = draw(Trace(replace(trace.tables, events=trace.events.with_columns(axis=pl.lit("dp")))))
    small = page.evaluate("Math.round(100 / document.querySelector('.dsx-body .thin').offsetWidth)")
    assert page.evaluate(FILLING) == [[False, small, small], [True, 50, small]]


def test_an_empty_tree_and_a_dark_page(draw: Callable[..., Any], shot: Any) -> None:
    page = draw(Trace(Tables()), dark=True)
    assert "0 of 0 modules" in page.inner_text(".dsx-count")
    shot(page, "tree_empty_dark")
    page.evaluate("leave()")
    assert page.errors == []


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (800, True)])
def test_nothing_is_clipped(
    draw: Callable[..., Any], make_layered: Callable[..., Trace], shot: Any, page: Any, width: int, dark: bool
) -> None:
    page.set_viewport_size({"width": width, "height": 600})
    draw(make_layered(8, odd=3), dark=dark)
    clipped = page.evaluate(
        "[...document.querySelectorAll('.dsx-cell')].filter((c) => c.scrollWidth > c.clientWidth + 1)"
        ".map((c) => c.textContent)"
    )
    assert clipped == []
    shot(page, f"tree_{width}_{'dark' if dark else 'light'}")


def test_the_names_of_all_phases_are_whole_in_the_head(
    draw: Callable[..., Any], make_timed: Callable[..., Trace]
) -> None:
    page = draw(make_timed(4, 2))
    heads = "[...document.querySelectorAll('.dsx-head .dsx-cell:not([hidden]) button')]"
    assert "recompute" in page.evaluate(f"{heads}.map((head) => head.textContent)")
    assert (
        page.evaluate(f"{heads}.filter((head) => head.scrollWidth > head.clientWidth).map((h) => h.textContent)") == []
    )


def test_where_a_line_is_short_the_type_gives_way_and_not_the_placements(
    draw: Callable[..., Any], make_layered: Callable[..., Trace], page: Any
) -> None:
    page.set_viewport_size({"width": 520, "height": 600})
    trace = make_layered(4)
    modules = trace.modules.with_columns(type=pl.lit("ARatherLongNameOfALinearLayer"))
    draw(Trace(replace(trace.tables, modules=modules)))
    cut = "(place) => [...document.querySelectorAll(place)].map((e) => e.scrollWidth > e.clientWidth + 1)"
    assert set(page.evaluate(cut, ".dsx-note")) == {False}
    # Where a hundredth of a pixel is missing, the browser writes three dots.
    whole = """[...document.querySelectorAll('.dsx-body .dsx-name > bdi:first-of-type')].map((name) => {
      const text = document.createRange();
      text.selectNodeContents(name);
      return text.getBoundingClientRect().width <= name.getBoundingClientRect().width;
    })"""
    assert set(page.evaluate(whole)) == {True}
    assert True in page.evaluate(cut, ".dsx-type")


def test_beside_a_long_name_the_placements_are_whole(
    draw: Callable[..., Any], make_layered: Callable[..., Trace], page: Any
) -> None:
    page.set_viewport_size({"width": 520, "height": 600})
    tables = make_layered(4).tables
    longer = lambda *names: pl.col(*names).str.replace("up$", "up" + "_and_up" * 12)  # noqa: E731
    draw(
        Trace(
            replace(
                tables,
                events=tables.events.with_columns(longer("owner", "trigger")),
                modules=tables.modules.with_columns(longer("module", "parent")),
                parameters=tables.parameters.with_columns(longer("module")),
            )
        )
    )
    cut = "(place) => [...document.querySelectorAll(place)].map((e) => e.scrollWidth > e.clientWidth)"
    assert True in page.evaluate(cut, ".dsx-body .dsx-name > bdi:first-of-type")
    assert set(page.evaluate(cut, ".dsx-note")) == {False}
    types = """[...document.querySelectorAll('.dsx-type')].map(
      (kind) => kind.clientWidth / parseFloat(getComputedStyle(kind).fontSize))"""
    assert min(page.evaluate(types)) > 1.5, "of a type its first letters are seen"


def test_columns_that_do_not_fit_come_with_a_button(
    draw: Callable[..., Any], make_layered: Callable[..., Trace], page: Any
) -> None:
    page.set_viewport_size({"width": 520, "height": 600})
    draw(make_layered(4))
    heads = lambda: [b.inner_text() for b in page.query_selector_all(".dsx-head button") if b.is_visible()]  # noqa: E731
    assert heads() in (["count", "bytes", "share"], ["count", "bytes", "share", "on tp"])
    inside = "(b => b.right)(document.querySelector('.dsx-port').getBoundingClientRect())"
    cells = (
        "Math.max(...[...document.querySelectorAll('.dsx-body .dsx-cell')].map((c) => c.getBoundingClientRect().right))"
    )
    assert page.evaluate(f"{cells} <= {inside}")
    page.click(".dsx-wide")
    assert heads()[-3:] == ["self", "all params", "per rank"]


def test_under_a_filter_the_columns_that_hold_nothing_make_room(
    draw: Callable[..., Any], make_timed: Callable[..., Trace], page: Any
) -> None:
    shown = "[...document.querySelectorAll('.dsx-head .dsx-cell')].filter((e) => !e.hidden).map((e) => e.innerText)"
    page.set_viewport_size({"width": 760, "height": 600})
    draw(make_timed(4, 2))
    every = page.evaluate(shown)
    assert "on dp" in every
    assert "recompute" not in every
    draw(make_timed(4, 2), phase="recompute")
    heads = page.evaluate(shown)
    place = heads.index("recompute")
    assert len(heads) == len(every)
    assert heads[:4] == every[:4], "count, times, bytes and the bar stay where they are"
    assert not {"on tp", "forward", "backward"} & {*heads}
    cells = "[...document.querySelectorAll('.dsx-body .dsx-row:first-child .dsx-cell')].map((e) => e.innerText)"
    bytes_of_all = page.evaluate(cells)[every.index("bytes")]
    assert page.evaluate(cells)[place] == bytes_of_all != "–"
    page.click(f".dsx-head .dsx-cell >> nth={place}")
    assert page.get_attribute(f".dsx-head .dsx-cell >> nth={place}", "aria-sort") == "descending"
    page.click(".dsx-wide")
    natural = page.evaluate(shown)
    assert natural.index("forward") < natural.index("backward") < natural.index("recompute ▾")
