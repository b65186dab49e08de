"""Flight-recorder dumps of every format, as they come and as they should not."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.analysis.hangs.explain import explain_hang
from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.recorder_dump import dump_of, parse_ranks, read_content
from dsexplore._internal.trace.importers.recorder_entry import RecorderEntry
from dsexplore._internal.trace.trace import load


def entry(name: str = "nccl:all_reduce", record: int = 0, **changes: Any) -> dict[str, Any]:
    """Return an entry as torch 2.13 writes it; a change to ``...`` leaves the field out."""
    full = {
        "record_id": record,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": record + 1,
        "p2p_seq_id": 0,
        "op_id": record + 1,
        "profiling_name": name,
        "time_created_ns": 1_000,
        "input_sizes": [[4, 4]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[4, 4]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": 1_500,
        "time_discovered_completed_ns": 3_000,
        "retired": True,
        "timeout_ms": 600_000,
        "is_p2p": False,
        **changes,
    }
    return {key: value for key, value in full.items() if value is not ...}


def dump(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    full = {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {
            "0": {"last_enqueued_collective": 1, "last_started_collective": 1, "last_completed_collective": 1}
        },
        "entries": list(entries),
        **changes,
    }
    return {key: value for key, value in full.items() if value is not ...}


def entries(content: dict[str, Any]) -> tuple[RecorderEntry, ...]:
    return dump_of(Path("rank_0"), content, 0).entries


def text(value: Any) -> Any:
    """Return the same with every number as text, as torch's JSON of some versions has them."""
    if isinstance(value, dict):
        return {key: text(each) for key, each in value.items()}
    if isinstance(value, list):
        return [text(each) for each in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("pack", [lambda d: json.dumps(d).encode(), lambda d: pickle.dumps(d, protocol=2)])
@pytest.mark.parametrize("squeeze", [lambda data: data, gzip.compress])
def test_json_and_pickle_hold_the_same(tmp_path: Path, as_text: bool, pack: Any, squeeze: Any) -> None:
    whole = dump(entry(), entry("nccl:send 0->1", 1, is_p2p=True, p2p_seq_id=7))
    file = tmp_path / "dump_0"
    file.write_bytes(squeeze(pack(text(whole) if as_text else whole)))
    read = dump_of(file, read_content(file), 0)
    assert (read.version, read.library, read.groups) == ("2.10", "2.27.3", {"0": ("default_pg", (0, 1))})
    assert read.status == {0: (1, 1, 1)}
    first, second = read.entries
    assert (first.op, first.state, first.ended, first.input_dtypes) == ("all_reduce", "completed", 3_000, ("bfloat16",))
    assert (second.op, second.sequence, second.peers, second.input_sizes) == ("send", 7, (0, 1), ((4, 4),))


class Evil:
    def __reduce__(self) -> Any:
        return print, ("run",)


def test_no_code_of_a_pickle_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "dump_0"
    file.write_bytes(pickle.dumps({"entries": [Evil()], "version": "2.10"}, protocol=2))
    with pytest.raises(TraceFileError, match=r"dump_0 cannot be read \(the pickle names __builtin__.print"):
        read_content(file)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("data", [b"\x80\x02}q", b'{"entries": [', b"\x1f\x8b\x00", b"{]"])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "dump_0"
    file.write_bytes(data)
    with pytest.raises(TraceFileError, match="dump_0 cannot be read"):
        read_content(file)


@pytest.mark.parametrize(
    ("field", "named"),
    [
        ("profiling_name", r"entries\[0\]\.profiling_name"),
        ("process_group", r"entries\[0\]\.process_group"),
        ("collective_seq_id", r"entries\[0\]\.collective_seq_id"),
    ],
)
def test_a_missing_field_is_named(field: str, named: str) -> None:
    missing = {field: ..., **({"p2p_seq_id": ...} if field == "collective_seq_id" else {})}
    with pytest.raises(TraceFileError, match=f"rank_0 has no {named}"):
        entries(dump(entry(**missing)))


def test_the_line_of_a_job_that_was_recorded_is_the_programs() -> None:
    """Return the frames of a dump of a job with NCCL on an H200."""
    files = {
        "/job/dsexplore/capture/substrate.py": 79,
        "/job/dsexplore/capture/group_methods.py": 102,
        "/env/torch/distributed/distributed_c10d.py": 3068,
        "/job/dsexplore/train.py": 120,
    }
    frames = [{"name": "f", "filename": file, "line": line} for file, line in files.items()]
    (one,) = entries(dump(entry(frames=frames)))
    assert one.source == "/job/dsexplore/train.py:120"


def test_fields_of_other_versions() -> None:
    old = entry(
        is_p2p=..., p2p_seq_id=..., process_group=..., pg_name="0", time_discovered_completed_ns=0, state="scheduled"
    )
    (one,) = entries(dump(old, version="2.3", comm_lib_version=..., nccl_version="2.20.5"))
    assert (one.group, one.state, one.ended, one.is_p2p) == ("0", "scheduled", None, False)
    (one,) = entries(dump(entry(collective_seq_id=..., seq_id=3), pg_config={"0": [0, 1]}))
    assert one.sequence == 3
    assert dump_of(Path("r"), dump(entries=...), 0).entries == ()
    assert parse_ranks("[0, 1, 12]") == (0, 1, 12) == parse_ranks([0, "1", 12])


@pytest.mark.parametrize("written", ["NaN", "Infinity", "null"])
def test_a_duration_that_is_no_number_is_none(tmp_path: Path, written: str) -> None:
    file = tmp_path / "dump_0"
    file.write_text(json.dumps(dump(entry(duration_ms="of the device"))).replace('"of the device"', written))
    assert dump_of(file, read_content(file), 0).entries[0].duration_ms is None
    assert load(file).events.height == 1


def test_gloo_records_no_end_but_that_it_let_go() -> None:
    kept, gone = entry("gloo:all_reduce"), entry("nccl:all_reduce")
    for one in (kept, gone):
        one.update(state="scheduled", time_discovered_completed_ns=0, retired=True)
    assert entries(dump(kept))[0].state == "completed"
    assert entries(dump(gone))[0].state == "scheduled"


def test_dumps_become_a_trace(tmp_path: Path) -> None:
    gather = entry(
        "nccl:_all_gather_base", output_sizes=[[8, 4]], frames=[
            {"filename": "/x/torch/distributed/c10d.py", "line": 3, "name": "all_gather"},
            {"filename": "/job/train.py", "line": 40, "name": "step"},
        ],
    )  # fmt: skip
    waiting = entry("nccl:all_reduce", 1, state="started", time_discovered_completed_ns=None)
    for rank in (0, 1):
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump(gather, waiting)))
    trace = load(tmp_path)
    assert trace.info.ranks == (0, 1)
    assert trace.info.world_size == 2
    assert trace.events.select(
        "rank", "op", "message_bytes", "wire_bytes", "dtype", "source", "start", "end", "state"
    ).rows()[:2] == [
        (0, "all_gather", 64, 32, "bfloat16", "/job/train.py:40", 1_500, 3_000, "completed"),
        (0, "all_reduce", 32, 32, "bfloat16", "", 1_500, None, "started"),
    ]
    assert trace.groups.select("group", "ranks", "backend").rows() == [("0", [0, 1], "nccl")]


