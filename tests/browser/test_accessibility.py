"""Every view by axe-core, by keyboard alone, at 200 %, in forced colors, narrow, and without a kernel that answers.

Modules: ``views/``.

A static view is the page that ``to_html`` writes; an explorer is the widget's own script in a bare page, on a model
that Python's widget has filled.
"""

from __future__ import annotations

import base64
import importlib.resources
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from plotly.offline import get_plotlyjs
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dsexplore
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.comm.sweeps.sweep_result import CommSweep, SweepConditions, SweepPoint
from dsexplore._internal.trace.trace import Trace

pytestmark = pytest.mark.browser

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
AXE = """async (rules) => (await axe.run(document, { runOnly: { type: "tag", values: rules } }))
  .violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html }) => html.slice(0, 160)).join(" | ")}`)"""

STUB = """
async ([source, state, manager]) => {
  const revive = (value) => {
    if (Array.isArray(value)) return value.map(revive);
    if (!value || typeof value !== "object") return value;
    if ("base64" in value) return new DataView(Uint8Array.from(atob(value.base64), (c) => c.charCodeAt(0)).buffer);
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, revive(each)]));
  };
  const listeners = {}, heard = [];
  state = revive(state);
  window.sent = [];
  window.kernel = {
    status: "idle", isDisposed: false,
    statusChanged: { connect: (f) => heard.push(f), disconnect() {} },
    becomes(status) { this.status = status; heard.forEach((f) => f()); },
    // Of the messages that wait ipywidgets joins those of the state, and keeps the last one's number.
    answer() { while (window.waiting.length) window.model.set("answered", window.waiting.shift().asked); },
  };
  window.waiting = [];
  const ask = (what, asked) => {
    window.sent.push(what);
    const joined = what === "state" && window.waiting.find((each) => each.what === "state");
    if (joined) joined.asked = asked;
    else window.waiting.push({ what, asked });
  };
  window.model = {
    widget_manager: manager ? { kernel: window.kernel } : undefined,
    get: (key) => state[key],
    set(key, value) {
      if (state[key] === value) return;
      state[key] = value;
      (listeners["change:" + key] || []).forEach((f) => f());
    },
    save_changes() { ask("state", state.asked); },
    send(content) { ask(content.type, content.asked); },
    on(name, f) { (listeners[name] ||= []).push(f); },
    off(name, f) { listeners[name] = (listeners[name] || []).filter((g) => g !== f); },
  };
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.leave = await module.default.render({ model: window.model, el: document.getElementById("place") });
}
"""


