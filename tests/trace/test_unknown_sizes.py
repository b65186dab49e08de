"""Sizes that a file does not say: null in the tables, "size unknown" wherever they are shown, and "≥" in sums.

Modules: ``trace/unknown_sizes.py``, ``views/trace/byte_sizes.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from dsexplore._internal.analysis.plan_difference import PlanDifference
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.trace import Trace, load
from dsexplore._internal.trace.unknown_sizes import format_sum, known_sum
from dsexplore._internal.views.explorer.filters import FilteredEvents
from dsexplore._internal.views.explorer.module_rows import ModuleRows, rows_of
from dsexplore._internal.views.explorer.selected_events import SelectedEvents
from dsexplore._internal.views.explorer.selection import Filters, Selection
from dsexplore._internal.views.explorer.standalone import standalone_page
from dsexplore._internal.views.timeline.timeline_text import timeline_text
from dsexplore._internal.views.trace.event_codes import EventCodes
from dsexplore._internal.views.trace.figures import FIGURES
from dsexplore._internal.views.trace.trace_view import TraceView
from dsexplore._internal.views.widgets.part_widgets import TreeWidget
from tests.trace.importers.test_profiles import NEW, event, trace_of

UNSIZED = event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", ts=300, Group_size=8)
GATHER = {**event("ncclDevKernel_AllGather_RING_LL(x)", ts=500), "args": NEW}
UNTYPED = {**GATHER, "args": {**NEW, "dtype": ""}, "ts": 700}


def trace(folder: Path, *events: object) -> Trace:
    return load(trace_of(list(events), folder, 0))  # type: ignore[arg-type]


@pytest.fixture
def unknown(tmp_path: Path) -> Trace:
    return trace(tmp_path / "unknown", UNSIZED, UNTYPED)


@pytest.fixture
def mixed(tmp_path: Path) -> Trace:
    return trace(tmp_path / "mixed", UNSIZED, GATHER)


@pytest.fixture
def known(tmp_path: Path) -> Trace:
    return trace(tmp_path / "known", GATHER)


def test_sums_say_what_is_missing() -> None:
    texts = [format_sum(0, 0), format_sum(3 << 20, 0), format_sum(3 << 20, 1), format_sum(0, 2)]
    assert texts == ["0 B", "3 MiB", "≥ 3 MiB", "size unknown"]
    frame = pl.DataFrame({"key": ["a", "a", "b", "c"], "size": [1, None, None, 0]})
    sums = frame.group_by("key", maintain_order=True).agg(known_sum(pl.col("size")))
    assert sums["size"].to_list() == [1, None, 0]
    assert frame.clear().select(known_sum(pl.col("size"))).item() == 0


def test_tables_and_frames_have_null(unknown: Trace, mixed: Trace) -> None:
    assert unknown.events["message_bytes"].to_list() == [None, None]
    assert unknown.by_op()["wire_bytes"].to_list() == [None, None]
    assert mixed.by_op().select("op", "wire_bytes").rows() == [("all_gather", 57344), ("all_reduce", None)]
    assert unknown.headline().to_frame()["wire_bytes"].to_list() == [None, None]


def test_a_group_of_unknown_size_leaves_the_wire_bytes_open(tmp_path: Path) -> None:
    kernel = event("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", In_msg_nelems=4, Out_msg_nelems=4, dtype="Float")
    groups = [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1", "ranks": [0]}]
    listed = {"backend": "nccl", "rank": 0, "world_size": 8, "pg_config": groups}
    found = load(trace_of([kernel], tmp_path / "t", 0, distributedInfo=listed))
    assert found.events.select("message_bytes", "wire_bytes").row(0) == (16, None)
    assert "how many ranks share" in str(found.headline()) or "is not known" in str(found.headline())


def texts_of(found: Trace) -> dict[str, str]:
    """Return every place that shows sizes."""
    codes = EventCodes(found.tables)
    rows = ModuleRows(codes, TreeWidget(**rows_of(codes)))
    selected = SelectedEvents(codes, rows, Selection())
    figures = {
        kind: json.dumps(drawn.spec(found.tables, "wire"), ensure_ascii=False) for kind, drawn in FIGURES.items()
    }
    return {
        "headline": str(found.headline()),
        "text": TraceView(found).text(),
        "html": TraceView(found).html(),
        "timeline": timeline_text(found.timeline()),
        "status": selected.summary,
        **{kind: figures[kind] for kind in ("modules", "ops", "sequence", "sizes")},
    }


def test_every_view_says_size_unknown(unknown: Trace, mixed: Trace, known: Trace) -> None:
    for place, text in texts_of(unknown).items():
        assert not re.search(r"(?<![\d.])0 B", text) or place == "modules", place
        assert "nknown" in text or "not known" in text, place
    for place, text in texts_of(mixed).items():
        assert "size unknown" in text or "≥ 56 KiB" in text or "at least 56 KiB" in text, place
        assert not re.search(r"[ >]0 B", text), place
    for place, text in texts_of(known).items():
        assert "unknown" not in text, place
        assert "≥" not in text, place


def test_findings_skew_and_the_map_of_the_world_say_nothing_of_zero_bytes(
    unknown: Trace, mixed: Trace, known: Trace
) -> None:
    for found in (unknown, mixed, known):
        for text in (str(found.findings()), str(found.skew())):
            assert not re.search(r"(?<![\d.])0 B", text), text
    for found, expected in (
        (unknown, "No link is drawn: the sizes of its collectives are unknown."),
        (mixed, "More may be sent: the size of 1 of its 2 collectives is unknown."),
    ):
        shown = found.world_map()._repr_mimebundle_()
        assert expected in shown["text/plain"]
        assert expected in shown["text/html"]
    assert not any("nknown" in text for text in known.world_map()._repr_mimebundle_().values())


def test_the_live_tree_has_signs(unknown: Trace, mixed: Trace) -> None:
    for found, expected in ((unknown, "0x80000000"), (mixed, None)):
        codes = EventCodes(found.tables)
        widget = TreeWidget(**rows_of(codes))
        ModuleRows(codes, widget).fill(FilteredEvents(codes, Filters()))
        bits = pl.Series("bits", list(memoryview(widget.values).cast("I")), pl.UInt64)
        assert (bits >= 0x80000000).any()
        assert (int(expected, 16) in bits) if expected else True


def test_a_page_that_is_written_has_the_same(mixed: Trace) -> None:
    assert "formatSum" in standalone_page(mixed.headline(), "")


def test_differences_say_what_is_not_known(unknown: Trace, mixed: Trace, known: Trace) -> None:
    text = str(PlanDifference(known.tables, mixed.tables))
    assert "ot counting unknown sizes" in text
    assert "B: the size of 1 of its 2 collectives is unknown" in text
    assert "A and B send the same, not counting unknown sizes" in str(PlanDifference(unknown.tables, unknown.tables))
    changes = known.diff(mixed).to_frame().filter(op="all_reduce")
    assert changes.select("change", "wire_bytes_before", "wire_bytes_after").row(0) == ("+", 0, None)


def test_exports_leave_them_empty(mixed: Trace, tmp_path: Path) -> None:
    mixed.to_csv(tmp_path / "events.csv")
    assert pl.read_csv(tmp_path / "events.csv")["message_bytes"].to_list() == [None, 65536]
    mixed.to_perfetto(tmp_path / "events.json")
    arguments = [one["args"] for one in json.loads((tmp_path / "events.json").read_text())["traceEvents"]]
    assert [one["message_bytes"] for one in arguments if "message_bytes" in one] == [None, 65536]


def test_files_of_earlier_formats_had_zeros(mixed: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = mixed.tables
    zeros = tables.events.with_columns(pl.col("message_bytes", "wire_bytes").fill_null(0))
    monkeypatch.setattr(schema, "FORMAT_VERSION", schema.UNKNOWN_IS_NULL - 1)
    old = Trace(tables.__class__(**{**vars(tables), "events": zeros})).save(tmp_path / "old.parquet")
    monkeypatch.undo()
    assert load(old).events["message_bytes"].to_list() == [None, 65536]
