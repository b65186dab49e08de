"""The static view of a trace: what it says, what it never does, and how large it may be."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page import html
from dsexplore._internal.views.trace.trace_view import TraceView
from tests.programs import printed

HOSTILE = "<img src=x onerror=alert(1)>"
VOID = {"meta", "img", "br", "wbr"}


class Checked(HTMLParser):
    """Elements opened and closed in pairs, and the text between them."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


def shown(trace: Trace) -> Checked:
    return Checked(trace._repr_mimebundle_()["text/html"])


def test_equal_layers_fold_and_the_odd_one_does_not(traces: ModuleType) -> None:
    text = shown(traces.layered(8, odd=3)).text
    assert "[0–2, 4–7] ×7 Σ 7 Block" in text
    assert "3 Block" in text


def test_alternating_layers_fold_by_kind(traces: ModuleType) -> None:
    trace = traces.layered(8)
    odd = pl.col("owner").str.contains(r"\.[1357]$")
    events = trace.events.with_columns(pl.when(odd).then(pl.lit("all_to_all")).otherwise("op").alias("op"))
    text = shown(Trace(Tables(events, trace.parameters, trace.modules, trace.groups, trace.info))).text
    assert "[0, 2, 4, 6] ×4" in text
    assert "[1, 3, 5, 7] ×4" in text


def test_the_columns_add_up(traces: ModuleType) -> None:
    trace = traces.layered(8, odd=3)
    text = shown(trace).text
    assert "25 collectives of rank 0 of 8 (dp=2,tp=4), simulated" in text
    assert "count bytes share self on tp on dp forward backward all params per rank placements" in text
    assert "Net 25 110 KiB  – 78 KiB 32 KiB 86 KiB 24 KiB 128 KiB 32 KiB" in text
    assert "×7 Σ 7 Block 21 91 KiB  28 KiB 63 KiB 28 KiB 70 KiB 21 KiB 112 KiB 28 KiB" in text
    assert "up Linear 2 9 KiB  9 KiB 9 KiB – 6 KiB 3 KiB 8 KiB 2 KiB R, S(0)" in text
    assert trace.where(axis="tp").events["wire_bytes"].sum() == 78 * 1024


def test_a_row_tells_its_full_name_to_who_hovers(traces: ModuleType) -> None:
    titles = [value for name, value in shown(traces.layered(3, odd=1)).attributes if name == "title"]
    assert {"Net.layers", "Net.layers.0", "Net.layers.0.up", "Net.layers.1", "Net.layers.1.up"} <= set(titles)


def test_placements_shapes_causes_and_sources_are_there(traces: ModuleType) -> None:
    text = shown(traces.layered(2, odd=1)).text
    for said in ("R, S(0)", "[64, 32]", "[16, 32]", "P→R", "train.py:10", "implicit"):
        assert said in text


def test_a_simulation_says_so_once(traces: ModuleType) -> None:
    assert shown(traces.layered(2)).text.count("values and times are not") == 1
    real = traces.layered(2)
    tables = real.tables
    real = Trace(
        Tables(tables.events, tables.parameters, tables.modules, tables.groups, TraceInfo(world_size=8, ranks=(0,)))
    )
    assert "are not" not in shown(real).text


def test_the_same_trace_gives_the_same_bytes_in_another_process(traces: ModuleType) -> None:
    here = traces.layered(5, odd=2)._repr_mimebundle_()
    code = "import json; from tests.views import traces;print(json.dumps(traces.layered(5, odd=2)._repr_mimebundle_()))"
    assert json.loads(printed(code)) == here


def test_no_script_no_network_no_handlers(traces: ModuleType, tmp_path: Path) -> None:
    page = Checked(traces.layered(4).to_html(tmp_path / "trace.html").read_text())
    assert page.tags.isdisjoint({"script", "iframe", "link", "img", "object"})
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")


def test_a_model_of_126_layers_stays_below_70_kb(traces: ModuleType) -> None:
    size = len(traces.layered(126, odd=60)._repr_mimebundle_()["text/html"].encode())
    assert size <= 70_000


