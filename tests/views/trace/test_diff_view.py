"""The diff of two traces as a tree of what changed."""

from __future__ import annotations

import re
from dataclasses import replace
from types import ModuleType

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.schema import OUTSIDE_STEPS
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views import view_of


def text_of(shown: object) -> str:
    bundle = shown._repr_mimebundle_()  # type: ignore[attr-defined]
    body = re.sub(r"<style>.*?</style>", "", bundle["text/html"])
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def tree_of(shown: object) -> str:
    """Return the text of the tree alone."""
    html = shown._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]
    tree = html[html.index('role="region"') :].partition('<details class="part"')[0]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", tree))


def test_what_is_added_and_what_is_gone(traces: ModuleType) -> None:
    before, after = traces.layered(8), traces.layered(8, odd=3)
    told = text_of(before.diff(after))
    assert "24 → 25 collectives (+1), +6 KiB on the wire (+4 KiB in messages), of rank 0 in one step" in told
    assert "wire A A ┃ B wire B ± wire count A count B ± count ± on tp ± on dp" in told
    assert "Net 104 KiB 110 KiB + 6 KiB 24 25 + 1 + 6 KiB –" in told
    assert "3 Block 13 KiB 19 KiB + 6 KiB 3 4 + 1 + 6 KiB –" in told
    assert "+ all_gather tp forward 0 → 1 0 B → 6 KiB +6 KiB" in told
    assert "− all_gather tp forward 1 → 0 6 KiB → 0 B −6 KiB" in text_of(after.diff(before))


def test_a_small_diff_is_open_all_through(traces: ModuleType) -> None:
    small = traces.layered(8).diff(traces.layered(8, odd=3))._repr_mimebundle_()["text/html"]
    assert "<details>" not in small
    names = [f"m{i}" for i in range(40)]
    assert "<details>" in traces.of_names(names).diff(Trace())._repr_mimebundle_()["text/html"]


def test_what_is_the_same_is_left_out(traces: ModuleType) -> None:
    difference = traces.layered(8).diff(traces.layered(8, odd=3))
    told = tree_of(difference)
    assert told.count("Block") == 1
    assert "down" not in told
    assert "Modules that are the same in both are not shown" in told


def test_equal_changes_of_layers_are_one_line(traces: ModuleType) -> None:
    trace = traces.layered(8)
    told = tree_of(trace.diff(trace.where(axis="tp")))
    assert "[0–7] ×8 Σ 8 Block 104 KiB 72 KiB − 32 KiB 24 16 − 8 – − 32 KiB" in told
    assert "This is one of 8 equal modules, Net.layers.0 ; the row above shows the sum of all." in told
    assert "− all_gather dp forward 1 → 0 4 KiB → 0 B −4 KiB" in told
    assert told.count("all_gather") == 1


def test_layers_of_one_trace_only_are_no_line_with_layers_of_both(traces: ModuleType) -> None:
    """Four of eight layers are left, and send more: what became more and what is gone stay apart."""
    before, after = traces.layered(8), traces.layered(4).tables
    more = Trace(replace(after, events=after.events.with_columns(pl.col("wire_bytes") * 2)))
    told = tree_of(before.diff(more))
    assert "[0–3] ×4 Σ 4 Block 52 KiB 104 KiB + 52 KiB 12 12" in told
    assert "[4–7] ×4 Σ 4 Block only in A 52 KiB – − 52 KiB 12 – − 12" in told


def test_the_same_sum_of_other_collectives_is_no_more_and_no_less(traces: ModuleType) -> None:
    trace = traces.layered(2)
    tables = trace.tables
    other = pl.when(pl.col("op") == "reduce_scatter").then(pl.lit("all_gather")).otherwise("op").alias("op")
    after = Trace(replace(tables, events=tables.events.with_columns(other)))
    told = text_of(trace.diff(after))
    assert "up Σ 2 Linear 6 KiB 6 KiB ± 2 2 ± – –" in told
    assert "+ all_gather tp backward 0 → 1" in told
    assert "− reduce_scatter tp backward 1 → 0" in told


def test_modules_of_one_trace_only_say_so(traces: ModuleType) -> None:
    told = text_of(traces.layered(3).diff(traces.layered(2)))
    assert "2 Block only in A 13 KiB – − 13 KiB 3 – − 3" in told
    assert "Block only in B 13 KiB" not in told
    silent = traces.layered(2).tables
    more = pl.concat([silent.modules, traces.frame("modules", [traces.module("Net.head", "Net", "Linear")])])
    told = text_of(Trace(silent).diff(Trace(replace(silent, modules=more))))
    assert "head Linear only in B – – – – – –" in told  # nothing is sent, and no sign says otherwise


