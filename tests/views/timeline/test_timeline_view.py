"""The timeline as boxes, as a drawing, and as a widget."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from types import ModuleType

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsexplore._internal.analysis.step_timeline import SPANS, Timeline
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page.charts import round_numbers
from dsexplore._internal.views.timeline.boxes import Coded, boxes, extent
from dsexplore._internal.views.timeline.timeline_explorer import TimelineExplorer
from tests.analysis.late_programs import Program

spans_lists = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.integers(0, 500), st.integers(1, 40), st.sampled_from("xy"), st.integers(0, 99)
    ),
    min_size=1,
    max_size=60,
)


def of(rows: list[tuple[str, int, int, str, int]]) -> Timeline:
    frame = pl.DataFrame(
        [
            {
                "lane": lane,
                "begin": begin,
                "end": begin + length,
                "mark": mark,
                "name": "op",
                "bytes": size,
                "row": None,
            }
            for lane, begin, length, mark, size in rows
        ],
        schema=SPANS,
    ).sort("begin")
    return Timeline(frame, ("a", "b"), ("x", "y"), "measured", "axis", Tables())


@given(spans_lists, st.integers(1, 50))
def test_every_span_is_in_one_box(rows: list[tuple[str, int, int, str, int]], columns: int) -> None:
    timeline = of(rows)
    for most in (0, 1000):
        found = boxes(Coded(timeline), extent(timeline), columns, most)
        assert found.count.sum() == len(rows)
        assert found.bytes.sum() == sum(row[4] for row in rows)
        assert ((found.begin >= 0) & (found.end <= 1 + 1e-9) & (found.begin < found.end)).all()
        assert ((found.level >= 0) & (found.level <= 1)).all()


@given(spans_lists, st.integers(0, 400), st.integers(1, 200))
def test_a_window_has_what_overlaps_it(rows: list[tuple[str, int, int, str, int]], first: int, width: int) -> None:
    found = boxes(Coded(of(rows)), (first, first + width))
    assert len(found) == sum(begin < first + width and begin + length > first for _, begin, length, _, _ in rows)


@given(spans_lists, st.data(), st.integers(1, 50), st.integers(-10, 400), st.integers(1, 600))
def test_columns_are_the_same_of_kinds_as_of_spans(
    rows: list[tuple[str, int, int, str, int]], data: st.DataObject, columns: int, first: int, width: int
) -> None:
    kind = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows))))
    kinds = np.array(data.draw(st.lists(st.booleans(), min_size=4, max_size=4)))
    timeline, window = of(rows), (float(first), float(first + width))
    of_spans = boxes(Coded(timeline), window, columns, -1, kinds[kind])
    of_kinds = boxes(Coded(timeline, kind), window, columns, -1, kinds[kind], kinds)
    for name, column in vars(of_spans).items():
        assert np.array_equal(column, getattr(of_kinds, name)), name


def test_a_column_has_the_mark_of_most_bytes() -> None:
    found = boxes(Coded(of([("a", 0, 1, "x", 5), ("a", 1, 1, "y", 3), ("a", 2, 1, "y", 4)])), (0, 3), 1, 0)
    assert (found.mark.tolist(), found.count.tolist(), found.bytes.tolist()) == ([1], [3], [12])


def test_a_stacked_column_shows_each_mark_by_its_share_of_the_bytes() -> None:
    timeline = of([("a", 0, 1, "x", 5), ("a", 1, 1, "y", 15), ("a", 2, 1, "y", 20)])
    alone = boxes(Coded(timeline), (0, 3), 1, 0)
    found = boxes(Coded(timeline), (0, 3), 1, 0, stacked=True)
    assert found.mark.tolist() == [1, 0]  # the tallest first, and the others in front of it
    assert found.level.tolist() == pytest.approx([alone.level[0], alone.level[0] * 5 / 40])


def test_ticks_stand_at_round_numbers() -> None:
    for first, last in ((0.0, 0.0847), (3.1, 17.4), (0.0, 45.0), (0.0, 1.0)):
        found = round_numbers(first, last)
        assert 3 <= len(found) <= 7
        assert all(first <= at <= last * (1 + 1e-9) for at in found)
        steps = {f"{later - before:.3g}".replace(".", "").lstrip("0")[0] for before, later in pairwise(found)}
        assert steps <= {"1", "2", "5"}


def test_the_drawing_is_small_and_says_what_it_is(traces: ModuleType) -> None:
    timeline = traces.layered(2000).timeline(lanes="axis")
    html = timeline._repr_mimebundle_()["text/html"]
    assert "Timeline of 6,000 collectives in program order<" in html
    assert "taller is more wire bytes" in html
    assert len(html) < 40_000
    assert re.findall(r'aria-label="([^"]+)"', html) == [
        "dp: 2,000 collectives, 7.8 MiB on the wire",
        "tp: 4,000 collectives, 17.6 MiB on the wire",
    ]


def test_the_text_has_a_line_per_lane(traces: ModuleType) -> None:
    text = traces.layered(3).timeline(lanes="axis")._repr_mimebundle_()["text/plain"]
    assert text.splitlines()[1:] == [
        "  tp sends most: 27 KiB of 39 KiB on the wire (69 %), in 6 of 9 collectives.",
        "  dp: 3 collectives, 12 KiB on the wire",
        "  tp: 6 collectives, 27 KiB on the wire",
    ]


def test_a_trace_without_events_says_so() -> None:
    timeline = Trace().timeline()
    assert "nothing was sent" in timeline._repr_mimebundle_()["text/html"]
    assert timeline.explore().widget.timeline["title"] == "Timeline: nothing was sent"


@pytest.fixture
def explorer(traces: ModuleType) -> TimelineExplorer:
    explorer: TimelineExplorer = traces.layered(10).timeline(lanes="axis").explore()
    return explorer


class TestExplorer:
    def test_all_is_selected_at_first(self, explorer: TimelineExplorer) -> None:
        assert len(explorer.selection) == 30
        assert not explorer.widget.timeline["zoomed"]

    def test_a_brushed_range_is_the_selection(self, explorer: TimelineExplorer) -> None:
        explorer._on_event({"type": "brush", "begin": 0.0, "end": 0.1})
        assert explorer.selection.events["seq"].to_list() == [0, 1, 2]
        assert explorer.widget.brushed["status"].startswith("3 collectives from 0 to 3: 13 KiB on the wire")
        explorer._on_event({"type": "unbrush"})
        assert len(explorer.selection) == 30

    def test_a_brush_stays_where_it_is_in_another_window(self, explorer: TimelineExplorer) -> None:
        explorer.select(3, 6)
        explorer._on_event({"type": "window", "begin": 0.0, "end": 0.5})
        assert explorer.window == (0.0, 15.0)
        assert explorer.widget.brushed["brush"] == pytest.approx([0.2, 0.4])
        assert explorer.selection.events["seq"].to_list() == [3, 4, 5]
        explorer.zoom(10, 20)
        assert explorer.widget.brushed["brush"] == []
        assert len(explorer.selection) == 3

    def test_a_window_stays_inside_the_whole(self, explorer: TimelineExplorer) -> None:
        explorer._on_event({"type": "window", "begin": -0.5, "end": 3.0})
        assert explorer.window == (0.0, 30.0)
        explorer.zoom(25, 60)
        assert explorer.window == (0.0, 30.0)
        explorer.zoom(10, 11)
        explorer._on_event({"type": "window", "begin": 0.5, "end": 0.5})
        begin, end = explorer.window
        assert begin < end
        explorer._on_event({"type": "whole"})
        assert explorer.window == (0.0, 30.0)

    def test_a_clicked_box_is_the_selection(self, explorer: TimelineExplorer) -> None:
        explorer._on_event({"type": "pick", "box": 4})
        assert explorer.selection.events["seq"].to_list() == [4]
        assert explorer.widget.brushed["status"].startswith(
            "all_reduce · forward · 6 KiB on the wire · Net.layers.1.down · P→R"
        )
        explorer._on_event({"type": "pick", "box": 400})
        explorer.clear()
        assert len(explorer.selection) == 30

    def test_a_clicked_column_selects_all_that_it_holds(self, traces: ModuleType) -> None:
        explorer = traces.layered(2000).timeline(lanes="axis").explore()
        explorer._on_event({"type": "pick", "box": 0})
        assert 0 < len(explorer.selection) < 30
        counts = np.frombuffer(explorer.widget.timeline["boxes"]["count"], np.uint32)
        assert len(explorer.selection) == counts[0]
        assert explorer.widget.timeline["texts"] == []  # the browser says it in the same words

    def test_boxes_are_sent_as_columns(self, explorer: TimelineExplorer) -> None:
        sent = explorer.widget.timeline["boxes"]
        assert np.frombuffer(sent["lane"], np.uint16).tolist()[:3] == [0, 1, 1]
        assert {name: len(column) for name, column in sent.items()} == {
            "begin": 120, "end": 120, "level": 120, "lane": 60, "mark": 30,
        }  # fmt: skip

    @pytest.mark.parametrize("call", ["zoom", "select"])
    def test_an_empty_range_is_refused(self, explorer: TimelineExplorer, call: str) -> None:
        with pytest.raises(UsageError, match="the end must be later"):
            getattr(explorer, call)(3, 3)


def test_ranks_that_were_measured_come_with_the_late_one_and_waiting_apart() -> None:
    trace = Trace(Program(ranks=4, steps=6, jitter=1e-3, late_rank=1, late_by=0.2).trace())
    shown = trace.timeline()._repr_mimebundle_()
    assert trace.skew().verdict() in shown["text/plain"]
    assert 'class="verdict"' in shown["text/html"]
    assert '<span class="late">rank 1</span>' in shown["text/html"]
    assert 'class="skew"' not in trace.timeline(lanes="phase")._repr_mimebundle_()["text/html"]


def test_reads_stand_on_the_one_axis_of_the_ranks_that_wait_for_them() -> None:
    tables = Program(ranks=2, steps=3, jitter=1e-3, late_rank=1, late_by=0.2).trace()
    start = tables.events["start"].min()
    assert isinstance(start, int)
    row = dict.fromkeys(tables.io.columns) | {"rank": 1, "op": "read", "path": "/data/a.bin", "bytes": 4096}
    row |= {
        "step": 0,
        "seq": 0,
        "source": "",
        "module": "",
        "phase": "between steps",
        "start": start - 50_000_000,
        "end": start,
    }
    io = pl.DataFrame([row], schema=tables.io.schema)
    shown = Trace(replace(tables, io=io)).timeline()._repr_mimebundle_()["text/html"]
    assert shown.count('class="ticks"') == 1
    assert 'aria-label="rank 1 · disk: 50 ms"' in shown
