"""Two ranks do the same where their traces differ by the rank's number alone."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from dsexplore._internal.analysis.likeness import digests, first_difference
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables, TraceInfo

GROUP = {"rank": 0, "step": 0, "seq": 0, "op": "send", "raw_op": "c10d::send", "phase": "forward", "trigger": "Net"}


def tables(rank: int, ranks: list[int], **changed: Any) -> Tables:
    """Return a rank that sends to the next one of its group."""
    empty: dict[str, Any] = dict.fromkeys(schema.EVENTS)
    place = ranks.index(rank)
    row = {
        **empty,
        **GROUP,
        "owner": "Net",
        "axis": "pp",
        "group": str(ranks),
        "group_size": len(ranks),
        "message_bytes": 8,
        "wire_bytes": 8,
        "dtype": "float32",
        "shape": [2],
        "implicit": False,
        "cause": "",
        "source": "train.py:3",
        "is_async": False,
        "is_object": False,
        "rank": rank,
        "peer": ranks[(place + 1) % len(ranks)],
        **changed,
    }
    group = (str(ranks), "pp", "pp=4", ranks, len(ranks), "fake", "none")
    module = "Net"
    parameter = (rank, module, "Net.w", [8], [2 if rank else 4], "float32", "S(0)", "pp=4", 32, 8, True, "")
    return Tables(
        events=pl.DataFrame([row], schema=schema.EVENTS),
        groups=pl.DataFrame([group], schema=schema.GROUPS, orient="row"),
        parameters=pl.DataFrame([parameter], schema=schema.PARAMETERS, orient="row"),
        info=TraceInfo(ranks=(rank,)),
    )


def test_the_numbers_of_rank_group_and_peer_do_not_count() -> None:
    one, other = tables(1, [0, 1, 2, 3]), tables(7, [4, 5, 6, 7])
    assert digests(one) == digests(other)
    assert first_difference(one, other) == ""


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"message_bytes": 16},
            "send of 8 B at train.py:3 of one is send of 16 B at train.py:3 of the other (number 0)",
        ),
        ({"peer": 3}, "send of 8 B"),
        ({"source": "train.py:4"}, "train.py:4 of the other"),
        ({"root": 0}, "send of 8 B"),
    ],
)
def test_all_else_counts(changed: dict[str, Any], said: str) -> None:
    one, other = tables(1, [0, 1, 2, 3]), tables(1, [0, 1, 2, 3], **changed)
    assert digests(one) != digests(other)
    assert said in first_difference(one, other)


def test_groups_of_another_layout_differ() -> None:
    assert digests(tables(1, [0, 1, 2, 3])) != digests(tables(1, [1, 3, 5, 7]))


def test_local_shapes_count_unless_explained() -> None:
    one, other = tables(0, [0, 1, 2, 3]), tables(1, [0, 1, 2, 3])
    assert digests(one) != digests(other)
    (one_digest, one_whole), (other_digest, other_whole) = digests(one, {"Net.w"}), digests(other, {"Net.w"})
    assert one_digest == other_digest
    assert one_whole != other_whole
    assert first_difference(one, other) == "parameter Net.w of one is parameter Net.w of the other (number 1)"


def test_what_one_does_more_is_said() -> None:
    one = tables(1, [0, 1, 2, 3])
    empty = Tables()
    assert first_difference(one, empty).endswith("of one is nothing of the other (number 0)")
    assert first_difference(empty, one).endswith("is of one alone")
