"""What ranks waited for each other: from made-up logs of known times, and from those of real ranks."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dsexplore.comm as dist
from dsexplore.analysis.arrivals import LATE
from dsexplore.comm.log_summary import CommsSummary
from dsexplore.comm.rank_logs import RankLog, Series, rank_log
from dsexplore.comm.straggler import bounded, late_ranks, straggler_report
from dsexplore.comm.waiting import waiting_of_lines

Ranks = Callable[..., list[Any]]


def uneven_logs() -> dict[str, Any]:
    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(16))
    if rank == 1:  # logged by one rank only
        dist.comms_logger.append("all_reduce", "extra", 1.0, 64)
    dist.comms_logger.enabled = rank == 0
    dist.all_reduce(torch.ones(16))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = dist.log_summary(show_straggler=True, return_dict=True)
    assert result is not None
    return {**result, "shown": shown.getvalue()}


@pytest.mark.processes
def test_ranks_that_logged_different_ops_get_a_report_that_says_so(ranks: Ranks) -> None:
    first, second = ranks(2, uneven_logs)
    assert first["differences"][0].startswith("call 3 on group 0 differs: rank 0 all_reduce SUM of 64 B float32 at ")
    assert first["differences"].pop(0).endswith(", rank 1 made no such call")
    second["differences"].pop(0)
    wanted = [
        "all_reduce on group 0, numbers of calls differ: rank 0 logged 4, rank 1 logged 3; the first are compared",
        "extra on group 0, numbers of calls differ: rank 0 logged 0, rank 1 logged 1; the first are compared",
    ]
    assert first["differences"] == second["differences"] == wanted
    assert first["straggler_analysis"]["all_reduce"][64]["count"] == 3
    together = [seen["straggler_analysis"]["all_reduce"][64] for seen in (first, second)]
    assert together[0]["total_comm_lat_ms"] == together[1]["total_comm_lat_ms"] > 0
    assert "difference: all_reduce on group 0" in first["shown"]
    assert second["shown"] == ""


@pytest.mark.parametrize(("count", "last"), [(19, "18"), (20, "19"), (21, "… and 1 more"), (1021, "… and 1,001 more")])
def test_of_many_differences_the_first_twenty_are_listed(count: int, last: str) -> None:
    listed = bounded([str(number) for number in range(count)])
    assert (listed[-1], len(listed)) == (last, min(count, 21))


def series(*calls: tuple[int, float], first: int = 0) -> Series:
    """Calls of these sizes in bytes and times in seconds."""
    sizes, seconds = zip(*calls, strict=True)
    return Series(np.array(sizes), np.array(seconds, float), first=first)


def test_waiting_is_what_a_rank_took_beyond_the_last_to_arrive() -> None:
    key = ("0", (0, 1, 2), "all_reduce")
    logs = [
        RankLog(0, {key: series((8, 5e-3), (8, 2e-3), (16, 1e-3))}),
        RankLog(1, {key: series((8, 1e-3), (8, 6e-3), (16, np.nan))}),
        RankLog(2, {key: series((8, 2e-3), (8, 4e-3), (32, 1e-3))}),
    ]
    report = straggler_report(logs)
    (op,) = report.ops
    assert (op.count, op.communication_ms) == (2, pytest.approx(3.0))
    assert op.waiting_ms == pytest.approx({0: 4.0, 1: 4.0, 2: 3.0})
    assert op.last == {0: 1, 1: 1, 2: 0}
    assert op.kept_waiting_ms == pytest.approx({0: 3.0, 1: 2.5, 2: 0.0})
    assert op.worst == [0, 1]
    assert report.differences == ("all_reduce on group 0, call 2: sizes differ: ranks 0–1 16 B, rank 2 32 B",)
    mine = report.by_name(rank=2)["all_reduce"][8]
    assert (mine["count"], mine["total_comm_lat_ms"], mine["total_straggler_ms"]) == (
        2,
        pytest.approx(3),
        pytest.approx(3),
    )
    assert str(report) == report.text()
    assert report.text().splitlines() == [
        "Waiting for each other, 3 ranks (communication: the rank that waited least)",
        "op          group  ranks  message  count  communication   waiting  kept others waiting",
        "all_reduce  0          3      8 B      2       1.500 ms  1.833 ms  rank 0: 1 × 3 ms, rank 1: 1 × 2.5 ms",
        "difference: all_reduce on group 0, call 2: sizes differ: ranks 0–1 16 B, rank 2 32 B",
    ]
    rows = report.to_frame().select("message_bytes", "rank", "waiting_ms", "last", "late", "kept_waiting_ms").rows()
    assert rows == [
        (8, 0, 2.0, 1, 1, pytest.approx(3.0)),
        (8, 1, 2.0, 1, 1, pytest.approx(2.5)),
        (8, 2, 1.5, 0, 1, 0.0),
    ]


def test_a_report_without_times_says_so() -> None:
    key = ("0", (0,), "broadcast")
    assert str(straggler_report([RankLog(0, {key: series((8, np.nan))})])).splitlines() == [
        "Waiting for each other, 1 rank (communication: the rank that waited least)",
        "nothing to compare: no collective of the log has a time on each rank of its group",
    ]


def test_calls_are_matched_by_their_number_where_a_rank_no_longer_has_all() -> None:
    key = ("0", (0, 1), "broadcast")
    whole = RankLog(0, {key: series((8, 9.0), (8, 9.0), (8, 3e-3))})
    (op,) = straggler_report([whole, RankLog(1, {key: series((8, 1e-3), first=2)})]).ops
    assert (op.count, op.waiting_ms) == (1, {0: pytest.approx(2.0), 1: 0.0})


def test_a_report_of_a_thousand_ranks_is_short_and_its_worst_ranks_come_first() -> None:
    world = tuple(range(1024))
    keys = [("0", world, f"op {number}") for number in range(40)]
    logs = []
    for rank in world:
        late = rank in (7, 900)
        calls = series(*[(1024 * (1 + i % 2), 1e-3 if late and i % 7 == rank % 7 else 1e-2) for i in range(50)])
        logs.append(RankLog(rank, dict.fromkeys(keys, calls)))
    del logs[5].series[keys[0]]  # type: ignore[attr-defined]
    report = straggler_report(logs)
    assert len(report.ops) == 2 * 39
    assert set(report.ops[0].worst[:2]) == {7, 900}
    text = report.text()
    assert len(text) < 8_000
    assert "… and 48 more lines: to_frame() has all" in text
    assert (
        "op 0 on group 0, numbers of calls differ: ranks 0–4, 6–1023 logged 50, rank 5 logged 0; the first are compared"
        in text
    )
    assert report.to_frame().height == 2 * 39 * 1024


UPSTREAM = ([3.0, 1.0, 2.0, 4.0, 1.5], [1.0, 3.0, 2.5, 2.0, 4.0])
"""Milliseconds of five all_reduces of one size on two ranks, from DeepSpeed's pull request 8199."""


