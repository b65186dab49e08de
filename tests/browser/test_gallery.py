"""The gallery's rules find what they are for: labels on one another, faint marks, empty drawings.

Modules: ``views/``.

``docs/pictures.py FOLDER`` asks them of every view, at every width, light and dark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from docs import pictures
from tests.browser.picture_rules import EMPTY, FAINT, OVERLAP

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(bypass_csp=True)
    context.set_default_timeout(180_000)
    yield context.new_page()
    context.close()


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
    ],
)
def test_a_fault_of_each_kind_is_found(rule: str, body: str, words: str, page: Any) -> None:
    page.set_content(f"<main>{body}</main>")
    arguments = [pictures.LEAST_CONTRAST] if rule is FAINT else []
    found = page.evaluate(rule, *arguments)
    assert len(found) == 1
    assert words in found[0]
