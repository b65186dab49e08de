"""Ranks that stand for others, as text and as weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace import files
from dsexplore._internal.trace.represented_ranks import count_in, joined, ranks_in, ranks_text, weights
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace, load


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1, 2, 3, 8, 16, 24], "0-3, 8-24/8"),
        ([1, 2], "1-2"),
        ([1, 9], "1, 9"),
        ([0, 1, 2, 3, 7, 11], "0-3, 7, 11"),
        (range(0, 16384, 8), "0-16376/8"),
    ],
)
def test_text(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


@given(st.sets(st.integers(0, 200), min_size=1))
def test_text_and_back(ranks: set[int]) -> None:
    text = ranks_text(ranks)
    assert ranks_in(text) == sorted(ranks)
    assert count_in(text) == len(ranks)


@pytest.mark.parametrize("text", ["", "a", "1-", "1,2", "3-9/", "3-9/0"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is neither a rank nor a range"):
        ranks_in(text)


def test_a_rank_that_stands_for_no_other_counts_once() -> None:
    assert weights((0, 3), ()) == {0: 1, 3: 1}
    assert weights((0, 3), ("0-2", "3")) == {0: 3, 3: 1}


def test_of_several_traces() -> None:
    assert joined([((0,), ()), ((3, 5), ())]) == ()
    assert joined([((3, 5), ("3-4", "5-9")), ((0,), ())]) == ("0", "3-4", "5-9")


@pytest.fixture
def trace(make: Callable[..., Tables]) -> Trace:
    """Rank 0 stands for itself, rank 1 for three."""
    tables = make([{"rank": rank, "message_bytes": 100 * (rank + 1)} for rank in (0, 1)])
    info = TraceInfo(world_size=4, ranks=(0, 1), stands_for=("0", "1-3"), simulated=True)
    return Trace(replace(tables, info=info))


def test_totals_count_a_rank_as_often_as_it_stands_for_others(trace: Trace) -> None:
    (row,) = trace.by_op().iter_rows(named=True)
    assert (row["count"], row["message_bytes"]) == (4, 100 + 3 * 200)
    assert trace.info.ranks_stood_for == 4
    assert repr(trace) == "<Trace: 2 collectives of 2 ranks that stand for 4, world of 4>"


def test_the_screen_says_what_is_summed(trace: Trace) -> None:
    text = trace._repr_mimebundle_()["text/plain"]
    assert text.startswith("Trace: 4 collectives, summed over all 4 ranks; 2 ranks of 4, simulated")
    assert "  Wire bytes, summed over all 4 ranks:" in text.splitlines()
    assert "the 2 ranks in the trace, each once" in trace._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize("name", ["one.parquet", "several"])
def test_files_keep_it(trace: Trace, tmp_path: Path, name: str) -> None:
    assert load(trace.save(tmp_path / name)).info == trace.info


@pytest.mark.parametrize("stands_for", [("0",), ("0", "so many")])
def test_a_file_with_other_texts_is_damaged(trace: Trace, tmp_path: Path, stands_for: tuple[str, ...]) -> None:
    tables = trace.tables
    files.save(replace(tables, info=replace(tables.info, stands_for=stands_for)), tmp_path / "x.parquet")
    with pytest.raises(TraceFileError, match="is damaged"):
        load(tmp_path / "x.parquet")
