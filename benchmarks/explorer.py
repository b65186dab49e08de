"""The explorer in a real Chromium through JupyterLab, timeline or world map shown: 10,000 modules, 1,000,000 events.

Prints one table: what was measured, the goal, whether it was met. Usage: python -m benchmarks.explorer
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
from playwright.sync_api import sync_playwright

from docs import pictured_programs
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from tests.browser.conftest import ARGUMENTS, chromium
from tests.browser.jupyter_lab import running_lab

PARTS = ("attn", "attn.q", "attn.k", "attn.v", "attn.o", "mlp", "mlp.up", "mlp.gate", "mlp.down")
GOALS = {"ready": 1.5, "interaction": 0.1, "sent": 1.0, "static view": 90e3}


def big_trace(modules: int, events: int, seed: int = 0) -> Trace:
    """A model of layers of ten modules each; events fall on modules at random, so that nothing folds."""
    rng = np.random.default_rng(seed)
    names, parents, types = ["Net", "Net.layers"], ["", "Net"], ["Net", "ModuleList"]
    for layer in range(modules // (len(PARTS) + 1)):
        block = f"Net.layers.{layer}"
        names += [block, *(f"{block}.{part}" for part in PARTS)]
        parents += ["Net.layers", *(f"{block}.{part}".rpartition(".")[0] for part in PARTS)]
        types += ["Block", *PARTS]
    table = {"module": names, "parent": parents, "type": types, "depth": [n.count(".") for n in names], "calls": 1}

    def pick(words: list[str]) -> pl.Series:
        return pl.Series(words)[rng.integers(0, len(words), events)]

    owner, axis = pl.Series(names)[rng.integers(2, len(names), events)], pick(["dp", "tp", "pp"])
    size = (2 ** rng.integers(8, 26, events)).astype(np.int64)
    columns: dict[str, Any] = {
        "rank": 0,
        "step": np.arange(events) * 10 // events,
        "seq": np.arange(events),
        "raw_op": "",
        "group_size": 4,
        "op": pick(["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]),
        "axis": axis,
        "group": axis,
        "phase": pick([phase for phase in schema.PHASES if phase not in schema.OUTSIDE_STEPS][:4]),
        "trigger": owner,
        "owner": owner,
        "cause": "",
        "source": "train.py:10",
        "message_bytes": size,
        "wire_bytes": size,
        "dtype": "bfloat16",
        "shape": pl.Series([[1]]).new_from_index(0, events),
        "implicit": rng.random(events) < 0.01,
        "is_async": False,
        "is_object": False,
        "batch": None,
        **dict.fromkeys(schema.ADDED[2]),
        "start": None,
        "end": None,
        "state": "",
        "waited": None,
        "group_seq": None,
        "same_input": None,
    }
    whole = pl.DataFrame({k: v for k, v in columns.items() if isinstance(v, (np.ndarray, pl.Series))})
    rest = [pl.lit(v).alias(k) for k, v in columns.items() if not isinstance(v, (np.ndarray, pl.Series))]
    frame = whole.with_columns(rest).select([pl.col(k).cast(t) for k, t in schema.EVENTS.items()])
    groups = [
        {"group": a, "axis": a, "mesh": "", "ranks": [0, 1, 2, 3], "size": 4, "backend": "fake", "timing": "none"}
        for a in ("dp", "tp", "pp")
    ]
    info = TraceInfo(world_size=64, ranks=(0,), simulated=True)
    listed = pl.DataFrame(table, schema=schema.MODULES)
    return Trace(Tables(frame, modules=listed, groups=pl.DataFrame(groups, schema=schema.GROUPS), info=info))


COUNTING = """
window.received = 0;
window.WebSocket = class extends WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", ({ data }) => { window.received += data.byteLength ?? data.length; });
  }
};
"""
"""Counts in the page what the server sends: bytes of binary messages, characters of the others."""

MEASURED = """
async (steps) => {
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const places = { plot: ".dsx-plot", rows: ".dsx-body", tables: ".dsx-details", found: ".dsx-found",
                   lanes: ".dsx-timeline canvas",
                   map: ".dsx-panel ~ .dsx-panel" };
  const seen = {
    lanes: { attributes: true, attributeFilter: ["data-drawn"] },
    map: { childList: true, subtree: true, characterData: true, attributes: true },
    plot: { attributes: true, attributeFilter: ["data-drawn"] },
    rows: { childList: true, subtree: true, characterData: true, attributes: true },
    tables: { childList: true, subtree: true, characterData: true },
    found: { childList: true },
  };
  async function run() {
    const prompt = document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")[1];
    const before = window.received, began = performance.now();
    let ended = 0, ready = 0;
    jupyterapp.shell.currentWidget.content.activeCellIndex = 1;
    void jupyterapp.commands.execute("notebook:run-cell");
    while (!ended || !ready) {
      await pause(5);
      if (!ended && /[0-9]/.test(prompt.textContent)) ended = performance.now();
      if (document.querySelector(".dsx-tree[data-ready]") && document.querySelector(".dsx-plot[data-drawn]")
          && document.querySelector(places.lanes + "[data-drawn]"))
        ready ||= performance.now();
    }
    return { cell: ended - began, ready: Math.max(0, ready - ended), sent: window.received - before };
  }
  async function timed(selector, kind, value, parts) {
    const top = (shown) => shown.getBoundingClientRect().top;
    const all = [...document.querySelectorAll(selector)].filter((each) => each.checkVisibility());
    if (value.nth !== undefined) all.sort((a, b) => top(a) - top(b));  // rows that were drawn later stand last
    const target = all[value.nth || 0];
    const start = performance.now();
    left = new Set(parts);
    const changed = parts.map((part) => new Promise((done) => {
      const watch = new MutationObserver(() => { watch.disconnect(); left.delete(part); done(); });
      watch.observe(document.querySelector(places[part]), seen[part]);
    }));
    if (kind === "click") target.click();
    else if (kind === "Enter") { target.value = value.text;
           target.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true })); }
    else { target.value = value.text; if (value.index !== undefined) target.selectedIndex = value.index;
           target.dispatchEvent(new Event(kind, { bubbles: true })); }
    await Promise.all(changed);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - start;
  }
  const results = await run();
  await pause(500);
  let at = "", left = new Set();
  // Only now and then: with each new title the browser draws its own window anew, and takes a tenth of a filter's time.
  const telling = setInterval(() => { document.title = `${at}: ${[...left].join(" ")}`; }, 5000);
  for (const [i, [name, ...step]] of steps.entries()) {
    at = `${i} ${name}`;
    (results[name] ||= []).push(await timed(...step));
    await pause(20);
  }
  window.results = results;
  clearInterval(telling);
  document.title = "measured";
}
"""
"""Run the cell, then do one thing after another: milliseconds until all parts of the explorer that depend on it have
changed and were painted."""


def steps() -> list[tuple[str, str, str, dict[str, Any], list[str]]]:
    """(name, selector, event, value, parts that change) of everything that is done; no name: not counted."""
    every, select, rows = ["plot", "rows", "tables", "lanes"], ".dsx-explorer select", ".dsx-body .dsx-row"
    with_map, pattern = ["plot", "rows", "tables", "map"], ".dsx-search"
    # Row 0 is the whole model and row 1 all its layers: between them the figure stays as it is.
    parts = lambda row: every if row > 1 else ["rows", "tables"]  # noqa: E731
    return [
        *(("filter", select, "change", {"index": 1 + i % 4}, every) for i in range(20)),
        ("", select, "change", {"index": 0}, every),
        *(("search", pattern, "Enter", {"text": f"layers.{i}*"}, every) for i in range(1, 21)),
        ("", pattern, "input", {"text": ""}, []),
        ("", pattern, "change", {"text": ""}, every),
        ("", "[data-tab=map]", "click", {}, ["map"]),
        *(("filter, with the map", select, "change", {"index": 1 + i % 4}, with_map) for i in range(20)),
        ("", select, "change", {"index": 0}, with_map),
        ("", "[data-tab=timeline]", "click", {}, ["lanes"]),
        *(("expand", f"{rows} .dsx-twist", "click", {"nth": 2}, ["rows"]) for i in range(10)),
        *(("select", rows, "click", {"nth": i % 14}, parts(i % 14)) for i in range(28)),
        *(("completion", pattern, "input", {"text": f"layers.{i}"}, ["found"]) for i in range(20)),
    ]


def measure(playwright: Any, chromium: Chromium, lab: Any) -> dict[str, Any]:
    """Open the notebook, let go of the browser while it is used and measured, and come back for the results."""
    browser, page = chromium.take(playwright)
    page.add_init_script(COUNTING)
    cells = [
        "import dsexplore\ntrace = dsexplore.load('big.trace')\nimport dsexplore._internal.views.explorer.explorer",
        "trace.explore()",
    ]
    lab.write("load.ipynb", cells)
    lab.open(page, "load.ipynb")
    page.evaluate("() => { jupyterapp.shell.currentWidget.content.activeCellIndex = 0; }")
    lab.wait_for_kernel(page)
    page.evaluate("() => void jupyterapp.commands.execute('notebook:run-cell')")
    first = "() => /[0-9]/.test(document.querySelectorAll('.jp-InputPrompt')[0].textContent)"
    page.wait_for_function(first, timeout=60_000)
    page.evaluate(f"(steps) => void ({MEASURED})(steps)", steps())
    browser.close()
    chromium.wait_for_title("measured")
    browser, page = chromium.take(playwright)
    found: dict[str, Any] = page.evaluate("results")
    browser.close()
    times = {name: [ms / 1e3 for ms in values] for name, values in found.items() if isinstance(values, list)}
    return {**times, "cell": found["cell"] / 1e3, "ready": found["ready"] / 1e3, "sent": found["sent"] / 1e6}


class Chromium:
    """A browser that runs whether or not a driver is attached.

    An attached one is sent every message of the page a second time, as base64 in JSON, and takes on two cores a
    fifth of the time that they have: nobody who uses the explorer has one.
    """

    def __init__(self, executable: str, arguments: list[str], home: Path) -> None:
        options = ["--headless=new", "--window-size=1280,900", "--remote-debugging-port=0", f"--user-data-dir={home}"]
        with (home / "log").open("wb") as log:
            self.process = subprocess.Popen([executable, *arguments, *options, "about:blank"], stdout=log, stderr=log)
        told = home / "DevToolsActivePort"
        try:
            _until(lambda: told.exists() and "\n" in told.read_text())
        except BaseException:
            self.close()
            raise
        self.address = f"http://127.0.0.1:{told.read_text().splitlines()[0]}"

    def take(self, playwright: Any) -> tuple[Any, Any]:
        """The browser and its page, until the browser is closed, which here is to let go of it."""
        browser = playwright.chromium.connect_over_cdp(self.address)
        return browser, browser.contexts[0].pages[0]

    def wait_for_title(self, title: str) -> None:
        """Until the page is called so."""

        titles: list[str] = []

        def named() -> bool:
            with urllib.request.urlopen(f"{self.address}/json/list", timeout=10) as answer:
                titles[:] = [page["title"] for page in json.load(answer)]
            return title in titles

        try:
            _until(named, every=0.5)
        except TimeoutError as error:
            raise TimeoutError(f"the browser stopped; step, name, unchanged parts: {titles}") from error

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)


def timeline_and_map(trace: Trace) -> None:
    """Print how long Python takes for the timeline and the world map of the same trace, without a browser."""
    began = time.perf_counter()
    explorer = trace.timeline(lanes="axis").explore()
    made = time.perf_counter() - began
    rng = np.random.default_rng(1)
    took = []
    for begin in rng.uniform(0, len(trace) * 0.9, 60):
        began = time.perf_counter()
        explorer.zoom(begin, begin + rng.uniform(0.001, 1.0) * len(trace))
        took.append(time.perf_counter() - began)
    began = time.perf_counter()
    trace.world_map()._repr_mimebundle_()
    world = time.perf_counter() - began
    p95 = sorted(took)[int(len(took) * 0.95)]
    met = "met" if p95 <= GOALS["interaction"] else "MISSED"
    print(f"timeline: made in {made:.2f} s; another window, p95 {1e3 * p95:.0f} ms of Python (goal 100 ms: {met})")
    print(f"world map: {world:.2f} s")


def static_view_of_126_layers() -> bool:
    """Print the size of the static view of a real model's step; False where it is larger than the goal."""
    view = pictured_programs.llama(126)._repr_mimebundle_()["text/html"]
    missing = [part for part in ('class="headline"', 'class="tl"', 'class="thin"') if part not in view]
    size, met = len(view.encode()), len(view.encode()) <= GOALS["static view"] and not missing
    print(
        f"static view of a Llama of 126 layers, TP and FSDP2, with headline, timeline and bars: {size / 1e3:.1f} KB "
        f"(goal {GOALS['static view'] / 1e3:.0f} KB: {'met' if met else 'MISSED'})"
    )
    return met


