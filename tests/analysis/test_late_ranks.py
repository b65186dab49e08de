"""The rank that comes late is named, always and alone: of random programs, and of real ranks on gloo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsexplore
from dsexplore._internal.analysis.skew import Skew, range_text
from dsexplore._internal.trace.trace import Trace
from tests.analysis.late_programs import Program, drawn, is_right

ONE_OF_FOUR = Program(ranks=4, steps=6, jitter=1e-3, late_rank=1, late_by=0.2)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None)
def test_the_late_rank_is_named_and_no_other(seed: int) -> None:
    """More are checked by ``python -m tests.analysis.late_programs 1000``."""
    assert is_right(drawn(seed))


@given(st.integers(0, 2**32 - 1), st.integers(2, 16), st.integers(3, 40), st.booleans())
@settings(max_examples=60, deadline=None)
def test_ranks_that_vary_alone_are_not_late(seed: int, ranks: int, steps: int, mesh: bool) -> None:
    assert Skew(Program(ranks, steps, 1e-3, seed=seed, mesh=mesh).trace()).late_ranks == ()


def test_who_is_late_by_how_much_and_since_when_is_said_in_one_sentence() -> None:
    assert Skew(ONE_OF_FOUR.trace()).verdict() == (
        "Rank 1 arrives 200 ms late at 6 of 6 all_reduces; those transfers take 1.7–3.3 ms."
    )
    later = Program(ranks=4, steps=20, jitter=1e-3, late_rank=3, late_by=0.1, late_from=7)
    assert Skew(later.trace()).verdict().startswith("Rank 3 arrives 100 ms late at 13 of 20 all_reduces, since step 7;")
    unmarked = later.trace()
    unmarked = replace(unmarked, events=unmarked.events.with_columns(step=pl.lit(0, pl.Int32)))
    assert "late at 13 of 20 all_reduces, since number 8;" in Skew(unmarked).verdict()
    varying = replace(ONE_OF_FOUR, how_late="by other times each time", steps=12)
    assert "Rank 1 arrives 110–260 ms late at 12 of 12 all_reduces;" in Skew(varying.trace()).verdict()
    nobody = replace(ONE_OF_FOUR, late_rank=None)
    assert Skew(nobody.trace()).verdict().startswith("No rank comes late again and again: ranks start a collective ")


def test_a_rank_that_is_held_up_in_its_pair_is_not_late_itself() -> None:
    """Rank 5 is late to its pair, so both of it come late to what follows: that is rank 5's doing."""
    program = Program(ranks=8, steps=12, jitter=1e-4, late_rank=5, late_by=0.05, mesh=True)
    skew = Skew(program.trace())
    (late,) = skew.late_ranks
    assert (late.rank, late.late, late.collectives, late.axis) == (5, 12, 12, "pair")
    assert set(late.ops) == {"all_reduce"}
    arrived = skew.arrivals
    long = arrived.filter(pl.col("is_held_up") & (pl.col("late_by") > 0.04))
    assert set(long["rank"]) == {4, 5}
    assert Trace(program.trace()).skew().trace().events["rank"].unique().sort().to_list() == [4, 5]


def test_two_late_ranks_are_both_named() -> None:
    program = Program(ranks=6, steps=10, jitter=1e-3, late_rank=2, late_by=0.3)
    tables = program.trace()
    also = pl.col("rank") == 4
    shifted = tables.events.with_columns(start=pl.when(also).then(pl.col("start") + 100_000_000).otherwise("start"))
    skew = Skew(replace(tables, events=shifted))
    assert [late.rank for late in skew.late_ranks] == [2]  # rank 4 holds up nobody: rank 2 comes later still
    assert skew.to_frame()["late_ranks"].to_list() == [[2]] * 10


def test_one_long_pause_is_named_where_it_cost_much_of_the_time() -> None:
    paused = replace(ONE_OF_FOUR, steps=8, late_from=7)
    assert Skew(paused.trace()).verdict().startswith("Rank 1 arrives 200 ms late at 1 of 8 all_reduces, since step 7;")
    short = replace(paused, late_by=0.02)
    assert Skew(short.trace()).late_ranks == ()


def test_the_headline_begins_with_it_and_the_findings_have_it() -> None:
    trace = Trace(ONE_OF_FOUR.trace())
    first = trace.headline().sentences[0]
    assert (first.about, first.text) == ("skew", trace.skew().verdict())
    assert len(trace.headline().trace(0)) == 24
    (finding,) = trace.findings()
    assert (finding.rule, finding.source, finding.module, finding.count) == ("late_rank", "train.py:7", "Net", 1.0)
    assert finding.why.startswith("rank 1 arrives 200 ms late at 6 of 6 all_reduces; the other ranks wait 3.6")
    assert "look at what rank 1 alone does before train.py:7" in finding.change
    assert finding.spare_seconds == pytest.approx(3.6, abs=0.1)
    page = trace._repr_mimebundle_()["text/html"]
    assert page.index("Rank 1 arrives 200 ms late") < page.index("sends")
    nobody = Trace(replace(ONE_OF_FOUR, late_rank=None).trace())
    assert nobody.headline().sentences[0].about == "axes"
    assert len(nobody.findings()) == 0


def test_without_times_there_is_nobody_to_name() -> None:
    import torch
    import torch.distributed as dist

    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(1))
    assert trace.skew().verdict().startswith("A simulated trace has no times, so it does not show who is late: ")
    assert trace.skew().to_frame().is_empty()
    alone = Trace(ONE_OF_FOUR.trace()).where(rank=0)
    assert alone.skew().verdict().startswith("No collective was measured on two ranks")
    assert dsexplore.Trace().skew().verdict() == "The trace has no times, so it does not show who is late."


def test_collectives_behind_the_first_that_ranks_called_otherwise_are_not_compared() -> None:
    tables = ONE_OF_FOUR.trace()
    other = (pl.col("rank") == 2) & (pl.col("group_seq") == 3)
    parted = tables.events.with_columns(op=pl.when(other).then(pl.lit("barrier")).otherwise("op"))
    assert Skew(replace(tables, events=parted)).to_frame()["number"].to_list() == [0, 1, 2]


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.002, 0.005, "2–5 ms"),
        (0.0021, 0.00213, "2.1 ms"),
        (0.0005, 0.0031, "0.5–3.1 ms"),
        (1.5, 2, "1.5–2 s"),
        (0, 0, "0 ns"),
    ],
)
def test_a_range_has_its_unit_once(low: float, high: float, text: str) -> None:
    assert range_text(low, high) == text


LIVE = """
import time, torch, torch.distributed as dist, dsexplore
with dsexplore.commtrace(save=folder) as trace:
    for step in range(6):
        if rank == late:
            time.sleep(0.2)
        dist.all_reduce(torch.ones(1024))
        trace.step()
"""


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
@pytest.mark.parametrize("late", [0, 1, 2])
def test_the_late_rank_of_real_ranks_is_named(late: int, tmp_path: Path) -> None:
    """More of them: ``python -m tests.analysis.late_live 20``."""
    dsexplore.run_ranks(LIVE, 3, namespace={"folder": str(tmp_path), "late": late}).check()
    trace = dsexplore.load(tmp_path)
    assert trace.info.clock_offsets == (0, 0, 0)
    found = trace.skew().late_ranks[0]
    assert (found.rank, found.collectives) == (late, 6)
    assert found.late >= 4  # of a busy machine another one may be later once
    assert found.late_by > 0.05
    assert trace.headline().sentences[0].text.startswith(f"Rank {late} arrives ")