def test_ten_thousand_different_modules_are_cut_and_it_says_so(traces: ModuleType) -> None:
    trace = traces.of_names([f"m{i}" for i in range(10_000)])
    html = trace._repr_mimebundle_()["text/html"]
    assert len(html.encode()) <= 70_000
    text = Checked(html).text
    drawn = len(re.findall(r"m\d+ 1 6 KiB", text))
    assert drawn > 30
    assert f"… {10_000 - drawn:,} more, not drawn" in text
    assert "Modules further inside are not drawn, of 10,000 in all: explore() and by_module() have every one" in text


def test_a_page_draws_every_module(traces: ModuleType) -> None:
    page = TraceView(traces.of_names([f"m{i}" for i in range(500)])).page()
    assert len(set(re.findall(r"\bm\d+\b", page))) == 500
    assert "more, not drawn" not in page


def test_a_deep_model_loses_its_depths_and_not_its_breadth(traces: ModuleType) -> None:
    names = [f"Net.{letter}" + ".inner" * depth for letter in "abcdefgh" for depth in range(60)]
    events = [traces.event(name, i, message_bytes=i + 1) for i, name in enumerate(names)]
    modules = [traces.module("Net"), *(traces.module(name, name.rpartition(".")[0]) for name in names)]
    trace = Trace(Tables(traces.frame("events", events), modules=traces.frame("modules", modules)))
    assert len(trace._repr_mimebundle_()["text/html"].encode()) <= 70_000
    text = shown(trace).text
    for letter in "abcdefgh":
        assert re.search(rf"{letter} Module 60 ", text)
    assert text.count("… 1 more, not drawn") == 8


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_what_the_text_leaves_out_is_counted(traces: ModuleType, left_out: int) -> None:
    events = [traces.event("Net", i, axis=f"axis{i}", message_bytes=9 - i) for i in range(8 + left_out)]
    notes = tuple(f"note {i}" for i in range(3 + left_out))
    trace = Trace(Tables(traces.frame("events", events), info=TraceInfo(notes=notes)))
    text = trace._repr_mimebundle_()["text/plain"]
    assert [note for note in notes if note in text] == [*notes[:3]]
    assert len(re.findall(r"^  all_reduce +axis", text, re.MULTILINE)) == 8
    assert (f"and {left_out} more: trace.by_op(), trace.by_axis()" in text) is bool(left_out)
    assert re.findall(r"(\d) more notes?: trace.info.notes", text) == ([str(left_out)] if left_out else [])


@pytest.mark.parametrize("name", [HOSTILE, "x" * 10_000, "اسم", "\u202egnp.exe", "a\x00b", "日本語", "\"'&<>"])
def test_names_are_text_wherever_they_appear(traces: ModuleType, name: str) -> None:
    trace = traces.of_names([name, "other"])
    for item in (trace, trace.diff(Trace())):
        page = shown(item)
        assert "img" not in page.tags
        assert "\x00" not in page.text
        assert "\u202e" not in page.text
        expected = html.plain(name)
        assert expected in page.text
        assert len(item._repr_mimebundle_()["text/plain"]) < 3_000
        assert len(item._repr_mimebundle_()["text/html"].encode()) < 70_000


@pytest.mark.parametrize("name", [HOSTILE * 400, "اسم" * 4_000])
def test_many_long_names_stay_below_77_kb(traces: ModuleType, name: str) -> None:
    trace = traces.of_names([f"{i}{name}{i}" for i in range(400)])
    assert len(trace._repr_mimebundle_()["text/html"].encode()) < 77_000


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=400))
def test_escape_round_trips_what_can_be_printed(text: str) -> None:
    escaped = html.escape(text, longest=0)
    assert not set("<>\"'") & set(escaped)
    assert (
        Checked(f"<p>{escaped}</p>").text == html.printable(text).replace("\r\n", "\n").replace("\r", "\n")
        or "\r" in text
    )
    assert len(html.plain(text, longest=40)) <= 40


