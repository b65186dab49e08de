"""One number for one thing: headline, tree and status line, read from the page, and frames, of the gallery's programs.

Modules: ``views/explorer/``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs import pictured_programs as programs
from dsexplore._internal.trace.schema import IN_STEPS
from dsexplore._internal.trace.trace import Trace
from tests.browser.bare_page import draw
from tests.views import traces

pytestmark = pytest.mark.browser

PROGRAMS: dict[str, Callable[[], Trace]] = {
    "llama": programs.llama,
    "mixtral": programs.mixtral,
    "pipeline": programs.pipeline,
    "ddp": programs.real_ddp,
    "2,000 modules": lambda: traces.layered(650),
    "long names": lambda: traces.of_names([f"{'a_long_name_' * 8}{i}" for i in range(4)]),
    "nothing": programs.nothing,
}
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SIZE = re.compile(r"([\d.,]+) (B|KiB|MiB|GiB)\b")


def size_in(text: str) -> tuple[float, float]:
    """Return the first size in a text, as bytes, and half a unit of its last digit."""
    found = SIZE.search(text)
    assert found, text
    number, unit = found[1].replace(",", ""), UNITS[found[2]]
    return float(number) * unit, unit * 0.5 * 10.0 ** -len(number.partition(".")[2])


def static_and_live(page: Any, trace: Trace, folder: Path) -> tuple[str, str, str]:
    """Return the headline of what a step sends, the numbers of the tree's rows without parents in the static page, and
    the explorer's status."""
    page.goto(trace.to_html(folder / "shown.html").as_uri())
    verdicts = page.locator(".verdict, .headline p").all_inner_texts()
    bytes_at = page.locator(".row.head .c").all_inner_texts().index("bytes")
    rows = page.locator(".tree > * > .row:not(.head), .tree > .row:not(.head)")
    cells = [row.locator(".c").all_inner_texts()[bytes_at] for row in rows.all()]
    draw(page, trace.explore().widget)
    page.wait_for_selector(".dsx-plot[data-drawn],canvas[data-drawn]")
    sent = next((verdict for verdict in verdicts if SIZE.search(verdict)), "")  # after a rank that is late
    return sent, " + ".join(cells), page.locator(".dsx-status").inner_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_headline_tree_status_and_frames_agree(name: str, page: Any, tmp_path: Path) -> None:
    trace = PROGRAMS[name]()
    headline, tree, status = static_and_live(page, trace, tmp_path)
    events = trace.events.filter(IN_STEPS)
    total = float(events["wire_bytes"].sum())
    assert int(trace.by_op()["wire_bytes"].sum()) == int(trace.events["wire_bytes"].sum())
    shown, half = size_in(status)
    assert shown == pytest.approx(float(trace.events["wire_bytes"].sum()), abs=half)
    if not total:
        assert "0 of 0 collectives" in status
        return
    tree_sizes = [size_in(cell) for cell in tree.split(" + ") if SIZE.search(cell)]
    assert sum(size for size, _ in tree_sizes) == pytest.approx(total, abs=sum(half for _, half in tree_sizes))
    per = max(len(trace.info.ranks), 1) * trace.headline().steps
    shown, half = size_in(headline)
    assert shown == pytest.approx(total / per, abs=half + total / per * 1e-5)
    assert page.errors == []
