"""Logs tell how long ranks waited for each other: made-up logs with known times, and those of real ranks.

Modules: ``comm/logs/log_content.py``, ``comm/logs/log_summary.py``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest

import dsexplore.comm as dist
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.comm.logs.log_content import call_waits, straggler_analysis, waiting_of_lines
from dsexplore._internal.comm.logs.log_records import Record
from dsexplore._internal.comm.logs.log_summary import CommsSummary
from dsexplore._internal.comm.logs.sent_calls import MOST_OF_SERIES, last_calls, numbered, sent_calls, tables_of

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
    (differs,) = first["differences"]
    assert differs.startswith("collective 4 of group 0 differs: rank 0 all_reduce SUM of 64 B float32 at ")
    assert differs.endswith(", rank 1 made no such call")
    assert second["differences"] == [differs]
    assert first["straggler_analysis"]["all_reduce"][64]["count"] == 3
    assert "extra" not in second["straggler_analysis"]
    together = [seen["straggler_analysis"]["all_reduce"][64] for seen in (first, second)]
    assert together[0]["total_comm_lat_ms"] == together[1]["total_comm_lat_ms"] > 0
    assert f"note: {differs}" in first["shown"]
    assert second["shown"] == ""


def logged(*calls: tuple[str, int, float], ranks: int = 2) -> list[Record]:
    """Lines of the log: name, bytes and milliseconds of calls of so many ranks."""
    log = dist.CommsLogger({"comms_logger": {"enabled": True}}, epoch=0)
    for name, size, took in calls:
        log.append("all_reduce", name, took, size, group_size=ranks)
    return log.records


def skew_of(*logs: list[Record]) -> Skew:
    """Return the skew of the logs of several ranks."""
    return Skew(tables_of([sent_calls(last_calls(numbered(log, {})), rank) for rank, log in enumerate(logs)]))


def test_waiting_is_what_a_rank_took_beyond_the_last_to_arrive() -> None:
    times = [(5.0, 2.0, 1.0), (1.0, 6.0, 1.0), (2.0, 4.0, 1.0)]
    logs = [logged(*(("all_reduce", 8, took) for took in of_rank), ranks=3) for of_rank in times]
    skew = skew_of(*logs)
    rows = skew.to_frame().select("number", "duration", "waited", "late_ranks").rows()
    assert [row[0] for row in rows] == [0, 1, 2]
    assert [row[1] for row in rows] == pytest.approx([1e-3, 2e-3, 1e-3])
    assert [row[2] for row in rows] == pytest.approx([5e-3, 6e-3, 0])
    assert [row[3] for row in rows] == [[1, 2], [0], []]
    waits = list(call_waits(logs[2], {}, skew, 2))
    assert [wait.waited for wait in waits] == pytest.approx([1e-3, 2e-3, 0])
    mine = straggler_analysis(waits)["all_reduce"][8]
    assert (mine["count"], mine["late_ranks"]) == (3, {1: 1, 2: 1, 0: 1})
    assert (mine["total_comm_lat_ms"], mine["total_straggler_ms"]) == pytest.approx((4, 3))


def test_a_log_of_one_rank_has_nobody_to_be_compared_with() -> None:
    skew = skew_of(logged(("all_reduce", 8, 1.0)))
    assert skew.verdict().startswith("No collective was measured on two ranks")
    assert skew.to_frame().is_empty()


def test_calls_are_matched_by_their_number_where_a_rank_no_longer_has_all() -> None:
    whole, rest = logged(*[("all_reduce", 8, took) for took in (9.0, 9.0, 3.0)]), logged(("all_reduce", 8, 1.0))
    (series,) = {series for series, _, _ in numbered(rest, {})}
    sent = [sent_calls(numbered(whole, {}), 0), sent_calls(numbered(rest, {series: 2}), 1)]
    row = Skew(tables_of(sent)).to_frame().row(0, named=True)
    assert (row["ranks"], row["waiting"]) == ([0, 1], pytest.approx([2e-3, 0]))


def test_of_a_long_log_the_last_calls_of_each_group_are_sent() -> None:
    calls = list(numbered(logged(*[("all_reduce", 8, 1.0)] * (MOST_OF_SERIES + 5), ("other", 8, 1.0)), {}))
    sent = sent_calls(last_calls(calls), 0)
    assert len(sent.number) == MOST_OF_SERIES + 1
    assert (sent.number[0], sent.number[-1]) == (5, 0)
    assert len(sent.kinds) == 2


def test_logs_of_a_hundred_ranks_name_the_late_one() -> None:
    logs = [logged(*[("all_reduce", 8, 1.0 if rank == 70 else 10.0)] * 20, ranks=100) for rank in range(100)]
    assert skew_of(*logs).to_frame()["late_ranks"].to_list() == [[70]] * 20


UPSTREAM = ([3.0, 1.0, 2.0, 4.0, 1.5], [1.0, 3.0, 2.5, 2.0, 4.0])
"""Milliseconds of five all_reduces of one size on two ranks, from DeepSpeed's pull request 8199."""


