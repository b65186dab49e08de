"""What the explorer's page does by itself, in a bare page with a stub of the widget model.

Modules: ``views/widgets/explorer_widget.py``.
"""

from __future__ import annotations

from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.trace.figure_spec import finished
from dsexplore._internal.views.trace.figures import FIGURES
from dsexplore._internal.views.widgets.explorer_widget import ExplorerWidget
from dsexplore._internal.views.widgets.part_widgets import PlotWidget

pytestmark = pytest.mark.browser

WAITING = """
async (source) => {
  window.sent = [];
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.model = module.promptModel({
    save_changes(callbacks) { window.sent.push("state"); window.told = callbacks.iopub.status; },
    send(content, callbacks) { window.sent.push(content.type); window.told = callbacks.iopub.status; },
    tell(content) { window.sent.push(content.type); },
  });
}
"""


@pytest.mark.parametrize(("action", "sent"), [("save_changes()", "state"), ("send({ type: 'again' })", "again")])
def test_one_who_waits_for_an_answer_says_so_when_the_kernel_begins(page: Any, action: str, sent: str) -> None:
    page.goto("about:blank")
    page.evaluate(WAITING, ExplorerWidget._esm)
    page.evaluate(f"model.{action}")
    assert page.evaluate("sent") == [sent]
    for state in ("busy", "idle"):
        page.evaluate("state => told({ content: { execution_state: state } })", state)
    assert page.evaluate("sent") == [sent, "waiting"]


FOLLOWING = """
async (source) => {
  const listeners = {};
  window.shown = [];
  const model = {
    on(name, f) { (listeners[name] ||= []).push(f); },
    off(name, f) { listeners[name] = listeners[name].filter((g) => g !== f); },
  };
  window.message = (...names) => names.forEach((name) => listeners[`change:${name}`]?.forEach((f) => f()));
  const { follow } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const part = (label, ...names) => ({
    names, show: (changed) => shown.push([label, [...changed].sort()]), end: () => shown.push([label, "end"]),
  });
  window.leave = follow(model, [part("figure", "c"), part("tree", "a", "b")]);
}
"""


def test_what_one_message_changes_is_shown_once_and_in_the_order_of_the_parts(page: Any) -> None:
    page.goto("about:blank")
    page.evaluate(FOLLOWING, ExplorerWidget._esm)
    assert page.evaluate("(message('a', 'b', 'c'), shown.length)") == 0
    assert page.evaluate("shown") == [["figure", ["a", "b", "c"]], ["tree", ["a", "b", "c"]]]
    page.evaluate("shown.length = 0; message('b')")
    assert page.evaluate("shown") == [["tree", ["b"]]]
    page.evaluate("shown.length = 0; leave(); message('a', 'c')")
    assert page.evaluate("shown") == [["figure", "end"], ["tree", "end"]]


REWRITING = """
async ([source, before, after]) => {
  const { rewrite } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const place = document.body;
  rewrite(place, before);
  const kept = [...place.querySelectorAll("*")];
  rewrite(place, after);
  return [place.innerHTML, kept.filter((element) => element.isConnected).map((element) => element.localName)];
}
"""


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("<p>one</p>", "<p>two</p>", ["p"]),
        ("<b>one</b>", "<b>one</b><i>two</i><u>three</u>", ["b"]),
        ('<p id="a">one</p>', '<p class="b" title="c">one</p>', ["p"]),
        ("<p>one</p>two<i>three</i>four", "two<p>one</p>", []),
        ('<p class="a" title="x">one</p>', '<p class="b">one</p>', ["p"]),
        ("<p>one <b>two</b></p>", "<p>one</p><i>three</i>", ["p"]),
        ("<p>one</p><b>two</b>", "<ul><li>one</li></ul><b>two</b>", ["b"]),
        ("<p><i>one</i></p>", "", []),
        ("", "<b>&lt;img src=x&gt;</b>", []),
        ("<details open=''><summary>a</summary><p>b</p></details>", "<details><summary>c</summary></details>",
         ["details", "summary"]),
    ],
)  # fmt: skip
def test_html_that_is_put_in_anew_keeps_the_elements_that_stay(
    page: Any, before: str, after: str, kept: list[str]
) -> None:
    page.goto("about:blank")
    assert page.evaluate(REWRITING, [ExplorerWidget._esm, before, after]) == [after, kept]


