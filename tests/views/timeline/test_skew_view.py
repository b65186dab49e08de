"""The view of a skew: verdict, a lane per rank, and a sentence where there are no times."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_bytes
from dsexplore._internal.views.timeline.skew_view import _labels, window
from tests.analysis.late_programs import Program

LATE = Program(ranks=4, steps=6, jitter=1e-3, late_rank=1, late_by=0.2)
SENTENCE = "Rank 1 arrives 200 ms late at 6 of 6 all_reduces; those transfers take 1.7–3.3 ms."


def html_of(skew: Skew) -> str:
    return skew._repr_mimebundle_()["text/html"]


def test_the_sentence_stands_above_a_lane_per_rank() -> None:
    shown = html_of(Skew(LATE.trace()))
    assert f'<p class="verdict">{SENTENCE}</p>' in shown
    assert re.findall(r'<span class="late">(rank \d)</span>', shown) == ["rank 1"]
    assert len(re.findall(r'class="lane"', shown)) == 4
    assert shown.count("+200 ms</b>") + shown.count("+201 ms</b>") >= 2
    assert 'aria-label="rank 0: waits 1.2' in shown
    assert 'aria-label="rank 1: waits 0 s' in shown
    assert "all ranks on one clock" in shown
    words = re.sub(r"<[^>]+>", " ", shown.partition("</style>")[2])
    assert " late " in words.partition("rank 0")[0]


def test_the_largest_lateness_has_a_label_where_not_all_have_space() -> None:
    shown = _labels([(0.6, 0.001), (0.7, 0.03), (0.8, 0.002), (0.1, 0.004)], 1.0)
    assert re.findall(r"\+([\d.]+ ms)", shown) == ["4 ms", "30 ms"]


def test_waiting_and_transfer_stand_side_by_side() -> None:
    """Each transfer begins where its waiting ends, and the lanes end with the last transfer."""
    shown = html_of(Skew(LATE.trace()))
    first = shown.partition('aria-label="rank 0')[2].partition("</svg>")[0]
    waiting, transfers = (
        [tuple(map(float, box)) for box in re.findall(r"M([\d.]+) 0h([\d.]+)v12", path)]
        for path in first.split("<path")[1:3]
    )
    assert len(waiting) == len(transfers) == 6
    for (begin, length), (transfer, _) in zip(waiting, transfers, strict=True):
        assert begin + length == pytest.approx(transfer, abs=0.2)
    assert sum(transfers[-1]) == pytest.approx(1000, abs=2)


def test_the_text_has_the_sentence_and_a_line_per_rank() -> None:
    lines = Skew(LATE.trace())._repr_mimebundle_()["text/plain"].splitlines()
    assert lines[0] == SENTENCE
    assert lines[1].startswith("  rank 1: late at 6 of 6 collectives; the others waited 3.6")
    assert len(lines) == 5
    many = Skew(Program(ranks=20, steps=4, jitter=1e-3).trace())._repr_mimebundle_()["text/plain"].splitlines()
    assert many[-1] == '  12 more ranks: to_frame(by="rank")'


def test_where_the_table_counts_more_late_arrivals_than_the_sentence_it_says_what_each_counts() -> None:
    """Rank 5 is late to its pair 12 times; in the collectives that follow it is late too, or held up."""
    held_up = Skew(replace(LATE, ranks=8, steps=12, late_rank=5, mesh=True).trace())
    assert held_up.verdict().startswith("Rank 5 arrives 200 ms late at 12 of 12 all_reduces on pair;")
    assert held_up.to_frame(by="rank").filter(rank=5)["late"].item() > 12
    said = "Late at: each collective in which others waited for the rank. The verdict does not count those"
    for text in held_up._repr_mimebundle_().values():
        assert said in text
    for text in Skew(LATE.trace())._repr_mimebundle_().values():  # 6 of 6 in both
        assert said not in text


def test_of_many_collectives_and_ranks_those_with_most_waiting_are_drawn(tmp_path: Path) -> None:
    paused = Program(ranks=24, steps=200, jitter=1e-4, late_rank=20, late_by=0.5, late_from=150)
    skew = Skew(paused.trace())
    drawn = window(skew)
    assert (drawn.collectives, drawn.all_collectives, len(drawn.ranks), drawn.hidden_ranks) == (24, 200, 16, 8)
    assert 20 in drawn.ranks
    assert drawn.arrivals["number"].min() >= 150  # type: ignore[operator]
    shown = html_of(skew)
    assert "8 more ranks are not drawn." in shown
    assert "200 collectives, of which the consecutive 24 with most waiting are drawn" in shown
    page = skew.to_html(tmp_path / "skew.html").read_text()
    assert len(re.findall(r'class="lane"', page)) == 24
    assert len(shown) < 60_000


def test_where_nobody_is_late_no_rank_is_marked() -> None:
    shown = html_of(Skew(replace(LATE, late_rank=None).trace()))
    assert "No rank comes late again and again" in shown
    assert 'class="late"' not in shown
    assert '<i class="l"' not in shown


def test_a_simulated_trace_says_that_it_has_no_times() -> None:
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(1))
    shown = trace.skew()._repr_mimebundle_()
    for text in shown.values():
        assert "A simulated trace has no times, so it does not show who is late" in text
    with pytest.raises(TypeError, match="no figure: A simulated trace has no times"):
        trace.skew().figure()


def test_names_are_data() -> None:
    tables = LATE.trace()
    named = tables.events.with_columns(source=pl.lit("<script>.py:1"), group=pl.lit("all"))
    skew = Skew(replace(tables, events=named))
    assert "<script>" not in html_of(skew)
    assert "<script>" not in Trace(skew.tables)._repr_mimebundle_()["text/html"]


def test_the_figure_has_a_bar_for_each_part() -> None:
    figure = Skew(LATE.trace()).figure()
    assert [one.name for one in figure.data] == ["waiting", "transfer", "late"]
    waiting, transfer, late = figure.data
    assert len(waiting.x) == len(transfer.x) == 24
    assert len(late.x) == 6
    assert list(late.x) == pytest.approx([200] * 6, abs=5)
    assert [b + x for b, x in zip(waiting.base, waiting.x, strict=True)] == pytest.approx(list(transfer.base))
    with pytest.raises(UsageError, match="has no argument 'kind'"):
        Skew(LATE.trace()).figure(kind="time")


def test_clocks_are_said_with_their_error() -> None:
    apart = html_of(Skew(replace(LATE, clocks="apart", steps=12).trace()))
    assert re.search(r"clocks aligned by the ends of collectives, ± [\d.]+ .s", apart)
    unknown = html_of(Skew(replace(LATE, clocks="unknown").trace()))
    assert "clocks may differ: a rank counts as late where both its start and its duration say so" in unknown


def test_a_page_of_the_trace_has_the_picture() -> None:
    shown = Trace(LATE.trace())._repr_mimebundle_()["text/html"]
    (link,) = re.findall(r'href="#([^"]+)">who waits', shown)
    assert shown.count(f'id="{link}"') == 1
    assert "Who waits for whom" in shown


def test_a_trace_with_a_late_rank_opens_who_waits_and_one_without_its_timeline() -> None:
    for program, opened in ((LATE, "Who waits for whom"), (replace(LATE, late_rank=None), "Timeline of")):
        shown = Trace(program.trace())._repr_mimebundle_()["text/html"]
        sections = re.findall(r'<details class="(?:part|tl-part)"( open|)><summary>([^<]*)</summary>', shown)
        in_time = [(bool(is_open), title) for is_open, title in sections if title.startswith(("Who waits", "Timeline"))]
        assert [title.startswith(opened) for is_open, title in in_time if is_open] == [True]
        assert len(in_time) == 2


def test_a_trace_says_how_its_bytes_per_rank_and_step_make_up_the_sums() -> None:
    trace = Trace(LATE.trace())
    shown = trace._repr_mimebundle_()["text/html"]
    each = trace.headline().to_frame()["wire_bytes"].sum()
    assert f"summed over 4 ranks and 6 steps: 24 × {format_bytes(each)} = {format_bytes(24 * each)}" in shown


def test_an_arrival_that_an_earlier_collective_held_up_is_not_drawn_as_late() -> None:
    skew = Skew(LATE.trace())
    late = pl.col("is_late") & (pl.col("number") > 2)
    for held_up, boxes in ((pl.lit(False), 6), (late, 3)):
        skew.__dict__["arrivals"] = skew.arrivals.with_columns(is_held_up=held_up)
        lane = html_of(skew).partition('aria-label="rank 1')[2].partition("</svg>")[0]
        assert lane.rpartition("<path")[2].count("M") == boxes