def waits_of_appended(latencies: tuple[list[float], ...]) -> list[Any]:
    """On a rank: what it waited in calls that took so many milliseconds, after the log has been summed up."""
    import dsexplore.comm as dist

    dist.configure(enabled=True)
    log = dist.comms_logger
    for took in latencies[dist.get_rank()]:
        log.append("all_reduce", "all_reduce", took, 1024)
    log.get_operation_summary("all_reduce")
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = dist.log_summary(show_straggler=True, return_dict=True)
    assert result is not None
    frame = log.summary(show_straggler=True).to_frame()
    return [
        result["straggler_analysis"]["all_reduce"][1024],
        shown.getvalue(),
        frame.select("waiting_ms", "late_ranks").rows(),
    ]


@pytest.mark.processes
def test_waits_are_those_of_the_same_call_however_long_the_others_took(ranks: Ranks) -> None:
    """DeepSpeed sorted each rank's times before it compared them, and printed 1.00 ms where 4.00 ms were waited."""
    (first, shown, beside), (second, nothing, _) = ranks(2, waits_of_appended, UPSTREAM)
    assert first["total_comm_lat_ms"] == second["total_comm_lat_ms"] == pytest.approx(7.5, abs=1e-5)
    assert first["total_straggler_ms"] == pytest.approx(4.0, abs=1e-5)
    assert second["total_straggler_ms"] == pytest.approx(5.0, abs=1e-5)
    assert first["late_ranks"] == second["late_ranks"] == {0: 3, 1: 2}
    assert nothing == ""
    head, line, *_ = shown.splitlines()
    assert head.split()[-3:] == ["waiting", "late", "ranks"]
    assert line.endswith("  800 µs  rank 0 in 3, rank 1 in 2")
    assert beside == [(pytest.approx(0.8, abs=1e-5), [0, 1])]