HOLDING = """
async (source) => {
  const { hold } = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  const set = [], control = { get value() { return set.at(-1) ?? "all"; }, set value(text) { set.push(text); } };
  for (const text of ["all", "dp", "dp", "all"]) hold(control, "value", text);
  return set;
}
"""


def test_a_control_is_set_only_where_it_holds_something_else(page: Any) -> None:
    """Chromium looks through all forms of a page whenever a control is set, for some milliseconds each time."""
    page.goto("about:blank")
    assert page.evaluate(HOLDING, ExplorerWidget._esm) == ["dp", "all"]


DRAWING = """
async ([source, spec]) => {
  const react = Plotly.react, listeners = {}, state = { spec, spoken: "a figure" };
  window.calls = [];
  Plotly.react = (box, data, layout, settings) => {
    calls.push([Boolean(settings), Boolean(layout.xaxis.automargin), Boolean(layout.yaxis.automargin)]);
    return react(box, data, layout, settings);
  };
  window.draw = (changed) => { state.spec = changed; listeners["change:spec"](); };
  const model = { get: (name) => state[name], send() {}, on(name, f) { listeners[name] = f; }, off() {} };
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  module.default.render({ model, el: document.body });
}
"""


def figure_of(names: list[str]) -> dict[str, Any]:
    data = [{"type": "heatmap", "z": [list(range(len(names)))], "x": names, "y": ["layers.*"], "showscale": False}]
    return finished({"data": data, "layout": {}})


@pytest.mark.parametrize("browser_tells", [True, False])
def test_a_figure_is_drawn_anew_in_idle_time_and_with_room_for_names_that_fit(page: Any, browser_tells: bool) -> None:
    page.set_viewport_size({"width": 500, "height": 500})
    page.set_content(f"<style>{PlotWidget._css}</style><body></body>")
    if not browser_tells:  # when it is idle, as Safari does not
        page.evaluate("delete window.requestIdleCallback")
    page.add_script_tag(content=get_plotlyjs())
    page.evaluate(DRAWING, [PlotWidget._esm, figure_of(["dp", "tp"])])
    page.wait_for_function("calls.length === 2")
    page.wait_for_selector(".dsx-plot[data-drawn='1']")
    assert page.evaluate("calls") == [[True, False, False], [False, False, False]]
    labels = "[...document.querySelectorAll('.xtick text, .ytick text')].map((text) => text.getBoundingClientRect())"
    inside = f"{labels}.every((at) => at.left >= 8 && at.right <= 492 && at.bottom <= 368)"
    assert page.evaluate(f"{labels}.length") == 3
    assert page.evaluate(inside)
    page.evaluate("spec => draw(spec)", figure_of([f"a long name {i}" for i in range(9)]))
    page.wait_for_selector(".dsx-plot[data-drawn='2']")
    assert page.evaluate("calls[2]") == [False, True, False]
    assert page.evaluate(inside)
    assert page.errors == []


def test_the_words_of_a_figure_have_the_ink_of_the_page_whatever_becomes_of_its_theme(page: Any) -> None:
    page.set_content(f"<style>{PlotWidget._css}</style><body></body>")
    page.add_script_tag(content=get_plotlyjs())
    page.evaluate(DRAWING, [PlotWidget._esm, figure_of(["dp", "tp"])])
    written = "ink => getComputedStyle(document.querySelector('.ytick text')).fill === ink"
    page.wait_for_selector(".dsx-plot[data-drawn='1']")
    assert page.evaluate(written, "rgb(0, 0, 0)")
    page.evaluate("document.body.style.colorScheme = 'dark'")
    page.wait_for_function(written, arg="rgb(255, 255, 255)")
    page.evaluate("document.body.style.colorScheme = 'light dark'")
    page.wait_for_function(written, arg="rgb(0, 0, 0)")
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(written, arg="rgb(255, 255, 255)")
    page.evaluate("document.documentElement.style.setProperty('--jp-content-font-color1', 'rgba(0, 128, 0, 0.87)')")
    page.wait_for_function(written, arg="rgb(0, 128, 0)")
    assert page.errors == []