def test_an_empty_trace_says_what_it_has() -> None:
    bundle = Trace(Tables())._repr_mimebundle_()
    assert bundle["text/plain"] == "Trace: no collectives; 0 ranks of 1"
    assert "nothing was sent" in bundle["text/html"]
    noted = Trace(Tables(info=TraceInfo(notes=("reading was interrupted",))))._repr_mimebundle_()
    assert "note: reading was interrupted" in noted["text/plain"]
    assert "reading was interrupted" in noted["text/html"]


def test_parts_that_are_missing(traces: ModuleType) -> None:
    whole = traces.layered(3, odd=1).tables
    for missing in ("modules", "parameters", "groups", "events"):
        tables = {name: getattr(whole, name) for name in ("events", "parameters", "modules", "groups")}
        tables[missing] = tables[missing].clear()
        trace = Trace(Tables(**tables, info=whole.info))
        assert "Trace" in shown(trace).text
        for kind in ("modules", "ops", "sequence", "ranks", "sankey", "sizes", "bandwidth"):
            assert trace.figure(kind=kind).to_json()


def test_sixteen_thousand_ranks_and_five_hundred_groups(traces: ModuleType) -> None:
    world = 16_384
    groups = [
        {
            "group": f"g{i}",
            "axis": "",
            "mesh": "",
            "ranks": list(range(i % 8, world, 8)),
            "size": world // 8,
            "backend": "nccl",
            "timing": "none",
        }
        for i in range(500)
    ]
    events = [traces.event("Net", i, axis="", group=f"g{i}", group_size=world // 8, rank=0) for i in range(500)]
    trace = Trace(
        Tables(
            traces.frame("events", events),
            groups=traces.frame("groups", groups),
            modules=traces.frame("modules", [traces.module("Net")]),
            info=TraceInfo(world_size=world, ranks=(0,)),
        )
    )
    page = shown(trace)
    assert "rank 0 of 16,384" in page.text
    assert "more lanes are not drawn" in page.text
    assert len(trace._repr_mimebundle_()["text/html"]) < 100_000
    assert len(trace.figure(kind="ranks").data[0].x) < 64


def test_measured_times_give_bandwidth_and_a_time_axis(traces: ModuleType) -> None:
    events = [
        traces.event("Net", i, message_bytes=2**20, wire_bytes=3 * 2**19, start=i * 10**6, end=i * 10**6 + 3 * 2**19)
        for i in range(4)
    ]
    trace = Trace(Tables(traces.frame("events", events), info=TraceInfo(world_size=4, ranks=(0,))))
    text = shown(trace).text
    assert "Sequence, in time" in text
    assert "1 GB/s" in text
    assert list(trace.figure(kind="bandwidth").data[0].y) == [1.0]


def test_the_timeline_stands_in_the_view_between_headline_and_tree(traces: ModuleType) -> None:
    html = traces.layered(126, odd=3)._repr_mimebundle_()["text/html"]
    assert len(html.encode()) <= 90_000
    places = [html.index(part) for part in ('class="headline"', 'class="tl"', 'class="tree"')]
    assert places == sorted(places)
    lanes = re.findall(r'aria-label="(forward|backward): ([\d,]+) collectives', html)
    assert lanes == [("forward", "253"), ("backward", "126")]
    drawn = html[html.index('<div class="tl"') : html.index('class="tree"')]
    assert len(drawn) < 6_000


def test_the_timeline_of_a_view_has_the_bytes_of_the_switch(traces: ModuleType) -> None:
    for sizes in ("wire", "message"):
        assert f"taller is more {sizes} bytes" in TraceView(traces.layered(4)).page(sizes=sizes)


def test_a_file_of_its_own_holds_no_more_events_than_a_browser_filters(
    traces: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from dsexplore._internal.views.explorer import standalone

    path = traces.layered(126, odd=3).to_html(tmp_path / "it.html", interactive=True)
    text = path.read_text()
    assert "script-src 'unsafe-inline'" in text
    assert "http" not in re.sub(r"http-equiv", "", text.partition('<script type="module">')[0].partition("<body>")[2])
    monkeypatch.setattr(standalone, "MOST_EVENTS", 10)
    with pytest.raises(UsageError, match=r"379 events are too many .* at most 10"):
        traces.layered(126, odd=3).to_html(tmp_path / "it.html", interactive=True)