def axe() -> str:
    """Return the source of axe-core."""
    try:
        return (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")
    except ModuleNotFoundError:
        pytest.fail("axe-core is not installed: pip install dsexplore[test]")


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """Yield one page for all of these, which takes scripts where the view's own policy lets none run."""
    context = browser.new_context(bypass_csp=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    opened = context.new_page()
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    yield opened
    context.close()


class ResidualNetForCausalLM(nn.Module):
    """Its name is a word as long as those of real models."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


@pytest.fixture(scope="module")
def recorded() -> Trace:
    """Return a step of a small model with tensor parallelism and FSDP."""
    with dsexplore.simulate(mesh="dp=2,tp=4") as mesh:
        torch.manual_seed(0)
        net = ResidualNetForCausalLM()
        for layer in net.layers:
            parallelize_module(layer, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(net, mesh=mesh["dp"])
        optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
        with dsexplore.commtrace(costs=True) as trace:
            net(torch.randn(8, 64)).sum().backward()
            optimizer.step()
    return trace


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


def state_of(widget: Any) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, (bytes, memoryview)):
            return {"base64": base64.b64encode(value).decode()}
        if isinstance(value, dict):
            return {str(key): plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value

    names = [
        name for name in widget.trait_names(sync=True) if not name.startswith("_") and name not in ("layout", "comm")
    ]
    return dict(json.loads(json.dumps({name: plain(getattr(widget, name)) for name in names})))


def draw(page: Any, widget: Any, head: str = "", manager: bool = True, before: str = "") -> None:
    """Draw an explorer's widget in the page, by itself.

    Args:
        page: is emptied.
        widget: filled by its own Python.
        head: more CSS.
        manager: whether the page knows of the kernel.
        before: a script that runs in the page before.
    """
    page.goto("about:blank")
    page.set_content(
        f"<!DOCTYPE html><html lang=en><head><title>x</title><style>:root{{color-scheme:light dark}}"
        f"body{{background:Canvas}}{widget._css}{head}</style></head>"
        "<body><main><h1>x</h1><div id=place></div></main></body>"
    )
    if "plot(" in widget._esm:
        page.evaluate("window.Plotly || 0") or page.add_script_tag(content=get_plotlyjs())
    if before:
        page.evaluate(before)
    page.evaluate(STUB, [widget._esm, state_of(widget), manager])


@pytest.fixture(scope="module")
def explorers(recorded: Trace, make_timed: Any) -> dict[str, Any]:
    live = {"explorer": "timeline", "tab of the map": "map", "tab of findings": "findings"}
    shown = {name: recorded.explore(tab=tab) for name, tab in live.items()}
    for explorer in shown.values():
        explorer.select("ResidualNetForCausalLM.layers.0")
    return {**shown, "timeline explorer": make_timed().timeline().explore()}


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
    for dark in (False, True):
        page.emulate_media(color_scheme="dark" if dark else "light")
        for name, one in {**shown, **explorers}.items():
            open_one(page, one, tmp_path)
            page.evaluate(source)
            violations = page.evaluate(AXE, RULES)
            if violations:
                found[f"{name}, {'dark' if dark else 'light'}"] = violations
    assert found == {}, json.dumps(found, indent=1)
    assert page.errors == []


CUT = """async () => {
  await document.fonts.ready;
  for (let frame = 0; frame < 6; frame += 1) await new Promise(requestAnimationFrame);  // bars come a few frames later
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
    if (["auto", "scroll"].includes(style.overflowX)) {
      const borders = parseFloat(style.borderTopWidth) + parseFloat(style.borderBottomWidth);
      const bar = each.offsetHeight - each.clientHeight - borders;
      const said = each.textContent.slice(0, 40);
      if (bar < 1 && !each.matches("pre")) cut.push(`no scroll bar: ${each.className}: ${said}`);
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
"""What a narrow page cuts off without an ellipsis, a scroll bar, and a key that scrolls; and words broken in two."""


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
    """A window of 1280 pixels at 200 % is one of 640 to the page."""
    found = {}
    for width in (640, 800):
        narrow.set_viewport_size({"width": width, "height": 450})
        for name, one in {**shown, **explorers}.items():
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


STATE = "document.querySelector('.dsx-state').textContent"


class TestKernel:
    def test_a_choice_that_is_not_answered_is_said_and_what_is_old_is_marked(
        self, page: Any, explorers: dict[str, Any]
    ) -> None:
        draw(page, explorers["explorer"].widget)
        page.wait_for_selector(".dsx-plot[data-drawn]")
        assert page.evaluate(STATE) == ""
        page.click(".dsx-body .dsx-row >> nth=1")
        page.wait_for_function(f"{STATE}.startsWith('The kernel is busy: your choice is not shown below yet')")
        marked = "[...document.querySelectorAll('[data-follows]')].map((part) => part.getAttribute('aria-busy'))"
        assert set(page.evaluate(marked)) == {"true"}
        assert page.get_attribute(".dsx-state", "role") == "alert"
        page.evaluate("kernel.answer()")
        page.wait_for_function(f"{STATE} === ''")
        assert set(page.evaluate(marked)) == {"false"}

    def test_when_the_kernel_ends_tree_filters_and_tables_agree_again(
        self, page: Any, explorers: dict[str, Any]
    ) -> None:
        draw(page, explorers["explorer"].widget)
        page.wait_for_selector(".dsx-selected")
        before = page.inner_text(".dsx-selected")
        page.click(".dsx-body .dsx-row >> nth=0")
        page.locator(".dsx-filters select").first.select_option(index=1)
        assert page.inner_text(".dsx-selected") != before
        page.evaluate("kernel.becomes('dead')")
        page.wait_for_function(f"{STATE}.includes('has ended') && {STATE}.endsWith('Run the cell again.')")
        assert page.inner_text(".dsx-selected") == before
        assert page.locator(".dsx-filters select").first.evaluate("list => list.selectedIndex") == 0
        asked = page.evaluate("sent.length")
        page.click(".dsx-body .dsx-row >> nth=0")
        page.keyboard.press("ArrowDown")
        assert page.inner_text(".dsx-selected") == before
        assert page.evaluate("sent.length") == asked
        assert page.locator(".dsx-filters select").first.is_disabled()
        page.fill(".dsx-search", "*.1.*")  # the tree itself needs no kernel
        assert page.locator(".dsx-body .dsx-row").count() < 8
        assert page.errors == []

    def test_of_quick_choices_the_last_ones_answer_is_enough(self, page: Any, explorers: dict[str, Any]) -> None:
        draw(page, explorers["explorer"].widget)
        page.wait_for_selector(".dsx-plot[data-drawn]")
        page.clock.install()
        lists = page.locator(".dsx-filters select")
        for index in (1, 2, 1):
            lists.first.select_option(index=index)
        page.focus(".dsx-port")
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        page.click("canvas")
        assert page.evaluate("waiting.length") == 2, "one state and one other message"
        page.evaluate("kernel.answer()")
        assert page.get_attribute(".dsx-state", "data-waiting") == "0"
        page.clock.run_for(5000)
        assert page.evaluate(STATE) == ""
        page.click(".dsx-body .dsx-row >> nth=0")
        page.clock.run_for(5000)
        assert page.evaluate(STATE).startswith("The kernel is busy")

    def test_what_was_answered_is_not_taken_back(self, page: Any, explorers: dict[str, Any]) -> None:
        draw(page, explorers["explorer"].widget)
        page.wait_for_selector(".dsx-selected")
        rows = page.locator(".dsx-body .dsx-row")
        for number in (0, 1, 2):
            rows.nth(number).click()
        page.evaluate("kernel.answer()")
        answered = page.inner_text(".dsx-selected")
        rows.nth(4).click()
        rows.nth(5).click()
        assert page.inner_text(".dsx-selected") != answered
        page.evaluate("kernel.becomes('restarting')")
        assert page.inner_text(".dsx-selected") == answered
        assert page.evaluate("model.get('selected')") == 2

    def test_a_page_whose_messages_are_never_answered_says_nothing(self, page: Any, explorers: dict[str, Any]) -> None:
        draw(page, explorers["timeline explorer"].widget, manager=False)
        page.wait_for_selector("canvas[data-drawn]")
        page.clock.install()
        page.click("canvas")
        page.clock.run_for(5000)
        assert page.evaluate("sent.length") > 0
        assert page.evaluate(STATE) == ""
        page.evaluate("kernel.answer()")  # now it is known that answers are seen
        page.click("canvas")
        page.clock.run_for(5000)
        assert page.evaluate(STATE).startswith("The kernel is busy")


def test_clear_clears_the_tree_too(page: Any, explorers: dict[str, Any]) -> None:
    draw(page, explorers["explorer"].widget)
    page.wait_for_selector(".dsx-tree[data-ready]")
    shown = page.locator(".dsx-body .dsx-row").count()
    page.fill(".dsx-search", "*.1")
    assert page.locator(".dsx-body .dsx-row").count() != shown
    page.click("text='clear'")
    assert page.input_value(".dsx-search") == ""
    assert page.locator(".dsx-body .dsx-row").count() == shown
    assert page.evaluate("sent.at(-1)") == "clear"


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