CLICKING = """
async ([source, spec]) => {
  window.sent = [];
  const state = { spec, spoken: "a figure" };
  const model = { get: (name) => state[name], send: (message) => sent.push(message), on() {}, off() {} };
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  module.default.render({ model, el: document.body });
}
"""


@pytest.mark.parametrize(
    ("kind", "mark", "sent"),
    [
        ("sankey", ".sankey-link >> nth=1", ["flow", [1]]),
        ("sankey", ".sankey-node:has-text('rank 0') rect >> nth=0", ["flow", [2]]),
        ("sankey", ".sankey-node:has-text('to rank 4') rect >> nth=0", ["flow", [4]]),
        ("ranks", ".dsx-heat[data-at='0,0']", ["rank_peer", [0, 0]]),
    ],
)
def test_a_click_on_what_goes_between_ranks_names_the_mark(
    page: Any, make_layered: Any, kind: str, mark: str, sent: list[Any]
) -> None:
    """With the links numbered before the nodes, as the arrow keys go along them."""
    page.set_content(f"<style>{PlotWidget._css}</style><body></body>")
    page.add_script_tag(content=get_plotlyjs())
    page.evaluate(CLICKING, [PlotWidget._esm, finished(FIGURES[kind].spec(make_layered(2).tables, "wire"))])
    page.wait_for_selector(".dsx-plot[data-drawn='1']")
    place = page.locator(mark).bounding_box()
    page.mouse.move(place["x"] + place["width"] / 4, place["y"] + place["height"] / 2)
    page.wait_for_timeout(100)
    page.mouse.click(place["x"] + place["width"] / 4, place["y"] + place["height"] / 2)
    page.wait_for_function("sent.length")
    assert page.evaluate("[sent[0].kind, sent[0].index]") == sent
    page.focus(".dsx-plot")
    page.keyboard.press("Home")
    for _ in range(sent[1][0]):
        page.keyboard.press("ArrowRight")
    assert page.inner_text(".dsx-spoken").startswith(("rank 0", "to rank"))
    page.keyboard.press("Enter")
    page.wait_for_function("sent.length === 2")
    assert page.evaluate("[sent[1].kind, sent[1].index]") == sent
    assert page.errors == []


def written(page: Any, function: str, numbers: list[float]) -> list[str]:
    """Return what a function of the explorer's script makes of each number."""
    page.goto("about:blank")
    module = "import(URL.createObjectURL(new Blob([source], { type: 'text/javascript' })))"
    script = f"async ([source, numbers]) => numbers.map((await {module}).{function})"
    texts: list[str] = page.evaluate(script, [ExplorerWidget._esm, numbers])
    return texts


def test_bytes_are_written_in_the_page_as_in_python(page: Any) -> None:
    numbers = [0, 1, 1023, 1024, 1536, 774_400, 774_399, 1_310_720, 5 * 2**40, 2**60, *(37 * 3**n for n in range(30))]
    assert written(page, "formatBytes", numbers) == [format_bytes(number) for number in numbers]


def test_seconds_are_written_in_the_page_as_in_python(page: Any) -> None:
    numbers = [0, 1e-10, 9.996e-7, 1e-6, 9.9949e-4, 9.996e-4, 0.00125, 0.9994, 0.9996, 1, 59.96, 999.6, 1234.5, 98765]
    assert written(page, "formatSeconds", numbers) == [format_seconds(number) for number in numbers]
