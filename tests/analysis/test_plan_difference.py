"""The difference of two traces in words: per rank and step, and nothing where both send the same."""

from __future__ import annotations

from dataclasses import replace

import planted
import polars as pl
import pytest

from dsexplore._internal.analysis.plan_difference import COLUMNS, PlanDifference
from dsexplore._internal.trace.trace import Trace
from tests.analysis.few_events import row, trace_of


def difference(before: Trace, after: Trace) -> PlanDifference:
    found: PlanDifference = before.diff(after).headline()
    return found


def said(before: Trace, after: Trace) -> list[str]:
    return [one.text for one in difference(before, after).sentences]


def test_it_names_bytes_share_axes_and_collectives() -> None:
    before = trace_of(row(0, wire_bytes=3000), row(1, axis="dp", op="all_gather", wire_bytes=1000))
    after = trace_of(
        row(0, wire_bytes=1000), row(1, axis="dp", op="all_gather", wire_bytes=2000), row(2, axis="dp", wire_bytes=0)
    )
    assert said(before, after)[0] == (
        "B sends 1000 B less on the wire per rank and step than A, 2.9 KiB instead of 3.9 KiB (−25 %): 2 KiB less on "
        "tp and 1000 B more on dp, in 3 collectives instead of 2."
    )
    assert said(after, before)[0].startswith("B sends 1000 B more on the wire per rank and step than A")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (1536, 1, "(over 99 % less)"),
        (1 << 20, (1 << 20) + 8, "(under 1 % more)"),
        (1000, 3500, "(+250 %)"),
        (1, 11, "B."),
    ],
)
def test_what_is_not_all_or_nothing_is_not_100_or_0_percent(before: int, after: int, words: str) -> None:
    sentence = said(trace_of(row(0, wire_bytes=before)), trace_of(row(0, wire_bytes=after)))[0]
    start = sentence.partition(", all on tp")[0]
    assert start.endswith(words.removesuffix(".")), sentence


def test_it_names_the_place_that_changes_most() -> None:
    before = trace_of(*(row(i, owner=f"Net.layers.{i}.up", cause="P→R") for i in range(3)), row(3, owner="Net.head"))
    parts = [row(i, owner=f"Net.layers.{i}.up", cause="P→S(0)", op="reduce_scatter", wire_bytes=768) for i in range(3)]
    after = trace_of(*parts, row(3, owner="Net.head", wire_bytes=1537))
    sentence = difference(before, after).sentences[1]
    assert sentence.text == (
        "The largest part, 2.3 KiB less, is in Net.layers.*.up (×3): all_reduce (P→R) (4.5 KiB less) and "
        "reduce_scatter (P→S(0)) (2.3 KiB more)."
    )
    assert sentence.module == "Net.layers.0.up"
    alone = said(trace_of(row(0)), trace_of(row(0, wire_bytes=1)))[1]
    assert alone == "All of it is in Net.a: all_reduce (1.5 KiB less)."


def test_equal_programs_differ_in_nothing_however_many_ranks_and_steps_were_recorded() -> None:
    one = trace_of(row(0), row(1, op="all_gather"))
    many = trace_of(
        *(row(2 * step + at, rank=rank, step=step, op=op)
          for rank in range(4) for step in range(3) for at, op in enumerate(("all_reduce", "all_gather")))
    )  # fmt: skip
    assert said(one, many) == []
    assert difference(one, many).to_frame().is_empty()
    assert difference(one, many).to_frame(unchanged=True).height == 2
    assert dict(difference(one, many).to_frame().schema) == COLUMNS
    assert len(one.diff(many)) == 2  # the rows of the diff itself are sums
    assert "Both communicate the same" in repr(difference(one, many))


def test_a_rank_counts_as_often_as_it_stands_for_others() -> None:
    light, heavy = row(0, wire_bytes=100), row(0, rank=1, wire_bytes=500)
    before, after = trace_of(row(0, wire_bytes=0)), trace_of(light, heavy, stands_for=("0, 2-7", "1"))
    (first, *_) = said(before, after)
    assert first.startswith("B sends 150 B more on the wire per rank and step than A, 150 B instead of 0 B")
    assert "(means: A of one rank and step, B of 8 ranks)" in first


def test_the_same_bytes_by_other_axes() -> None:
    first = said(trace_of(row(0)), trace_of(row(0, axis="dp")))[0]
    assert first == (
        "B sends as much on the wire per rank and step as A, 1.5 KiB: 1.5 KiB more on dp and 1.5 KiB less on tp, in 1 "
        "collective each."
    )


def test_start_up_is_apart() -> None:
    start = row(0, phase="start-up", op="broadcast", wire_bytes=2048)
    first, *others = said(trace_of(row(1)), trace_of(start, row(1)))
    assert first.endswith("in 1 collective each; start-up sends 2 KiB more per rank.")
    assert not any("largest" in one for one in others)


@pytest.mark.parametrize("name", list(planted.PROGRAMS)[::3])
def test_a_planted_oddity_is_named_as_that_of_one_of_both(name: str) -> None:
    odd, plain = planted.trace_of(name, True), planted.trace_of(name, False)
    why = odd.findings()[0].why
    (new,) = [one for one in difference(plain, odd).sentences if one.about == "finding"]
    assert new.text.startswith("Only in B: ")
    assert why in new.text
    (gone,) = [one for one in difference(odd, plain).sentences if one.about == "finding"]
    assert gone.text.startswith("Only in A: ")
    assert not [one for one in difference(odd, odd).sentences if one.about == "finding"]


def test_times_where_both_were_measured() -> None:
    slow, fast = trace_of(row(0, start=0, end=4_000_000)), trace_of(row(0, start=0, end=1_000_000, wire_bytes=1))
    assert said(slow, fast)[-1] == (
        "Collectives are under way for 1 ms of a step in B, 4 ms in A; exposed are 1 ms in B, 4 ms in A."
    )
    untimed = replace(fast.tables, events=fast.events.with_columns(pl.lit(None, pl.Int64).alias("start")))
    assert not any("under way" in one for one in said(slow, Trace(untimed)))