def test_a_model_of_126_layers_stays_below_70_kb(traces: ModuleType) -> None:
    for before, after in ((126, 125), (126, 0)):
        difference = traces.layered(before, odd=60).diff(traces.layered(after))
        assert len(difference._repr_mimebundle_()["text/html"].encode()) <= 70_000
    unlike = traces.of_names([f"m{i}" for i in range(5_000)]).diff(Trace())
    assert len(unlike._repr_mimebundle_()["text/html"].encode()) <= 70_000
    assert "Not everything is drawn: to_frame() has every row" in text_of(unlike)
    assert len(view_of(unlike).page()) > 1_000_000


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_columns_add_up(traces: ModuleType, data: st.DataObject) -> None:
    names = ["", "Net", "Net.a", "Net.a.b", "Net.c", "Other"]
    chosen = [data.draw(st.lists(st.sampled_from(names), max_size=6)) for _ in range(2)]
    modules = traces.frame("modules", [traces.module(name, name.rpartition(".")[0]) for name in names[1:]])
    before, after = (
        Trace(Tables(traces.frame("events", [traces.event(name, i) for i, name in enumerate(owners)]), modules=modules))
        for owners in chosen
    )
    told = text_of(before.diff(after))
    a, b = (sum(owner == "Net" or owner.startswith("Net.") for owner in owners) for owners in chosen)
    own = [[owners.count(name) for name in names[1:5]] for owners in chosen]
    if own[0] != own[1]:
        sign = r"\+" if b > a else "−" if b < a else "±"
        change = f" {abs(b - a)}" if a != b else ""
        assert re.search(rf"Net Module .*? {a or '–'} {b or '–'} {sign}{change} ", told)


def test_nothing_changed(traces: ModuleType) -> None:
    trace = traces.layered(3)
    assert "Both communicate the same" in text_of(trace.diff(trace))
    assert "0 → 0 collectives" in text_of(Trace().diff(Trace()))


def test_text_is_short_and_signed(traces: ModuleType) -> None:
    trace = traces.layered(8)
    lines = trace.diff(trace.where(axis="tp"))._repr_mimebundle_()["text/plain"].splitlines()
    assert lines == [
        "TraceDiff: 24 → 16 collectives (−8), −32 KiB on the wire (−64 KiB in messages), of rank 0 in one step",
        "  A and B have the same mesh, ranks, modules and parameters: only the calls differ.",
        "  B sends 32 KiB less on the wire per rank and step than A, 72 KiB instead of 104 KiB (−31 %), all on dp, in "
        "16 collectives instead of 24.",
        "  All of it is in Net.layers.* (×8): all_gather (32 KiB less).",
        "  Changes per rank and step, in collectives and wire bytes:",
        "  all_gather       dp                −8  −32 KiB",
    ]


def test_it_says_in_what_the_programs_differ(traces: ModuleType) -> None:
    few, many = traces.layered(2), traces.layered(8)
    tables = many.tables
    sharded = Trace(replace(tables, info=replace(tables.info, mesh="<b>=2", world_size=2)))
    assert f"modules {few.tables.modules.height} → {tables.modules.height}" in text_of(few.diff(many))
    assert "mesh dp=2,tp=4 → &lt;b&gt;=2, ranks 8 → 2" in text_of(many.diff(sharded))
    assert "<b>=2" not in many.diff(sharded)._repr_mimebundle_()["text/html"]


def test_less_on_the_wire_is_not_called_more(traces: ModuleType) -> None:
    """More bytes in messages to smaller groups can be fewer bytes on the wire."""

    def plan(*sent: tuple[int, int]) -> Trace:
        rows = [traces.event("Net", i, message_bytes=m, wire_bytes=w) for i, (m, w) in enumerate(sent)]
        return Trace(Tables(traces.frame("events", rows), modules=traces.frame("modules", [traces.module("Net")])))

    diff = plan((1024, 2048)).diff(plan((2048, 1024)))
    assert "−1 KiB on the wire (+1 KiB in messages)" in text_of(diff)
    assert "−1 KiB" in diff._repr_mimebundle_()["text/plain"].splitlines()[-1]
    assert "wire A A ┃ B wire B ± wire" in text_of(diff)
    page = view_of(diff).page(sizes="message")
    assert "message A" in re.sub(r"<[^>]+>", "", page)
    with pytest.raises(UsageError, match="has no argument 'size'"):
        diff.to_html("is refused", size="message")