@pytest.mark.parametrize(
    ("name", "changes", "shape"),
    [
        ("nccl:all_reduce", {"input_sizes": [[2, 3]], "output_sizes": [[4]]}, [2, 3]),
        ("nccl:all_reduce", {"input_sizes": [], "output_sizes": [[4]]}, [4]),
        ("nccl:all_gather", {"input_sizes": [[2]], "output_sizes": [[2, 2]]}, [2, 2]),
        ("nccl:all_reduce", {"input_sizes": [], "output_sizes": []}, []),
    ],
)
def test_the_shape_is_that_of_what_is_sent(
    tmp_path: Path, name: str, changes: dict[str, Any], shape: list[int]
) -> None:
    (tmp_path / "rank_0.json").write_text(json.dumps(dump(entry(name, **changes))))
    assert load(tmp_path).events["shape"].to_list() == [shape]


def test_a_file_that_cannot_be_read_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    for rank in (0, 1, 2):
        (tmp_path / f"r{rank}").write_text(json.dumps(dump(entry(**({"profiling_name": ...} if rank == 1 else {})))))
    with pytest.warns(RuntimeWarning, match=r"r1 has no entries\[0\]\.profiling_name"):
        trace = load(tmp_path)
    assert trace.info.ranks == (0, 2)
    assert any("r1 has no entries[0].profiling_name" in note for note in trace.info.notes)