def test_who_is_late_is_the_rule_of_a_traces_skew() -> None:
    shortest = np.array([1e-3, 1e-3, 1e-3, 1.0])
    waits = np.array([[3e-2, 2e-5, 2 * LATE, 4e-2], [2e-2, 1e-5, 0.0, 0.0], [0.0, 0.0, 0.5 * LATE, 0.0]])
    assert late_ranks(shortest, waits).T.tolist() == [
        [False, False, True],
        [False, False, False],
        [False, True, True],
        [False, False, False],  # a twentieth of a second is nothing in a collective of a second
    ]


def logged(*calls: tuple[str, int, float]) -> list[Any]:
    """Lines of the log: name, bytes and milliseconds of calls on two ranks."""
    log = dist.CommsLogger({"comms_logger": {"enabled": True}}, epoch=0)
    for name, size, took in calls:
        log.append("all_reduce", name, took, size, group_size=2)
    return log.records


def test_each_line_has_what_was_waited_in_its_own_calls() -> None:
    mine = logged(("a", 64, 5.0), ("b", 64, 1.0), ("a", 128, 1.0), ("a", 64, 1.0), ("mine alone", 8, 1.0))
    others = logged(("b", 64, 4.0), ("a", 64, 1.0), ("a", 128, 3.0), ("a", 64, 7.0))
    report = straggler_report([rank_log(mine, 0), rank_log(others, 1)])
    waiting = waiting_of_lines(mine, {}, report, 0)
    summary = CommsSummary(mine, waiting=waiting)
    rows = summary.to_frame().select("name", "message_bytes", "count", "waiting_ms", "late_ranks").rows()
    assert rows == [
        ("a", 64, 2, pytest.approx(2.0), [0, 1]),
        ("a", 128, 1, 0.0, [0]),
        ("b", 64, 1, 0.0, [0]),
        ("mine alone", 8, 1, None, None),
    ]
    assert [line.rsplit("  ", 2)[1:] for line in summary.text().splitlines()] == [
        ["waiting", "late ranks"],
        ["2 ms", "rank 0 in 1, rank 1 in 1"],
        ["0 s", "rank 0 in 1"],
        ["0 s", "rank 0 in 1"],
        ["–", "–"],
    ]
    assert "waiting" not in CommsSummary(mine).text()


def test_calls_of_unequal_sizes_are_beside_the_line_of_the_ranks_own_size() -> None:
    mine, others = logged(("all_to_all", 64, 1.0)), logged(("all_to_all", 96, 3.0))
    report = straggler_report([rank_log(mine, 0), rank_log(others, 1)])
    (op,) = report.ops
    assert (op.message_bytes, op.late) == (96, {0: 1, 1: 0})
    for rank, records, size, waited in ((0, mine, 64, 0.0), (1, others, 96, 2.0)):
        assert report.by_name(rank)["all_to_all"][size]["total_straggler_ms"] == pytest.approx(waited)
        (of_line,) = waiting_of_lines(records, {}, report, rank).values()
        assert (of_line.count, of_line.mean, of_line.late) == (1, pytest.approx(waited / 1e3), {0: 1})


def test_a_call_that_stays_in_a_long_log_as_it_runs_is_matched_with_no_later_one() -> None:
    log = dist.CommsLogger({"comms_logger": {"enabled": True}}, epoch=0, most=1)
    log.append("all_reduce", "all_reduce", 9.0, 64, group_size=2)
    (running,) = log.records
    running.issued.end, ended = None, running.issued.end
    for number in range(1, 3000):
        log.append("all_reduce", "all_reduce", float(number), 64, group_size=2)
    running.issued.end = ended
    assert log.records[0].issued is running.issued
    (series,) = rank_log(log._in_place(), 0, log._earlier.matched).series.values()
    assert (series.first, series.end) == (2047, 3000)
    assert series.seconds.tolist() == pytest.approx([number / 1e3 for number in range(2047, 3000)])
    for number in range(3000, 4100):
        log.append("all_reduce", "all_reduce", float(number), 64, group_size=2)
    (series,) = rank_log(log._in_place(), 0, log._earlier.matched).series.values()
    assert (series.end, series.seconds[-1]) == (4100, pytest.approx(4.099))
    assert log.get_total_operations() == 4100
