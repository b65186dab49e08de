"""Explorers whose kernel is busy, has ended or never answers: what they say, and what they take back.

Modules: ``views/explorer/``, ``views/widgets/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dsexplore._internal.trace.trace import Trace
from tests.browser.bare_page import draw, explorers_of, opened_page, recorded_step

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    yield from opened_page(browser)


@pytest.fixture(scope="module")
def recorded() -> Trace:
    return recorded_step()


@pytest.fixture(scope="module")
def explorers(recorded: Trace, make_timed: Any) -> dict[str, Any]:
    return explorers_of(recorded, make_timed)


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
