"""A long log: its last calls one by one, and sums of the others."""

from __future__ import annotations

import pytest

from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.errors import UsageError
from tests.comm.single_calls import one_logged, ticking


def test_a_long_log_keeps_the_last_calls_and_the_sums_of_all() -> None:
    whole, bounded = (
        CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0, most=m) for m in (9999, 50)
    )
    for number in range(3000):
        for log in (whole, bounded):
            name, size = ("odd", 64) if number % 2 else ("even", 1024)
            log.append("all_reduce", name, latency=1.0 + number / 1000, msg_size=size, group_size=4)
    assert (
        whole.to_frame()
        .drop("total_ms", "mean_ms", "algbw_gb_per_s", "busbw_gb_per_s")
        .equals(bounded.to_frame().drop("total_ms", "mean_ms", "algbw_gb_per_s", "busbw_gb_per_s"))
    )
    assert bounded.to_frame()["total_ms"].to_list() == pytest.approx(whole.to_frame()["total_ms"].to_list())
    assert len(bounded.records) == 50 + (3000 - 50) % 1024
    assert bounded.get_total_operations() == whole.get_total_operations() == 3000
    assert bounded.get_operation_names() == ["even", "odd"]
    assert [(size, data[0]) for name in ("even", "odd") for size, data in bounded.comms_dict[name].items()] == [
        (1024, 1500),
        (64, 1500),
    ]
    mine, full = (log.get_operation_summary("odd") for log in (bounded, whole))
    assert mine is not None
    assert full is not None
    assert mine[64]["count"] == mine[64]["groups"]["4 ranks"]["count"] == 1500
    assert mine[64]["total_latency_ms"] == pytest.approx(full[64]["total_latency_ms"])
    trace = bounded.trace()
    assert len(trace) == len(bounded.records)
    assert trace.info.notes[-1] == f"The {3000 - len(trace):,} calls before these are in the log's summary alone."
    last = {record.issued.end for record in whole.records[-len(trace) :]}
    assert {record.issued.end for record in bounded.records} == last
    bounded.reset_data()
    assert not bounded.has_data()
    assert bounded.get_total_operations() == 0
    with pytest.raises(UsageError, match="most=0 keeps no call"):
        bounded.most = 0


def test_a_call_under_way_keeps_its_place_in_a_long_log() -> None:
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0, most=1)
    call, pending, _ = one_logged("pending")
    call.is_wanted = True
    log._recording.add(pending)
    for _ in range(3000):
        log.append("all_reduce", "all_reduce", latency=1.0, msg_size=64)
    assert log.records[0].name == "pending"
    pending.end = 5000
    for _ in range(1024):
        log.append("all_reduce", "all_reduce", latency=1.0, msg_size=64)
    assert "pending" not in {record.name for record in log.records}
    (line,) = (line for line in log.summary().rows if line.name == "pending")
    assert (line.count, line.total) == (1, 5e-6)
