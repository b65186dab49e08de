"""Which tool wrote a file."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal.trace.importers.dumps import read_dumps
from dsexplore._internal.trace.importers.foreign import foreign_files, kind_of_file


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"PAR1", ""),
        (b'{"a": 1}', "data"),
        (b'{"traceEvents": []}', "profiler"),
        (b'[{"ph": "X"}]', "profiler"),
        (b'{"entries": []}', "recorder"),
    ],
)
def test_a_file_is_known_by_its_content(tmp_path: Path, content: bytes, kind: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    assert kind_of_file(file) == kind
    assert foreign_files(file) == ([file] if kind in ("profiler", "recorder") else [])


def test_what_cannot_be_opened_is_no_tools_file(tmp_path: Path) -> None:
    assert kind_of_file(tmp_path) == kind_of_file(tmp_path / "missing") == ""
    assert foreign_files(tmp_path / "missing") == foreign_files(tmp_path) == []


def profile(rank: int) -> bytes:
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 7}
    draw = random.Random(rank)
    events = [
        {**kernel, "ts": draw.random(), "dur": 5, "args": {"Group size": 2, "x": draw.random()}} for _ in range(9)
    ]
    return json.dumps({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}).encode()


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (gzip.compress(profile(1))[:-30], "rank1 cannot be read"),
        (b"", "rank1 is empty: copy or record it again"),
        (b'{"entries": []}', "rank1 is a dump of torch's flight recorder, which has no place in a trace of profiles"),
    ],
    ids=["cut off", "empty", "of another tool"],
)
def test_a_file_that_has_no_place_beside_profiles_is_named(tmp_path: Path, left: bytes, said: str) -> None:
    (tmp_path / "rank0").write_bytes(gzip.compress(profile(0)))
    (tmp_path / "rank1").write_bytes(left)
    with pytest.warns(RuntimeWarning, match=said):
        trace = dsexplore.load(tmp_path)
    assert trace.info.ranks == (0,)
    assert any(said in note for note in trace.info.notes)
    assert "1 of 2 ranks left no trace: rank 1" in trace.info.notes


def test_beside_dumps_a_file_that_is_none_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"dump_{rank}").write_text('{"version": "2.10", "pg_config": {}, "entries": []}')
    (tmp_path / "dump_2").write_text("killed")
    (tmp_path / "config.json").write_text('{"layers": 2}')
    (tmp_path / "job.log").write_text("step 1")
    with pytest.warns(RuntimeWarning) as warned:
        trace = dsexplore.load(tmp_path)
    for said in ("dump_2 cannot be read", "config.json has no entries and no pg_config"):
        assert any(said in str(one.message) for one in warned)
        assert any(said in note for note in trace.info.notes)
    assert len(warned) == 2


def test_beside_profiles_other_data_is_let_be(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "rank0.json").write_bytes(profile(0))
    (tmp_path / "config.json").write_text('{"layers": 2}')
    assert dsexplore.load(tmp_path).info.ranks == (0,)
    assert not [one for one in recwarn if "config.json" in str(one.message)]


def test_a_gzipped_dump_that_is_cut_off_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    file = tmp_path / "dump_1"
    file.write_bytes(gzip.compress(b'{"version": "2.10", "pg_config": {}, "entries": []}')[:-12])
    assert kind_of_file(file) == "recorder"


def test_an_empty_file_whose_name_says_no_rank_does_not_hide_the_ranks_of_the_others(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"dump_{rank}").write_text('{"version": "2.10", "pg_config": {}, "entries": []}')
    (tmp_path / "left").touch()
    assert [dump.rank for dump in read_dumps(sorted(tmp_path.iterdir())).dumps] == [0, 1]