def test_a_file_whose_groups_are_none_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    for rank, changes in enumerate(({}, {"pg_config": "odd"})):
        (tmp_path / f"dump_rank_{rank}").write_text(json.dumps(dump(entry(), **changes)))
    with pytest.warns(RuntimeWarning, match=r"dump_rank_1 is not a dump .* \(pg_config is 'odd'\)"):
        trace = load(tmp_path)
    assert trace.info.ranks == (0,)


def test_nothing_readable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(b'{"entries": [')
    with pytest.raises(TraceFileError, match="dump_0 cannot be read"):
        load(tmp_path)


@pytest.mark.parametrize(("first", "is_noted"), [(0, True), (1, False), (7, False)])
def test_a_message_may_have_its_other_end_before_the_first_entry_that_is_left(
    tmp_path: Path, first: int, is_noted: bool
) -> None:
    sent = [entry("nccl:send 0->1", 0, is_p2p=True), entry(record=1)]
    for rank, held in enumerate((sent, [entry(record=first)])):
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(dump(*held)))
    assert any("rank 1 does not receive" in note for note in load(tmp_path).info.notes) == is_noted


def gloo(name: str, number: int, record: int, **changes: Any) -> dict[str, Any]:
    changes = {"collective_seq_id": number, "op_id": number, "process_group": ["", ""], **changes}
    return entry(f"gloo:{name}", record, state="scheduled", time_discovered_completed_ns=0, **changes)


def test_calls_that_gloos_recorder_does_not_write_are_said(tmp_path: Path) -> None:
    """Return what torch 2.13 writes for an all_reduce, a monitored_barrier, a barrier, a send and an all_reduce."""
    written = [gloo("all_reduce", 1, 0), gloo("barrier", 4, 1), gloo("all_reduce", 5, 2, op_id=6)]
    note = (
        "rank 0: 3 calls without a record (op_id 2, 3, 5): gloo's recorder writes no send, recv and monitored_barrier"
    )
    assert dump_of(Path("rank_0"), dump(*written), 0).unwritten == (2, 3, 5)
    (tmp_path / "rank_0").write_text(json.dumps(dump(*written)))
    assert note in load(tmp_path).info.notes
    assert note in explain_hang(tmp_path).notes


@pytest.mark.parametrize(
    "written",
    [
        [gloo("all_reduce", 1, 0), gloo("barrier", 2, 1), gloo("all_reduce", 3, 2)],
        [gloo("all_reduce", 41, 0), gloo("barrier", 42, 1)],  # a ring buffer that has lost the first ones
        [gloo("all_reduce", 1, 0, op_id=...), gloo("barrier", 4, 1, op_id=...)],  # torch before 2.5
        [gloo("all_reduce", 1, 0), gloo("barrier", 1 << 60, 1)],  # no number of a call
        [entry(record=0), entry(record=1, op_id=5)],  # NCCL counts coalesced calls otherwise
    ],
)
def test_nothing_is_said_of_calls_where_none_is_known_to_be_missing(written: list[dict[str, Any]]) -> None:
    assert dump_of(Path("rank_0"), dump(*written), 0).note_on_unwritten == ""
