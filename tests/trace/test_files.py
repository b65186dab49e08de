"""Trace files: what is saved is what is loaded; whatever else is loaded is one clear error."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

import dsexplore
from dsexplore._internal.errors import TraceFileError, UsageError
from dsexplore._internal.trace import file_digest, files, guarded, schema
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from tests.programs import printed

Make = Callable[..., Tables]
FEW = settings(max_examples=40)


def assert_same(a: Tables, b: Tables) -> None:
    for name in schema.TABLES:
        assert_frame_equal(getattr(a, name), getattr(b, name))
    assert a.info == b.info


@FEW
@given(data=st.data())
def test_a_file_gives_back_every_table(tmp_path: Path, traces: Any, data: st.DataObject) -> None:
    tables = data.draw(traces())
    path = Trace(tables).save(tmp_path / "one.parquet")
    assert_same(dsexplore.load(path).tables, tables)


@FEW
@given(data=st.data())
def test_a_large_file_is_read_column_by_column(tmp_path: Path, traces: Any, data: st.DataObject) -> None:
    tables = data.draw(traces())
    path = Trace(tables).save(tmp_path / "one.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(guarded, "_LARGE", 0)
        assert_same(dsexplore.load(path).tables, tables)


@FEW
@given(data=st.data())
def test_a_directory_of_rank_files_gives_back_every_table(tmp_path: Path, traces: Any, data: st.DataObject) -> None:
    tables = data.draw(traces())
    Trace(tables).save(tmp_path / "ranks")
    assert sorted(file.name for file in (tmp_path / "ranks").iterdir()) == [files.rank_file(rank) for rank in range(4)]
    assert_same(dsexplore.load(tmp_path / "ranks").tables, tables)


SPLITTING = """
import resource
import polars as pl
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.files import split_ranks
from dsexplore._internal.trace.tables import Tables

def rank(number):
    row = {"rank": number, "op": "all_reduce", "owner": "Llama.layers.0.feed_forward", "shape": [32, 32]}
    return pl.DataFrame([row] * 10_000, schema=schema.EVENTS)

tables = Tables(events=pl.concat([rank(number) for number in range(24)]))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
parts = split_ranks(tables)
assert [part.events.height for part in parts.values()] == [10_000] * 24
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.processes
def test_splitting_takes_no_more_memory_than_the_trace() -> None:
    assert int(printed(SPLITTING)) < 200


def test_an_empty_trace_is_saved_too(tmp_path: Path) -> None:
    assert len(dsexplore.load(Trace().save(tmp_path / "none.parquet"))) == 0


def test_any_parquet_reader_opens_the_events(tmp_path: Path, make: Make) -> None:
    path = Trace(make([{"op": "all_gather"}], mesh="dp=2,tp=2")).save(tmp_path / "one.parquet")
    table = pq.read_table(path)
    assert table.column_names == list(schema.EVENTS)
    assert table.column("op").to_pylist() == ["all_gather"]
    metadata = pq.read_metadata(path).metadata
    assert metadata[b"dsexplore.format"] == str(schema.FORMAT_VERSION).encode()
    assert json.loads(metadata[b"dsexplore.info"])["mesh"] == "dp=2,tp=2"


@pytest.mark.parametrize(
    ("path", "is_directory"),
    [("t.parquet", False), ("t.trace", False), ("t", True), ("t/", True), ("run.1/", True)],
)
def test_a_suffix_makes_it_one_file(tmp_path: Path, make: Make, path: str, is_directory: bool) -> None:
    target = Trace(make([{}])).save(f"{tmp_path}/{path}")
    assert target.is_dir() == is_directory
    assert len(dsexplore.load(target)) == 1


def test_saving_again_replaces_the_file(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "one.parquet"
    Trace(make([{}] * 3)).save(path)
    Trace(make([{}])).save(path)
    assert len(dsexplore.load(path)) == 1


def test_saving_fewer_ranks_over_more_is_refused(tmp_path: Path, make: Make) -> None:
    Trace(make([{}], ranks=(0, 1))).save(tmp_path / "t")
    with pytest.raises(UsageError, match=r"already has rank-00001.parquet, of a rank that this trace does not have"):
        Trace(make([{}])).save(tmp_path / "t")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError("disk full")])
def test_an_interrupted_save_leaves_the_old_file(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch, interruption: Any
) -> None:
    path = Trace(make([{}])).save(tmp_path / "one.parquet")

    def half(frame: pl.DataFrame, target: Path, **_options: Any) -> None:
        target.write_bytes(b"PAR1 half of a")
        raise interruption

    monkeypatch.setattr(pl.DataFrame, "write_parquet", half)
    monkeypatch.setattr(files, "_encode", lambda table: "")
    with pytest.raises((KeyboardInterrupt, OSError)):
        Trace(make([{}] * 2)).save(path)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [path]
    assert len(dsexplore.load(path)) == 1


