"""For how long ranks wait for their disk and their input, and that a late rank's reason is said if it is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import dsexplore
from dsexplore._internal.analysis.io_waits import io_sentence, io_waits
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from tests.analysis.test_skew import EPOCH, MS, Happened, tables_of

Wait = tuple[int, str, str, int, int]
"""Rank, op, module, start and end in ms since `EPOCH`."""


def with_waits(tables: Tables, waits: list[Wait]) -> Tables:
    rows = [
        (rank, 0, seq, op, "", None, "forward", module, "a.py:1", EPOCH + start * MS, EPOCH + end * MS)
        for seq, (rank, op, module, start, end) in enumerate(waits)
    ]
    return replace(tables, io=pl.DataFrame(rows, schema=schema.IO, orient="row"))


def late_second(count: int = 6) -> Tables:
    """Rank 1 comes 200 ms late to each of some collectives, a second apart."""
    return tables_of([Happened({0: i * 1000 * MS, 1: (i * 1000 + 200) * MS}, MS) for i in range(count)])


def test_waits_are_summed_by_module_and_are_means_over_ranks() -> None:
    waits: list[Wait] = [(0, "wait", "net.a", 0, 30), (1, "wait", "net.a", 0, 10), (0, "wait", "net.b", 40, 44)]
    tables = with_waits(late_second(2), [*waits, (0, "read", "net.a", 0, 30)])
    rows = io_waits(tables).select("op", "module", "count", "seconds").rows()
    assert rows == [("wait", "net.a", 2, pytest.approx(0.020)), ("wait", "net.b", 1, pytest.approx(0.002))]
    assert io_sentence(tables) == (
        "A rank waits for the disk for 22 ms of 1.2 s (2 %, mean of 2 ranks), in 3 waits; 20 ms of it in "
        "2 waits in net.a (forward)."
    )


@pytest.mark.parametrize(("op", "what"), [("input", "input"), ("wait", "the disk")])
def test_the_late_ranks_reason_is_said(op: str, what: str) -> None:
    waits = [(1, op, "", i * 1000 + 10, i * 1000 + 195) for i in range(6)]
    waits += [(0, op, "", i * 1000 - 20, i * 1000 - 15) for i in range(6)]
    sentence = Trace(with_waits(late_second(), waits)).skew().verdict()
    assert sentence.startswith("Rank 1 arrives 200 ms late at 6 of 6 all_reduces")
    assert f"Before that it waits for {what} for 185 ms, the others for 5 ms (medians)." in sentence


def test_collectives_that_follow_one_another_are_late_for_one_reason() -> None:
    late = 200 * MS
    starts = [(i * 1000 * MS + at) for i in range(6) for at in (0, MS)]  # the second begins before the first has ended
    tables = tables_of([Happened({0: start, 1: start + late}, 50 * MS) for start in starts])
    number = pl.col("seq").cast(pl.Int32) // 4  # two collectives on two ranks
    tables = replace(tables, events=tables.events.with_columns(step=number))
    waits: list[Wait] = [(1, "input", "", i * 1000 + 10, i * 1000 + 195) for i in range(6)]
    sentence = Trace(with_waits(tables, waits)).skew().verdict()
    assert "at 12 of 12" in sentence
    assert "Before that it waits for input for 185 ms, the others hardly (medians)." in sentence


def test_what_all_ranks_wait_for_makes_none_late() -> None:
    waits = [(1, "input", "", i * 1000 + 10, i * 1000 + 195) for i in range(6)]
    waits += [(0, "input", "", i * 1000 - 190, i * 1000 - 5) for i in range(6)]
    assert "it waits for" not in Trace(with_waits(late_second(), waits)).skew().verdict()


def test_without_waits_nothing_is_said() -> None:
    assert io_sentence(late_second()) == ""
    assert "it waits for" not in Trace(late_second()).skew().verdict()


PROGRAM = """
import time, torch, torch.distributed as dist, dsexplore
from torch.utils.data import DataLoader

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        time.sleep(0.2 if rank == 1 else 0)
        return torch.ones(4)

with dsexplore.commtrace(save=folder) as trace:
    for batch in DataLoader(Slow(), batch_size=1):
        dist.all_reduce(batch)
        trace.step()
"""


def test_a_real_rank_whose_input_is_slow(tmp_path: Path) -> None:
    dsexplore.run_ranks(PROGRAM, 2, namespace={"folder": str(tmp_path)}, timeout=240).check()
    trace = dsexplore.load(tmp_path)
    sentence = trace.skew().verdict()
    assert "Rank 1 arrives" in sentence
    assert "Before that it waits for input for " in sentence
    assert trace.timeline().lanes == ("rank 0", "rank 0 · blocked", "rank 1", "rank 1 · blocked")
