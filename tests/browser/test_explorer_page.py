"""What the explorer's page does by itself, in a bare page with a stub of the widget model."""

from __future__ import annotations

from typing import Any

import pytest

from dsexplore.views.widgets.explorer import ExplorerWidget

pytestmark = pytest.mark.browser

WAITING = """
async (source) => {
  window.sent = [];
  const module = await import(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  window.model = module.hastened({
    get() {}, set() {}, off() {},
    on(name, listener) { if (name === "change") window.answer = listener; },
    save_changes() { window.sent.push("state"); },
    send(content) { window.sent.push(content.type); },
  });
}
"""


def test_one_who_waits_for_an_answer_says_so_once(page: Any) -> None:
    page.clock.install(time=0)
    page.goto("about:blank")
    page.clock.pause_at(1000)
    page.evaluate(WAITING, ExplorerWidget._esm)
    page.evaluate("model.save_changes()")
    assert page.evaluate("sent") == ["state"]
    page.clock.run_for(100)
    assert page.evaluate("sent.splice(0)") == ["state", "waiting"]
    page.evaluate("model.send({ type: 'again' })")
    page.evaluate("answer()")
    page.clock.run_for(100)
    assert page.evaluate("sent") == ["again"]