@FEW
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_a_trace_file_error(tmp_path: Path, make: Make, share: float) -> None:
    path = Trace(make([{}] * 5)).save(tmp_path / "one.parquet")
    whole = path.read_bytes()
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(TraceFileError, match=r"cut\.parquet is truncated: \d+ bytes without a Parquet footer"):
        dsexplore.load(cut)


@FEW
@given(data=st.data())
def test_any_other_bit_is_a_trace_file_error(tmp_path: Path, make: Make, data: st.DataObject) -> None:
    path = Trace(make([{}] * 5)).save(tmp_path / "one.parquet")
    whole = bytearray(path.read_bytes())
    for place in data.draw(st.sets(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    with pytest.raises(TraceFileError, match=r"one\.parquet is (damaged|truncated|not a dsex|a Parquet)"):
        dsexplore.load(path)


@pytest.mark.parametrize("content", [b"rank,op\n0,all_reduce\n", b"\x80\x04\x95pickle....", b"{}", b"\0" * 64])
def test_a_foreign_file_is_a_trace_file_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.parquet"
    path.write_bytes(content)
    with pytest.raises(TraceFileError, match=r"foreign\.parquet is not a dsexplore trace"):
        dsexplore.load(path)


def test_foreign_parquet_is_a_trace_file_error(tmp_path: Path) -> None:
    path = tmp_path / "foreign.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(TraceFileError, match="is a Parquet file, but not a dsexplore trace"):
        dsexplore.load(path)
    with pytest.raises(TraceFileError, match="has no place for a digest"):
        file_digest.write_digest(path)


def test_a_text_that_looks_like_the_digest_s_place_changes_nothing(tmp_path: Path, make: Make) -> None:
    look_alike = file_digest._MARK.decode("latin-1") + "0" * 64
    tables = make([{"source": look_alike, "cause": look_alike}], notes=(look_alike,))
    assert_same(dsexplore.load(Trace(tables).save(tmp_path / "one.parquet")).tables, tables)


def written(path: Path, tables: Tables, **changes: str | None) -> Path:
    """Return a trace file with other metadata."""
    metadata = {**files._metadata(tables), **{f"dsexplore.{key}": value for key, value in changes.items()}}
    files._write_with_digest(tables.events, {key: value for key, value in metadata.items() if value is not None}, path)
    return path


def test_a_newer_file_says_to_upgrade(tmp_path: Path, make: Make) -> None:
    path = written(tmp_path / "new.parquet", make([{}]), format=str(schema.FORMAT_VERSION + 1), info="of the future")
    with pytest.raises(TraceFileError, match=r"has trace format 9, newer than format 8 .*: upgrade dsexplore"):
        dsexplore.load(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "one"},
        {"format": "-1"},
        {"format": "²"},
        {"info": None},
        {"info": "[]"},
        {"info": '{"world_size": "4"}'},
        {"info": '{"ranks": ["0"]}'},
        {"info": '{"simulated": 1}'},
        {"info": '{"ranks": [0, 1], "clocks": ["host"]}'},
        {"groups": None},
        {"groups": "not base64!"},
        {"groups": base64.b64encode(b"PAR1").decode()},
    ],
)
def test_damaged_metadata_is_a_trace_file_error(tmp_path: Path, make: Make, changes: dict[str, str | None]) -> None:
    path = written(tmp_path / "bad.parquet", make([{}]), **changes)
    with pytest.raises(TraceFileError, match=r"bad\.parquet is damaged"):
        dsexplore.load(path)


def test_a_table_with_other_columns_is_a_trace_file_error(tmp_path: Path, make: Make) -> None:
    tables = make([{}])
    path = written(tmp_path / "bad.parquet", replace(tables, events=tables.events.drop("phase")))
    with pytest.raises(TraceFileError, match="table events: column 'phase' is missing"):
        dsexplore.load(path)
    packed = io.BytesIO()
    tables.groups.cast({"size": pl.Int64}).write_parquet(packed)
    path = written(tmp_path / "bad.parquet", tables, groups=base64.b64encode(packed.getvalue()).decode())
    with pytest.raises(TraceFileError, match="table groups: column 'size'"):
        dsexplore.load(path)