def waits_of_appended(latencies: tuple[list[float], ...]) -> list[Any]:
    """Return what a rank waited in calls that took so many milliseconds, after the log has been summed up."""
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


def test_each_line_has_what_was_waited_in_its_own_calls() -> None:
    mine = logged(("a", 64, 5.0), ("b", 64, 1.0), ("a", 128, 1.0), ("a", 64, 1.0), ("mine alone", 8, 1.0))
    others = logged(("b", 64, 4.0), ("a", 64, 1.0), ("a", 128, 3.0), ("a", 64, 7.0))
    waits = list(call_waits(mine, {}, skew_of(mine, others), 0))
    summary = CommsSummary(mine, waiting=waiting_of_lines(waits))
    rows = summary.to_frame().select("name", "message_bytes", "count", "waiting_ms", "late_ranks").rows()
    assert rows == [
        ("a", 64, 2, pytest.approx(2.0), [0, 1]),
        ("a", 128, 1, 0.0, [0]),
        ("b", 64, 1, 0.0, [0]),
        ("mine alone", 8, 1, None, None),
    ]
    assert [line.rsplit("  ", 2)[1:] for line in summary.table_text().splitlines()] == [
        ["waiting", "late ranks"],
        ["2 ms", "rank 0 in 1, rank 1 in 1"],
        ["0 s", "rank 0 in 1"],
        ["0 s", "rank 0 in 1"],
        ["–", "–"],
    ]
    assert "waiting" not in CommsSummary(mine).table_text()


def test_calls_of_unequal_sizes_are_beside_the_line_of_the_ranks_own_size() -> None:
    mine, others = logged(("all_to_all", 64, 1.0)), logged(("all_to_all", 96, 3.0))
    skew = skew_of(mine, others)
    assert skew.to_frame().select("message_bytes", "late_ranks").rows() == [(96, [0])]
    for rank, records, size, waited in ((0, mine, 64, 0.0), (1, others, 96, 2.0)):
        waits = list(call_waits(records, {}, skew, rank))
        assert straggler_analysis(waits)["all_to_all"][size]["total_straggler_ms"] == pytest.approx(waited)
        (of_line,) = waiting_of_lines(waits).values()
        assert (of_line.count, of_line.mean, of_line.late) == (1, pytest.approx(waited / 1e3), {0: 1})


def test_a_call_that_stays_in_a_long_log_as_it_runs_is_matched_with_no_later_one() -> None:
    log = dist.CommsLogger({"comms_logger": {"enabled": True}}, epoch=0, most=1)

    def durations() -> list[tuple[int, float]]:
        sent = sent_calls(numbered(log._comparable_records(), log._dropped.numbered), 0)
        return list(zip(sent.number.tolist(), ((sent.end - sent.start) / 1e9).tolist(), strict=True))

    log.append("all_reduce", "all_reduce", 9.0, 64, group_size=2)
    (running,) = log.records
    running.issued.end, ended = None, running.issued.end
    for number in range(1, 3000):
        log.append("all_reduce", "all_reduce", float(number), 64, group_size=2)
    running.issued.end = ended
    assert log.records[0].issued is running.issued
    assert durations() == [(number, pytest.approx(number / 1e3)) for number in range(2047, 3000)]
    for number in range(3000, 4100):
        log.append("all_reduce", "all_reduce", float(number), 64, group_size=2)
    assert durations()[-1] == (4099, pytest.approx(4.099))
    assert log.get_total_operations() == 4100
