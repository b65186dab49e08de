"""Texts that ranks wrote, labeled with their ranks."""

from __future__ import annotations

import pytest

from dsexplore._internal.views.ranks import rank_texts
from dsexplore._internal.views.ranks.rank_texts import RankText, as_html, as_text, shortened, together

TEXTS = {0: RankText("zero\n", "1"), 2: RankText("same\n"), 3: RankText("same\n"), 1: RankText("")}


def test_identical_texts_stand_as_one_and_silent_ranks_nowhere() -> None:
    assert [ranks for ranks, _ in together(TEXTS)] == [(0,), (2, 3)]
    assert as_html({1: RankText("")}) == ""


def test_rank_0_is_open_and_the_others_are_folded() -> None:
    shown = as_html(TEXTS)
    assert "<details open><summary>rank 0</summary><pre>zero</pre>" in shown
    assert "<details><summary>ranks 2, 3</summary><pre>same</pre></details>" in shown
    assert '<pre class="value">1</pre>' in shown


def test_what_a_rank_prints_is_text_and_no_markup() -> None:
    assert "<script>" not in as_html({0: RankText("<script>alert(1)</script>")})


def test_lines_of_a_terminal_have_their_ranks_in_front() -> None:
    assert as_text(TEXTS) == "[rank 0] zero\n[rank 0] 1\n[ranks 2, 3] same"


def test_of_a_long_text_beginning_and_end_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_texts, "MOST", 10)
    assert shortened("a" * 5 + "b" * 2048 + "c" * 5) == "aaaaa\n… 2 KiB of output left out …\nccccc"


def test_a_carriage_return_overwrites_its_line() -> None:
    assert shortened("step 1\rstep 2\r\ndone") == "step 2\ndone"
