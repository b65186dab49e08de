"""The comms log's summary as HTML and as figures."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from dsexplore._internal.comm.logs.log_summary import Waiting
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.errors import UsageError
from tests.comm.single_calls import ticking


@pytest.fixture
def log() -> CommsLogger:
    """Return a log of three ops on two groups."""
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0)
    log.append("all_reduce", "all_reduce", latency=4.0, msg_size=8_000_000, group_size=8)
    log.append("all_reduce", "all_reduce", latency=2.0, msg_size=8_000_000, group_size=8)
    log.append("all_gather", "<script>alert(1)</script>", latency=1.0, msg_size=1024, group_size=4)
    log.append("barrier", "barrier", latency=0.5, msg_size=0, group_size=8)
    return log


def test_the_page_holds_every_line_with_units(log: CommsLogger) -> None:
    shown = log._repr_mimebundle_()["text/html"]
    assert "4 calls, 15.3 MiB in messages, times that add up to 7.5 ms" in shown
    rows = re.findall(r"<tr>(.*?)</tr>", shown)[1:]
    cells = [[re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)] for row in rows]
    assert cells[0] == [
        "all_reduce", "8 ranks", "8", "7.6 MiB", "2", "", "6 ms", "3 ms", "2 ms", "4 ms",
        "2.67 GB/s", "4.67 GB/s",
    ]  # fmt: skip
    assert cells[2] == [
        "barrier", "8 ranks", "8", "–", "1", "", "500 µs", "500 µs", "500 µs", "500 µs", "–", "–",
    ]  # fmt: skip


def test_a_column_that_never_changes_is_said_below_the_table(log: CommsLogger) -> None:
    shown = log._repr_mimebundle_()["text/html"]
    assert ">group</th>" in shown
    assert ">layer</th>" not in shown
    assert '<p class="dim">layer: <bdi>dsexplore.comm</bdi></p>' in shown
    summary = log.summary()
    summary.rows[0].layer = "torch.distributed"
    shown = summary._repr_mimebundle_()["text/html"]
    assert ">layer</th>" in shown
    assert "layer: " not in shown


def test_ranks_that_were_compared_have_waits_and_late_ranks_beside_each_line(log: CommsLogger) -> None:
    compared = log.summary(show_straggler=True)  # with no other rank, as there is no world
    shown = compared._repr_mimebundle_()["text/html"]
    assert re.findall(r"<th.*?>([^<]*)</th>", shown)[-2:] == ["waiting", "late ranks"]
    assert "the part of the mean in which this rank waited" in shown
    (line, *_) = compared.rows
    line.waiting = Waiting(2, 3e-3, Counter({7: 2, 1: 1, 2: 1, 3: 1, 5: 1, 6: 1}))
    row = re.findall(r"<tr>(.*?)</tr>", compared._repr_mimebundle_()["text/html"])[1]
    assert [re.sub(r"<[^>]*>", "", cell) for cell in re.findall(r"<td.*?>(.*?)</td>", row)][-2:] == [
        "1.5 ms",
        "rank 7 in 2, rank 1 in 1, rank 2 in 1, rank 3 in 1 … and 2 more",
    ]
    assert "late ranks" not in log._repr_mimebundle_()["text/html"]


def test_names_are_data(log: CommsLogger) -> None:
    shown = log._repr_mimebundle_()["text/html"]
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert all("<script>" not in str(y) for y in log.figure().data[0].y)


def test_a_long_log_is_cut_and_says_so(tmp_path: Path) -> None:
    log = CommsLogger(CommsLoggerConfig(enabled=True), clock=ticking(), epoch=0)
    for size in range(1, 501):
        log.append("all_reduce", "all_reduce", latency=1.0, msg_size=size * 1024, group_size=8)
    shown = log._repr_mimebundle_()["text/html"]
    assert len(shown.encode()) <= 60_000
    assert "… and 420 more lines: <code>to_frame()</code> has all" in shown
    assert "more lines" not in log.summary().to_html(tmp_path / "log.html").read_text()


def test_the_same_log_gives_the_same_bytes(log: CommsLogger) -> None:
    assert log._repr_mimebundle_() == log._repr_mimebundle_()
    assert log._repr_mimebundle_()["text/plain"] == str(log.summary())


def test_the_time_figure_has_a_bar_per_line(log: CommsLogger) -> None:
    (bars,) = log.figure().data
    assert list(bars.x) == pytest.approx([6.0, 1.0, 0.5])
    assert bars.y[0] == "all_reduce · group 8 ranks (8) · 7.6 MiB"
    assert list(bars.text) == ["2 ×", "1 ×", "1 ×"]


def test_the_bandwidth_figure_has_a_line_per_op_and_group(log: CommsLogger) -> None:
    reduced, gathered = log.figure(kind="bandwidth").data
    assert (list(reduced.x), list(reduced.y)) == ([8_000_000], [pytest.approx(16e6 / 6e-3 / 1e9 * 1.75)])
    assert gathered.name == "all_gather · group 4 ranks (4)"


def test_a_figure_that_is_none_is_named(log: CommsLogger) -> None:
    with pytest.raises(UsageError, match=r"figure\(kind='pie'\): no such figure; kinds are time, bandwidth"):
        log.figure(kind="pie")
    with pytest.raises(UsageError, match="has no argument 'size'; it takes kind"):
        log.figure(size=3)


def test_an_empty_log_says_so() -> None:
    bundle = CommsLogger()._repr_mimebundle_()
    assert bundle["text/plain"] == "Nothing was logged."
    assert "Nothing was logged." in bundle["text/html"]
    assert CommsLogger().figure().data[0].x is not None
