"""A progress bar in a real JupyterLab: there while work lasts, and gone from the page and from the file after it.

Modules: ``progress.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.browser

CELLS = [
    """
import os, time
os.environ.pop("DSEXPLORE_PROGRESS", None)
from dsexplore._internal import progress
progress.DELAY = progress.INTERVAL = 0
with progress.track("reading ranks", 8, "files") as work:
    work.advance(3)
    while not os.path.exists("go"):
        time.sleep(0.01)
print("read")
""".strip(),
    "done = True",
]


def test_a_bar_is_there_while_work_lasts_and_leaves_nothing(lab: Any, page: Any, shot: Any) -> None:
    path = lab.write("progress.ipynb", CELLS)
    lab.open(page, "progress.ipynb")
    lab.start_all(page)
    page.locator(".jp-OutputArea-output div.widget-label", has_text="reading ranks: 3 of 8 files").wait_for()
    bar = page.locator(".jp-OutputArea-output .progress-bar")
    bar.wait_for()
    shot(page.locator(".jp-Cell").first, "progress_bar")
    (path.parent / "go").touch()
    page.locator(".jp-OutputArea-output").get_by_text("read", exact=True).wait_for()
    bar.wait_for(state="detached")
    lab.wait_for_kernel(page)
    lab.save(page)
    shot(page.locator(".jp-Cell").first, "progress_bar_after")
    outputs = json.loads(path.read_text())["cells"][0]["outputs"]
    assert "widget" not in json.dumps(outputs)
    assert "read\n" in json.dumps(outputs[-1]["text"]).encode().decode("unicode_escape")
