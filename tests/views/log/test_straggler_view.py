"""The straggler report as HTML and as a figure."""

from __future__ import annotations

import numpy as np
import pytest

from dsexplore.comm.rank_logs import RankLog, Series
from dsexplore.comm.straggler import StragglerReport, straggler_report
from dsexplore.errors import UsageError


def report(ranks: int, late: int, ops: int = 1) -> StragglerReport:
    """Each rank makes three calls of each op, which take 10 ms, and 1 ms the rank that is late."""
    world = tuple(range(ranks))
    keys = [("0", world, f"<b>op {number}") for number in range(ops)]
    logs = []
    for rank in world:
        calls = Series(np.full(3, 2048), np.full(3, 1e-3 if rank == late else 1e-2))
        logs.append(RankLog(rank, dict.fromkeys(keys, calls)))
    return straggler_report(logs)


def test_a_row_names_the_worst_rank_and_names_are_data() -> None:
    shown = report(4, late=3)._repr_mimebundle_()["text/html"]
    assert "4 ranks; most was waited for rank 3" in shown
    assert "rank 3: 3 × 9 ms" in shown
    assert "2 KiB" in shown
    assert "<b>op" not in shown
    assert "&lt;b&gt;op 0" in shown


def test_the_figure_has_a_bar_per_rank_that_was_waited_for() -> None:
    (bars,) = report(4, late=2).figure().data
    assert list(bars.y) == ["rank 2"]
    assert list(bars.x) == [pytest.approx(27.0)]


def test_many_ranks_and_ops_are_bounded() -> None:
    world = tuple(range(300))
    rng = np.random.default_rng(0)
    keys = [("0", world, f"op {number}") for number in range(60)]
    times = rng.uniform(1e-3, 1e-2, (300, 50))
    found = straggler_report(
        [RankLog(rank, dict.fromkeys(keys, Series(np.full(50, 64), times[rank]))) for rank in world]
    )
    figure = found.figure()
    assert len(figure.data) == 7
    assert figure.data[-1].name == "54 more"
    assert all(len(bars.y) == 24 for bars in figure.data)
    assert "24 of " in figure.layout.xaxis.title.text
    shown = found._repr_mimebundle_()
    assert "… and 20 more lines" in shown["text/html"]
    assert len(shown["text/html"]) < 60_000


def test_nothing_timed_is_said_and_an_option_is_refused() -> None:
    empty = straggler_report([RankLog(0, {})])
    assert "nothing was timed on all ranks of a group" in empty._repr_mimebundle_()["text/html"]
    assert list(empty.figure().data) == []
    with pytest.raises(UsageError, match=r"figure\(kind\): this figure has no options"):
        empty.figure(kind="pie")
