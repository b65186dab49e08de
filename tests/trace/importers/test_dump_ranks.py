"""Which rank left which dump, by any name.

Modules: ``trace/importers/dumps.py``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.dumps import ranks_of_files


def groups(*ranks: list[int]) -> dict[str, Any]:
    return {"pg_config": {str(i): {"name": str(i), "desc": "", "ranks": str(each)} for i, each in enumerate(ranks)}}


@pytest.mark.parametrize(
    "names",
    [
        ["_dump_0", "_dump_1", "_dump_10"],
        ["nccl_trace_rank_0", "nccl_trace_rank_1", "nccl_trace_rank_10"],
        ["job4711.rank0.json", "job4711.rank1.json", "job4711.rank10.json"],
        ["rank0_host7.pickle.gz", "rank1_host7.pickle.gz", "rank10_host8.pickle.gz"],
        ["0.json", "1.json", "10.json"],
        ["trace-0-of-16.json", "trace-1-of-16.json", "trace-10-of-16.json"],
    ],
)
def test_the_name_says_it(names: list[str]) -> None:
    found = ranks_of_files({Path(name): {} for name in names})
    assert [found[Path(name)] for name in names] == [0, 1, 10]


def test_a_name_that_its_groups_contradict_does_not_count() -> None:
    contents = {Path("gpu0"): groups([0, 1, 2, 3], [2, 3], [0, 2]), Path("gpu1"): groups([0, 1, 2, 3], [2, 3], [1, 3])}
    assert ranks_of_files(contents) == {Path("gpu0"): 2, Path("gpu1"): 3}


def test_a_name_counts_where_the_groups_number_the_ranks_of_a_part_of_the_job() -> None:
    contents = {Path(f"r{rank}"): groups([0, 1]) for rank in (4, 5, 6)}
    assert list(ranks_of_files(contents).values()) == [4, 5, 6]


def test_the_dump_itself_counts_first() -> None:
    assert ranks_of_files({Path("a_1"): {"rank": 5}, Path("a_2"): {"rank": "6"}}) == {Path("a_1"): 5, Path("a_2"): 6}


def test_says_what_to_do_where_nothing_says_it() -> None:
    with pytest.raises(TraceFileError, match=r"2 dumps, one first, do not say which rank .* such as trace_3"):
        ranks_of_files({Path("one"): groups([0, 1]), Path("two"): groups([0, 1])})


def test_a_time_in_a_name_is_no_rank() -> None:
    names = ["dump_1712345678901", "dump_1712345678902"]
    with pytest.raises(TraceFileError, match="do not say which rank each is from"):
        ranks_of_files({Path(name): {} for name in names})
    with_ranks = [f"3_{names[0]}", f"4_{names[1]}"]
    assert list(ranks_of_files({Path(name): {} for name in with_ranks}).values()) == [3, 4]
