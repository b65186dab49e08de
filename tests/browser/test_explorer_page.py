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
    save_changes(callbacks) { window.sent.push("state"); window.told = callbacks.iopub.status; },
    send(content, callbacks) { window.sent.push(content.type); if (callbacks) window.told = callbacks.iopub.status; },
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
