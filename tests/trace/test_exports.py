"""Exports: other tools read what the trace says."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace

Make = Callable[..., Tables]


def timeline(trace: Trace, path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[tuple[int, int], str]]:
    """Return the whole document, its slices, and the names of its tracks."""
    document = json.loads(trace.to_perfetto(path).read_text(encoding="utf-8"))
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name"
    }
    return document, slices, tracks


def test_csv_has_one_line_per_event(tmp_path: Path, make: Make) -> None:
    trace = Trace(make([{"shape": [8, 1024], "cause": 'a "quoted", one', "batch": 3}, {"shape": []}]))
    with trace.to_csv(tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["shape"] for row in rows] == ["8x1024", ""]
    assert [row["batch"] for row in rows] == ["3", ""]
    assert rows[0]["cause"] == 'a "quoted", one'
    assert list(rows[0]) == trace.events.columns


def test_without_times_events_stand_in_program_order(tmp_path: Path, make: Make) -> None:
    rows = [
        {"rank": rank, "group": group, "op": op} for rank in (0, 1) for group, op in (("tp", "send"), ("dp", "recv"))
    ]
    document, slices, tracks = timeline(Trace(make(rows, ranks=(0, 1))), tmp_path / "t.json")
    assert "program order" in document["otherData"]["time"]
    assert [(s["pid"], s["name"], s["ts"], s["dur"]) for s in slices] == [
        (0, "send", 0.0, 1.0),
        (0, "recv", 1.0, 1.0),
        (1, "send", 0.0, 1.0),
        (1, "recv", 1.0, 1.0),
    ]
    assert [tracks[s["pid"], s["tid"]] for s in slices[:2]] == [
        "tp · 2 ranks · gloo · group tp",
        "dp · 2 ranks · gloo · group dp",
    ]


def test_measured_times_count_from_the_first_start(tmp_path: Path, make: Make) -> None:
    begin = 1_700_000_000_000_000_000
    rows = [{"start": begin + at, "end": begin + at + 1500, "seq": 0} for at in (2000, 0)]
    document, slices, _ = timeline(Trace(make(rows)), tmp_path / "t.json")
    assert document["otherData"]["time"] == "measured"
    assert document["otherData"]["epoch_ns"] == begin
    assert [(s["ts"], s["dur"]) for s in slices] == [(2.0, 1.5), (0.0, 1.5)]


def test_events_without_times_of_their_own_stand_among_the_measured_ones(tmp_path: Path, make: Make) -> None:
    rows = [
        {"start": 1000, "end": 3000},
        {"op": "switched_off:broadcast"},
        {"start": 5000},  # had not ended
        {"rank": 1},
        {"rank": 1, "start": 4000, "end": 4500},
        {"rank": 2},
    ]
    document, slices, _ = timeline(Trace(make(rows, ranks=(0, 1, 2))), tmp_path / "t.json")
    assert (document["otherData"]["time"], document["otherData"]["epoch_ns"]) == ("measured", 1000)
    assert [(s["pid"], s["ts"], s["dur"]) for s in slices] == [
        (0, 0.0, 2.0),
        (0, 0.0, 0.0),
        (0, 4.0, 0.0),
        (1, 3.0, 0.0),
        (1, 3.0, 0.5),
        (2, 0.0, 0.0),
    ]


def test_overlapping_collectives_of_a_group_get_tracks_of_their_own(tmp_path: Path, make: Make) -> None:
    rows = [{"start": start, "end": end, "group": "tp"} for start, end in ((0, 10), (2, 5), (6, 12))]
    _, slices, tracks = timeline(Trace(make(rows)), tmp_path / "t.json")
    assert [tracks[s["pid"], s["tid"]].removeprefix("tp · 2 ranks · gloo · ") for s in slices] == [
        "group tp",
        "group tp (2)",
        "group tp (2)",
    ]


@settings(max_examples=40)
@given(data=st.data())
def test_every_event_is_drawn_once_and_no_two_overlap(tmp_path: Path, traces: Any, data: st.DataObject) -> None:
    tables = data.draw(traces())
    if data.draw(st.booleans()):
        times = pl.Series([data.draw(st.integers(0, 100)) for _ in range(tables.events.height)], dtype=pl.Int64)
        tables = Tables(**{**vars(tables), "events": tables.events.with_columns(start=times, end=times + 10)})
    trace = Trace(tables)
    _, slices, tracks = timeline(trace, tmp_path / "t.json")
    assert [s["name"] for s in slices] == trace.events["op"].to_list()
    assert [s["args"]["source"] for s in slices] == trace.events["source"].to_list()
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = {track: [] for track in tracks}
    for drawn in slices:
        by_track[drawn["pid"], drawn["tid"]].append((drawn["ts"], drawn["ts"] + drawn["dur"]))
    for spans in by_track.values():
        assert spans
        assert all(first[1] <= second[0] + 1e-6 for first, second in pairwise(sorted(spans)))


def test_a_path_that_ends_with_gz_is_compressed(tmp_path: Path, make: Make) -> None:
    path = Trace(make([{}])).to_perfetto(tmp_path / "t.json.gz")
    assert json.loads(gzip.decompress(path.read_bytes()))["otherData"]["info"]["world_size"] == 4


@pytest.mark.parametrize("name", ["to_csv", "to_perfetto", "to_torch_json"])
def test_an_interrupted_export_leaves_nothing(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def interrupted(*_arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        getattr(Trace(make([{}])), name)(tmp_path / "export")
    assert not list(tmp_path.iterdir())
