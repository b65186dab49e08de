"""The gallery's rules, on a sample of its views: nothing cut off, no overlapping labels, no faint marks.

Modules: ``views/``.

``docs/pictures.py FOLDER`` asks the same of every view, at every width, light and dark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from docs import pictures
from tests.browser.picture_rules import EMPTY, FAINT, OVERLAP, TWO_LINES

pytestmark = pytest.mark.browser

SAMPLE = (
    "timeline pipeline",
    "predicted timeline",
    "trace nothing",
    "trace uneven experts",
    "log",
    "redistribution",
    "communication sweep",
)
LOOKS = ((320, "light"), (1440, "dark"))


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Callable[[], Any]]:
    return dict(pictures.views(str(tmp_path_factory.mktemp("sweep"))))


@pytest.fixture(scope="module")
def with_bars(browser: Any, chromium_arguments: dict[str, Any]) -> Iterator[Any]:
    """Yield a browser that draws scroll bars, as people's browsers do."""
    opened = browser.browser_type.launch(
        **chromium_arguments, ignore_default_args=["--hide-scrollbars"], timeout=180_000
    )
    yield opened
    opened.close()


@pytest.fixture
def page(with_bars: Any) -> Iterator[Any]:
    context = with_bars.new_context(bypass_csp=True)
    context.set_default_timeout(180_000)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_gallery_breaks_no_rule(name: str, views: Any, page: Any, tmp_path: Path) -> None:
    view = views[name]()
    for width, theme in LOOKS:
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=theme)
        pictures.show(page, view, tmp_path / "shown.html")
        assert pictures.faults_of(page) == [], (width, theme)


@pytest.mark.parametrize(
    ("rule", "body", "words"),
    [
        (
            OVERLAP,
            "<b style='position:absolute;left:10px'>one</b><b style='position:absolute;left:20px'>two</b>",
            "one | two",
        ),
        (
            FAINT,
            "<div class='thin'><i style='display:block;width:9px;height:9px;background:#ccc'></i></div>",
            "faint mark",
        ),
        (
            EMPTY,
            "<svg class='still' aria-label='a' width='100' height='100'><rect width='5' height='5'/></svg>",
            "empty",
        ),
        (
            TWO_LINES,
            "<style>th,td{display:block;border-bottom:1px solid}</style>"
            "<table><thead><tr><th>Questions</th><td></td></tr></thead></table>",
            "Questions",
        ),
    ],
)
def test_a_fault_of_each_kind_is_found(rule: str, body: str, words: str, page: Any) -> None:
    page.set_content(f"<main>{body}</main>")
    arguments = [pictures.LEAST_CONTRAST] if rule is FAINT else []
    found = page.evaluate(rule, *arguments)
    assert len(found) == 1
    assert words in found[0]
