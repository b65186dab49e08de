"""The view of a `HangReport`."""

from __future__ import annotations

from dsexplore._internal.views.ranks.hang_view import HangView
from tests.analysis.hangs.test_reasons import FIRST, WAITS, report


def test_the_sentence_is_the_verdict_and_the_missing_rank_is_marked() -> None:
    found = report({0: [FIRST, WAITS], 1: [FIRST], 2: [FIRST, WAITS]})
    assert found.culprits == (1,)
    page = HangView(found).html()
    assert f'<p class="verdict">{found.verdict()[0].upper()}{found.verdict()[1:8]}' in page.replace("<wbr>", "")
    assert '<span class="rank-boxes"><span>0</span><span>2</span></span>' in page
    assert '<span class="rank-boxes"><span class="bad">1!</span></span>' in page


def test_of_many_ranks_the_missing_one_is_drawn() -> None:
    calls = {rank: [FIRST, WAITS] if rank != 90 else [FIRST] for rank in range(100)}
    page = HangView(report(calls)).html()
    assert page.count("<span>") == 64
    assert "and 35 more" in page
    assert '<span class="bad">90!</span>' in page


def test_no_hang_marks_nobody() -> None:
    page = HangView(report({0: [FIRST], 1: [FIRST]})).html()
    assert "No hang" in page
    assert 'class="bad"' not in page