@pytest.mark.parametrize("phase", OUTSIDE_STEPS)
def test_a_phase_outside_steps_has_a_column_of_its_own(traces: ModuleType, phase: str) -> None:
    rows = [traces.event("Net", 0), traces.event("Net", 1, phase=phase, op="broadcast", wire_bytes=1024)]
    modules = traces.frame("modules", [traces.module("Net")])
    before, after = (Trace(Tables(traces.frame("events", some), modules=modules)) for some in (rows[:1], rows))
    told = text_of(before.diff(after))
    assert "1 → 1 collectives (+0), +0 B on the wire (+0 B in messages), of rank 0 in one step" in told
    assert f"; {phase}: +1 KiB on the wire" in told
    assert f"± {phase} Net Module" in told
    assert "Net Module 6 KiB 6 KiB – 1 1 – – + 1 KiB" in told


def test_bars_stand_on_both_sides_of_a_spine_on_one_scale(traces: ModuleType) -> None:
    trace = traces.layered(8)
    html = trace.diff(trace.where(axis="tp"))._repr_mimebundle_()["text/html"]
    sides = re.findall(
        r'<span class="sides"><span class="thin">(.*?)</span><span class="thin">(.*?)</span></span>', html
    )
    widths = [[re.findall(r'class="a(\d)" style="width:([\d.]+)%"', side) for side in row] for row in sides]
    assert widths[0] == [[("2", "69.2"), ("0", "30.8")], [("2", "69.2")]]
    drawn = re.search(r'<div class="plans">(.*?)</div><p', html)
    assert drawn
    assert re.findall(r"width:([\d.]+)%", drawn[1]) == ["69.2", "30.8", "69.2"]
    told = text_of(trace.diff(trace.where(axis="tp")))
    assert "Wire bytes per rank and step, A → B: tp 72 KiB → 72 KiB · dp 32 KiB → 0 B" in told


def test_every_link_leads_to_something(traces: ModuleType) -> None:
    for before, after in ((traces.layered(8), traces.layered(8, odd=3)), (traces.timed(), traces.layered(2))):
        html = before.diff(after)._repr_mimebundle_()["text/html"]
        links = re.findall(r'href="#([^"]+)"', html)
        assert links
        assert all(html.count(f'id="{link}"') == 1 for link in links)


def test_both_are_shown_in_time_on_one_scale(traces: ModuleType) -> None:
    told = text_of(traces.layered(2).diff(traces.layered(3)))
    assert "In time: the last step of rank 0, both on one scale" in told
    assert "A · forward A · backward B · forward B · backward 0" in told


def test_numbers_of_several_ranks_and_steps_are_per_rank_and_step(traces: ModuleType) -> None:
    told = text_of(traces.timed(ranks=2, steps=2).diff(traces.timed(ranks=4, steps=1).where(axis="dp")))
    assert "per rank and step (means: A of 2 ranks and 2 steps, B of 4 ranks)" in told
    many = tree_of(traces.timed(ranks=2, steps=2).diff(traces.timed(ranks=4, steps=1).where(axis="dp")))
    one = tree_of(traces.timed(ranks=1, steps=1).diff(traces.timed(ranks=1, steps=1).where(axis="dp")))
    assert many == one
    same = traces.timed(ranks=2, steps=2).diff(traces.timed(ranks=4, steps=1))
    assert "Both communicate the same" in text_of(same)


def test_what_is_chosen_of_both_is_a_trace_of_each(traces: ModuleType) -> None:
    before, after = traces.layered(4), traces.layered(4, odd=1)
    explorer = before.diff(after).explore()
    assert (len(explorer.before), len(explorer.after)) == (len(before), len(after))
    assert explorer.before.events.equals(before.events)
    assert len(explorer.chosen) == len(before.diff(after)) > 0
    explorer.select(0, 2.5)
    assert explorer.before.events.equals(before.events.head(3))
    assert explorer.after.events.equals(after.events.head(3))
    assert len(explorer.selection) == 6
    explorer.clear()
    assert len(explorer.selection) == len(before) + len(after)
    with pytest.raises(UsageError, match="lanes"):
        before.diff(after).explore(lanes="nope")


def test_the_headline_of_a_diff_shows_its_sentences_and_both_bars(traces: ModuleType) -> None:
    headline = traces.layered(8).diff(traces.layered(8, odd=3)).headline()
    told = text_of(headline)
    for sentence in headline.sentences:
        assert sentence.text in headline._repr_mimebundle_()["text/plain"]
    assert "Wire bytes per rank and step, A → B:" in told
    same = traces.layered(8).diff(traces.layered(8)).headline()
    assert text_of(same).strip() == same._repr_mimebundle_()["text/plain"] == "Both communicate the same."