def test_info_of_a_later_minor_version_is_read(tmp_path: Path, make: Make) -> None:
    path = written(tmp_path / "t.parquet", make([{}]), info='{"world_size": 8, "color": "blue"}')
    assert dsexplore.load(path).info == TraceInfo(world_size=8)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no trace at .*gone"):
        dsexplore.load(tmp_path / "gone")
    with pytest.raises(TraceFileError, match="has no trace files"):
        dsexplore.load(tmp_path)


def test_a_directory_of_two_recordings_is_refused(tmp_path: Path, make: Make) -> None:
    Trace(make([{}], world_size=8)).save(tmp_path / "t")
    Trace(make([{"rank": 3}], ranks=(3,), world_size=4)).save(tmp_path / "other")
    (tmp_path / "other" / files.rank_file(3)).rename(tmp_path / "t" / files.rank_file(3))
    with pytest.raises(TraceFileError, match=r"mixes files of different recordings: world_size is 8 .* and 4"):
        dsexplore.load(tmp_path / "t")


def test_files_of_two_recordings_are_named_by_the_first(tmp_path: Path, make: Make) -> None:
    first, second = tmp_path / "first.parquet", tmp_path / "second.parquet"
    Trace(make([{}], world_size=8)).save(first)
    Trace(make([{"rank": 3}], ranks=(3,), world_size=4)).save(second)
    with pytest.raises(TraceFileError, match=r"first\.parquet and the others are of different recordings: world_size"):
        dsexplore.load([first, second])


def test_several_processes_need_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    files.check_destination("t.parquet")
    monkeypatch.setenv("WORLD_SIZE", "2")
    files.check_destination("trace/")
    with pytest.raises(UsageError, match=r"'t\.parquet' names one file, but 2 processes record: .* 't/'"):
        files.check_destination("t.parquet")


@pytest.mark.parametrize(("version", "has_costs"), [(2, False), (3, True)])
def test_files_have_costs_since_the_third_format(tmp_path: Path, make: Make, version: int, has_costs: bool) -> None:
    segment = {"segment": 1, "phase": "forward", "module": "Llama", "parameters": 64}
    kernel = {"op": "mm", "kind": "matmul", "flops": 128, "shape": [1, 4, 4, 4]}
    frames = {
        name: pl.DataFrame([row], schema=schema.TABLES[name]).fill_null(0).fill_null("").fill_null(False)
        for name, row in (("memory", segment), ("kernels", kernel))
    }
    tables = replace(make([{}]), **frames)
    loaded = dsexplore.load(written(tmp_path / "t.parquet", tables, format=str(version))).tables
    for name, frame in frames.items():
        assert_frame_equal(getattr(loaded, name), frame if has_costs else schema.empty(name))


def test_memory_of_an_older_file_has_no_inputs_of_its_own(tmp_path: Path, make: Make) -> None:
    segment = dict.fromkeys(schema.MEMORY, 0) | {"phase": "forward", "module": "Llama", "parameters": 64, "inputs": 4}
    memory = pl.DataFrame([segment], schema=schema.MEMORY)
    older = replace(make([{}]), memory=memory.drop("inputs"))
    loaded = dsexplore.load(written(tmp_path / "t.parquet", older)).tables.memory
    assert_frame_equal(loaded, memory.with_columns(inputs=pl.lit(0, pl.Int64)))


@pytest.mark.parametrize(("version", "wire"), [(5, [512, 0]), (6, [512, 512])])
def test_a_recv_of_an_older_file_sends_nothing(tmp_path: Path, make: Make, version: int, wire: list[int]) -> None:
    tables = make(
        [{"op": op, "seq": i, "message_bytes": 512, "wire_bytes": 512} for i, op in enumerate(["send", "recv"])]
    )
    loaded = dsexplore.load(written(tmp_path / "t.parquet", tables, format=str(version)))
    assert loaded.events["wire_bytes"].to_list() == wire
    assert loaded.events["message_bytes"].to_list() == [512, 512]


def test_a_file_of_the_first_format_still_loads(tmp_path: Path) -> None:
    """Written before events had peers, roots and split sizes, and traces a target: those are null, and empty."""
    trace = dsexplore.load(Path(__file__).parent / "data" / "format_1.parquet")
    assert trace.events.select("op", "phase", "axis").rows() == [
        ("all_reduce", "other", "tp"),
        ("send", "other", ""),
        ("broadcast", "other", ""),
        ("barrier", "other", ""),
    ]
    assert dict(trace.events.schema) == schema.EVENTS
    assert trace.events.select("peer", "root", "send_splits", "recv_splits").null_count().row(0) == (4, 4, 4, 4)
    assert trace.events["state"].null_count() == 4
    assert trace.info.target == ""
    assert_same(dsexplore.load(trace.save(tmp_path / "again.parquet")).tables, trace.tables)