def _until(true: Callable[[], bool], seconds: float = 120, every: float = 0.05) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError("the browser did not get there")
        time.sleep(every)


def report(results: dict[str, Any]) -> bool:
    """Print the table; False where a goal was missed."""
    met = True
    print(f"{'measured':<44}{'value':>12}{'goal':>12}")
    print(f"{'explore() itself, the cell':<44}{results['cell']:>10.2f} s{'–':>12}")
    for name, unit in (("ready", "s"), ("sent", "MB")):
        label = {"ready": "cell ended → tree and figure painted", "sent": "sent to the browser"}[name]
        met &= results[name] <= GOALS[name]
        missed = "" if results[name] <= GOALS[name] else "MISSED"
        goal = f"≤ {GOALS[name]} {unit}"
        print(f"{label:<44}{results[name]:>9.2f} {unit:<2}{goal:>12} {missed}")
    for name in ("filter", "filter, with the map", "search", "expand", "select", "completion"):
        p95 = float(np.percentile(results[name], 95))
        met &= p95 <= GOALS["interaction"]
        label = f"{name}, p95 (median {1e3 * float(np.median(results[name])):.0f} ms)"
        missed = "" if p95 <= GOALS["interaction"] else "MISSED"
        print(f"{label:<44}{1e3 * p95:>9.0f} ms{'≤ 100 ms':>12} {missed}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=1_000_000)
    options = parser.parse_args()
    trace = big_trace(options.modules, options.events)
    began = time.perf_counter()
    size = len(trace._repr_mimebundle_()["text/html"])
    seconds = time.perf_counter() - began
    print(f"{options.modules:,} modules, {options.events:,} events; static view {size / 1e3:.0f} KB in {seconds:.2f} s")
    small = static_view_of_126_layers()
    timeline_and_map(trace)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        factory = SimpleNamespace(mktemp=lambda name: _made(Path(home) / name))
        started = running_lab(factory)
        lab = next(started)
        try:
            trace.save(lab.folder / "big.trace")
            browser = Chromium(chromium(), ARGUMENTS, _made(Path(home) / "chromium"))
            try:
                return 0 if report(measure(playwright, browser, lab)) and small else 1
            finally:
                browser.close()
        finally:
            started.close()


def _made(path: Path) -> Path:
    path.mkdir()
    return path


if __name__ == "__main__":
    sys.exit(main())
