"""Sends and their receives, in traces of several ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.trace.unmatched import COLUMNS, notes, unmatched

Rows = list[dict[str, Any]]


def trace_of(make: Any, rows: Rows, ranks: tuple[int, ...] = (0, 1)) -> Any:
    return make([{"group": "0", "group_size": 4, "trigger": "", **row} for row in rows], ranks=ranks)


def send(rank: int, peer: int, size: int = 64, line: int = 10) -> dict[str, Any]:
    return {"rank": rank, "op": "send", "peer": peer, "message_bytes": size, "source": f"train.py:{line}"}


def recv(rank: int, peer: int | None, size: int = 64, line: int = 20) -> dict[str, Any]:
    return {"rank": rank, "op": "recv", "peer": peer, "message_bytes": size, "source": f"train.py:{line}"}


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{"rank": 0, "op": "all_reduce"}],
        [send(0, 1), recv(1, 0)],
        [send(0, 1, 8), send(0, 1, 4), recv(1, 0, 4), recv(1, 0, 8)],  # tags may change the order
        [send(0, 1), recv(1, None)],
        [send(0, 1), send(0, 1), recv(1, None), recv(1, 0)],
        [send(0, 3), recv(1, 2)],  # ranks that were not recorded
        [{**send(0, 1), "is_object": True}],
    ],
    ids=["nothing", "a collective", "one", "another order", "any", "any and one", "not recorded", "objects"],
)
def test_what_fits(make: Any, rows: Rows) -> None:
    tables = trace_of(make, rows)
    found = unmatched(tables)
    assert found.is_empty()
    assert dict(found.schema) == COLUMNS
    assert notes(tables) == []


@pytest.mark.parametrize(
    ("rows", "expected", "says"),
    [
        (
            [send(0, 1, 64), recv(1, 0, 32)],
            ("send", 0, 1, 64, 32, "train.py:10", "train.py:20"),
            "rank 0 sends 64 B to rank 1 at train.py:10, which receives 32 B at train.py:20",
        ),
        (
            [send(0, 1), recv(1, 0), send(0, 1, 4, line=11)],
            ("send", 0, 1, 4, None, "train.py:11", "train.py:20"),
            "rank 0 sends 4 B to rank 1 at train.py:11, and rank 1 does not receive them (its last recv from there is "
            "at train.py:20)",
        ),
        (
            [send(0, 1)],
            ("send", 0, 1, 64, None, "train.py:10", ""),
            "rank 0 sends 64 B to rank 1 at train.py:10, and rank 1 does not receive them",
        ),
        (
            [recv(1, 0), recv(1, 0, line=21), send(0, 1)],
            ("send", 0, 1, None, 64, "train.py:10", "train.py:21"),
            "rank 1 receives 64 B from rank 0 at train.py:21, and rank 0 does not send them (its last send there is at "
            "train.py:10)",
        ),
        (
            [send(0, 1), send(0, 1, 4, line=11), recv(1, None)],
            ("send", 0, 1, 4, None, "train.py:11", ""),
            "rank 0 sends 4 B to rank 1 at train.py:11, and rank 1 does not receive them",
        ),
    ],
    ids=["another size", "one too many", "none", "one too few", "more than any takes"],
)
def test_what_does_not_fit(make: Any, rows: Rows, expected: tuple[Any, ...], says: str) -> None:
    tables = trace_of(make, rows)
    assert unmatched(tables).drop("group").rows() == [expected]
    assert notes(tables) == [says]


def splits(rank: int, sent: list[int] | None, received: list[int] | None) -> dict[str, Any]:
    sizes = [sum(each) * 4 for each in (sent, received) if each is not None]
    return {
        "rank": rank,
        "op": "all_to_all",
        "group": "tp",
        "group_size": 2,
        "send_splits": sent,
        "recv_splits": received,
        "message_bytes": max(sizes, default=64),
        "source": f"moe.py:{rank}",
    }


def test_parts_of_an_uneven_all_to_all(make: Any) -> None:
    fits = [splits(0, [1, 2], [1, 3]), splits(1, [3, 4], [2, 4])]
    assert unmatched(trace_of(make, fits)).is_empty()
    wrong = [fits[0], splits(1, [5, 4], [2, 4])]
    tables = trace_of(make, wrong)
    (note,) = notes(tables)
    assert note == "in an all_to_all rank 1 sends 20 B to rank 0 at moe.py:1, which receives 12 B at moe.py:0"
    even = [splits(0, [4, 4], None), splits(1, None, [4, 4])]
    assert unmatched(trace_of(make, even)).is_empty()
    uneven = [splits(0, [5, 3], None), splits(1, None, [4, 4])]
    found = unmatched(trace_of(make, uneven)).select("sender", "receiver", "sent_bytes", "received_bytes").rows()
    assert found == [(0, 0, 20, 16), (0, 1, 12, 16)]


@pytest.mark.parametrize(
    ("row", "ranks"),
    [
        ({"send_splits": [8]}, [0, 1]),
        ({"recv_splits": []}, [0, 1]),
        ({"dtype": ""}, [0, 1]),
        ({"dtype": "complex"}, [0, 1]),
        ({}, [0]),
        ({}, [3, 2]),
    ],
    ids=["too few", "none", "unknown dtype", "no dtype", "group without a rank", "other group"],
)
def test_parts_that_are_not_known_are_no_mismatch(make: Any, row: dict[str, Any], ranks: list[int]) -> None:
    rows = [splits(0, [1, 2], [1, 3]), splits(1, [3, 4], [2, 4])]
    tables = trace_of(make, [{**one, **row} for one in rows])
    tables = replace(tables, groups=tables.groups.with_columns(ranks=pl.lit(ranks, pl.List(pl.Int32))))
    assert unmatched(tables).is_empty()


def test_many_are_counted(make: Any) -> None:
    found = notes(trace_of(make, [send(0, 1, size) for size in range(1, 6)]))
    assert len(found) == 4
    assert found[-1] == "2 more messages do not fit together: see Trace.unmatched()"


def recorded(program: Callable[[int], None], ranks: int = 2) -> Trace:
    traces = []
    for rank in range(ranks):
        with dsexplore.commtrace(world_size=ranks, rank=rank) as trace:
            program(rank)
        traces.append(trace)
    return Trace.merge(traces)


def ring(rank: int) -> None:
    dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, torch.ones(4), 1 - rank), dist.P2POp(dist.irecv, torch.ones(4), 1 - rank)]
    )


def wrong(rank: int) -> None:
    if rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(3), 0)


def test_simulated_ranks_that_are_merged(tmp_path: Any) -> None:
    """A merged trace notes it once, also after it was saved and loaded."""
    good = recorded(ring)
    assert good.unmatched().is_empty()
    assert good.info.notes == ()
    bad = recorded(wrong)
    (note,) = bad.info.notes
    assert note.startswith("rank 0 sends 16 B to rank 1 at ")
    assert ", which receives 12 B at " in note
    assert note.count("test_unmatched.py:") == 2
    again = dsexplore.load(bad.save(tmp_path / "ranks"))
    assert again.info.notes == bad.info.notes
    assert again.unmatched().equals(bad.unmatched())
