"""A widget's own script in a bare page, on a model that Python's widget has filled; and the rules of axe-core."""

from __future__ import annotations

import base64
import importlib.resources
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plotly.offline import get_plotlyjs
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dsexplore
from dsexplore._internal.trace.trace import Trace

RULES = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
RULES_OF_COLORS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
"""Those of `RULES` that a dark page may break although the light one does not."""


AXE = """async (runOnly) => (await axe.run(document, { runOnly }))
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


class ResidualNetForCausalLM(nn.Module):
    """Its name is a word as long as those of real models."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


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


def opened_page(browser: Any) -> Iterator[Any]:
    """Yield a page that takes scripts where the view's own policy lets none run."""
    context = browser.new_context(bypass_csp=True, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(120_000)
    opened = context.new_page()
    opened.errors = []
    opened.on("pageerror", lambda error: opened.errors.append(str(error)))
    yield opened
    context.close()


def recorded_step() -> Trace:
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


def explorers_of(recorded: Trace, make_timed: Any) -> dict[str, Any]:
    """Return a widget for each tab that draws something else, with a selected module."""
    live = {"explorer": "timeline", "tab of the map": "map", "tab of findings": "findings"}
    shown = {name: recorded.explore(tab=tab) for name, tab in live.items()}
    for explorer in shown.values():
        explorer.select("ResidualNetForCausalLM.layers.0")
    return {**shown, "timeline explorer": make_timed().timeline().explore()}
