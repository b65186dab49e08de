"""Files that ask for more than they are: each is refused with little time and memory, the rest of its folder read.

Modules: ``trace/importers/``.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import resource
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dsexplore
from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.checked_tables import checked_tables
from dsexplore._internal.trace.importers.profiler_calls import listed

HUGE = 1 << 62
MOST_MIB = 300


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "record_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": 1,
        "is_p2p": False,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4]],
        "input_dtypes": ["Float"],
        "state": "scheduled",
        **changes,
    }


def dump(**changes: Any) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "pg_config": groups, "entries": [entry()], **changes}


def profile(rank: int = 1, arguments: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    told = {"Collective name": "allreduce", "In msg nelems": 4, "Group size": 2, "dtype": "Float", **(arguments or {})}
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "pid": 0, "tid": 7}
    event = {**kernel, "ts": 1.5, "dur": 2.5, "args": told, **changes.pop("event", {})}
    info = {"backend": "nccl", "rank": rank, "world_size": 2, **changes.pop("info", {})}
    return {"distributedInfo": info, "traceEvents": [event], "baseTimeNanoseconds": 17, **changes}


def shared(depth: int = 40) -> list[Any]:
    """Return a list of a few kilobytes that one walks through in 2**depth steps."""
    value: list[Any] = [1]
    for _ in range(depth):
        value = [value, value]
    return value


def inside_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


Content = bytes | Callable[[], bytes]
"""What a file holds; of what takes long to make, the function that makes it: each process collects all tests."""


def made(content: Content) -> bytes:
    return content() if callable(content) else content


def packed(content: Any) -> bytes:
    return pickle.dumps(content, 2)


def text(content: Any) -> bytes:
    return json.dumps(content).encode()


DEEP = b"[" * 200_000 + b"]" * 200_000
DUMPS: dict[str, Content] = {
    "ranks": text(dump(pg_config={"0": {"name": "0", "ranks": "[0, 2000000000]"}})),
    "negative rank": text(dump(pg_config={"0": {"name": "0", "ranks": [0, -1]}})),
    "place in the memo": b"\x80\x02Nr\xff\xff\xff\x7f.",
    "place as text": b"\x80\x02Np2000000000\n.",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
    "bytes": b"\x80\x05\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "number": b"\x80\x02\x8b" + struct.pack("<i", 1 << 30) + b".",
    "deep pickle": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep text": b'{"version":"2.10","pg_config":{},"entries":' + DEEP + b"}",
    "shared sizes": packed(dump(entries=[entry(input_sizes=shared())])),
    "shared groups": packed(dump(pg_config=shared())),
    "inside itself": packed(dump(entries=[entry(input_sizes=inside_itself())])),
    "blanks": lambda: gzip.compress(b'{"entries"' + b" " * (1 << 26), 1),
    "one letter": lambda: gzip.compress(b'{"entries":"' + b"x" * (1 << 27), 6),
    "moment": text(dump(entries=[entry(time_created_ns=1 << 70)])),
    "half of a character": b'{"version":"2.10","pg_config":{"\\ud800":{"name":"\\ud800","ranks":"[0]"}},"entries":[]}',
}
PROFILES: dict[str, Content] = {
    "world": text(profile(info={"world_size": 2_000_000_000})),
    "listed ranks": text(profile(info={"pg_config": [{"pg_name": "0", "ranks": [0, 2_000_000_000]}]})),
    "listed size": text(profile(info={"pg_config": [{"pg_name": "0", "pg_size": HUGE}]})),
    "infinite start": text(profile(event={"ts": float("inf")})),
    "moment": text(profile(event={"ts": 1e300})),
    "no start": text(profile(event={"ts": None})),
    "name": text(profile(event={"name": [5]})),
    "process": text(profile(event={"pid": [1]})),
    "sequence number": text(profile(arguments={"Seq": 1 << 80})),
    "deep": b'{"traceEvents":' + DEEP + b"}",
    "blanks": lambda: gzip.compress(b'{"traceEvents":[' + b" " * (1 << 26), 1),
}


@pytest.fixture(scope="module", autouse=True)
def _imported(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Import what is needed before anything is measured."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "dump_0").write_bytes(text(dump()))
    dsexplore.load(folder)
    dsexplore.explain_hang(folder)


@contextmanager
def limited() -> Iterator[None]:
    """At most `MOST_MIB` more memory, and two seconds of this process."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    used = int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (used + (MOST_MIB << 20), before[1]))
    began = time.process_time()
    try:
        yield
    finally:
        took = time.process_time() - began
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert took < 2


@pytest.mark.parametrize("content", DUMPS.values(), ids=DUMPS)
def test_a_dump_that_asks_for_too_much_is_refused(tmp_path: Path, content: Content) -> None:
    (tmp_path / "dump_0").write_bytes(text(dump()))
    (tmp_path / "dump_1").write_bytes(made(content))
    with limited(), pytest.raises(TraceFileError, match="dump_1"):
        dsexplore.load(tmp_path / "dump_1")
    with limited(), pytest.warns(RuntimeWarning, match="dump_1"):
        trace = dsexplore.load(tmp_path)
    assert trace.info.ranks == (0,)
    with limited():
        assert any("dump_1" in note for note in dsexplore.explain_hang(tmp_path).notes)


@pytest.mark.parametrize("content", PROFILES.values(), ids=PROFILES)
def test_a_profile_that_asks_for_too_much_is_refused(tmp_path: Path, content: Content) -> None:
    (tmp_path / "rank0.json").write_bytes(text(profile(0)))
    (tmp_path / "rank1.json").write_bytes(made(content))
    with limited(), pytest.raises(TraceFileError, match="rank1"):
        dsexplore.load(tmp_path / "rank1.json")
    with limited(), pytest.warns(RuntimeWarning, match="rank1"):
        trace = dsexplore.load(tmp_path)
    assert trace.info.ranks == (0,)


@pytest.mark.parametrize(
    "arguments",
    [
        {"In msg nelems": HUGE, "Out msg nelems": HUGE},
        {"In msg nelems": -5},
        {"Group size": HUGE},
        {"Group size": -5},
        {"Process Group Name": "9", "Group size": 1 << 40, "Global rank start": 0, "Global rank stride": 1},
        {"Process Group Ranks": "[0, 2000000000]"},
        {"Process Group Ranks": "[0] * 999999999"},
        {"Collective name": "send", "Dst Rank": 1 << 80},
    ],
)
def test_what_cannot_be_true_of_a_collective_is_unknown(tmp_path: Path, arguments: dict[str, Any]) -> None:
    (tmp_path / "rank0.json").write_bytes(text(profile(0, arguments)))
    with limited():
        trace = dsexplore.load(tmp_path)
    (row,) = trace.events.iter_rows(named=True)
    assert row["message_bytes"] in (None, 16)
    assert row["peer"] is None
    assert trace.groups["ranks"].list.max().max() in (None, 1)


def test_sizes_that_cannot_be_true_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "dump_0").write_bytes(text(dump(entries=[entry(input_sizes=[[HUGE, HUGE]])])))
    (row,) = dsexplore.load(tmp_path).events.iter_rows(named=True)
    assert (row["message_bytes"], row["shape"]) == (None, [])


BYTES: dict[str, Content] = {
    "UTF-16": json.dumps(dump()).encode("utf-16"),
    "not a number": text(dump(entries=[entry(input_sizes=[[float("nan")]], record_id=float("inf"))])),
    "a key twice": text(dump()).replace(b'"entries": [', b'"entries": 5, "entries": ['),
    "a long text": text(dump(entries=[entry(profiling_name="x" * (1 << 24))])),
    "zeros": b"\0" * (1 << 20),
    "a long number": b'{"pg_config": {}, "entries": [' + b"9" * 1_000_000 + b"]}",
    "negative ranks": text(dump(rank=-7)),
    "many groups": text(dump(pg_config={str(i): {"name": str(i), "ranks": "[0]"} for i in range(20_000)})),
}
"""{what is odd about it: content}, read or refused."""


@pytest.mark.parametrize("content", [*BYTES.values(), *PROFILES.values()], ids=[*BYTES, *PROFILES])
def test_odd_bytes_take_neither_time_nor_memory_and_the_rest_is_read(tmp_path: Path, content: Content) -> None:
    (tmp_path / "dump_0").write_bytes(text(dump()))
    (tmp_path / "dump_1").write_bytes(made(content))
    with limited(), suppress(TraceFileError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dsexplore.load(tmp_path / "dump_1").headline()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "dump_1").write_bytes(made(content))
    with limited(), suppress(TraceFileError, dsexplore.UsageError):
        dsexplore.explain_hang(tmp_path)


def test_pipes_devices_and_links_in_circles_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dump_1")
    (tmp_path / "dump_2").symlink_to(tmp_path / "dump_2")
    (tmp_path / "self").symlink_to(tmp_path)
    for path in (tmp_path / "dump_1", Path("/dev/zero")):
        for read in (dsexplore.load, dsexplore.explain_hang):
            with limited(), pytest.raises(TraceFileError, match="is a pipe, a socket or a device"):
                read(path)
    with pytest.raises(FileNotFoundError, match="dump_2"):
        dsexplore.load(tmp_path / "dump_2")
    (tmp_path / "dump_0").write_bytes(text(dump()))
    with limited():
        assert dsexplore.load(tmp_path).info.ranks == (0,)
        assert dsexplore.explain_hang(tmp_path).world_size == 2


NULL = {name: {name: None} for name in ("version", "pg_config", "pg_status", "entries")}
NULL["all of them"] = dict.fromkeys(NULL)


@pytest.mark.parametrize("fields", NULL.values(), ids=NULL)
@pytest.mark.parametrize("write", [packed, text])
def test_a_dump_with_null_in_its_fields_is_no_empty_one(
    tmp_path: Path, fields: dict[str, Any], write: Callable[[Any], bytes]
) -> None:
    (tmp_path / "dump_0").write_bytes(write(dump()))
    (tmp_path / "dump_1").write_bytes(write(dump(**fields)))
    said = f"dump_1 has no {', '.join(fields)}: it is not a whole dump"
    with pytest.raises(TraceFileError, match=said):
        dsexplore.load(tmp_path / "dump_1")
    with pytest.raises(TraceFileError, match=said):
        dsexplore.explain_hang(tmp_path / "dump_1")
    with pytest.warns(RuntimeWarning, match=said):
        assert dsexplore.load(tmp_path).info.ranks == (0,)
    assert any(said in note for note in dsexplore.explain_hang(tmp_path).notes)


def whole_profile() -> dict[str, Any]:
    """Return a profile with a step, a module, a launch and groups, small enough to change each of its values."""
    content = profile(0, {"correlation": 7, "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Seq": 1})
    content["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_desc": "dp", "pg_size": 2, "ranks": [0, 1]}]
    on_cpu = {"ph": "X", "pid": 1, "tid": 3, "dur": 9}
    content["traceEvents"] += [
        {**on_cpu, "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 0.5},
        {**on_cpu, "cat": "python_function", "name": "nn.Module: Linear_0", "ts": 0.6},
        {**on_cpu, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 0.7, "args": {"correlation": 7}},
        {**on_cpu, "cat": "kernel", "name": "gemm", "pid": 0, "ts": 2},
        {**on_cpu, "cat": "user_annotation", "name": "end", "ts": 20},
    ]
    return content


def whole_log() -> list[dict[str, Any]]:
    perf = {"coll": "AllReduce", "coll_sn": 1, "coll_msg_size_bytes": 64, "coll_exec_time_us": 5}
    times = [{"kernel_start_ts": 5, "kernel_stop_ts": 9}, {"kernel_start_ts": 6, "kernel_stop_ts": 8}]
    header = {"id": "0x1", "comm_name": "dp", "rank": 0, "n_ranks": 2}
    message = {"p2p": "Send", "p2p_peer": 1, "p2p_msg_size_bytes": 8, "p2p_exec_time_us": 5}
    timed = {"header": header, "coll_perf": {**perf, "event_trace_ts": {"kernel_events": times}}}
    return [timed, {"header": header, "p2p_perf": message}]


def whole_execution_trace() -> dict[str, Any]:
    described = {"collective_name": "allreduce", "dtype": "Float", "in_msg_nelems": 4, "pg_name": "0", "pg_size": 2}
    attributes = [{"name": name, "value": value} for name, value in described.items()]
    inputs = {"values": [[1]], "shapes": [[4]], "types": ["Tensor(float)"]}
    outer = {"id": 3, "name": "c10d::allreduce_", "ctrl_deps": 1, "inputs": inputs}
    return {"nodes": [outer, {"id": 4, "name": "record_param_comms", "ctrl_deps": 3, "attrs": attributes}]}


STATUS = {"0": {"last_enqueued_collective": 1, "last_started_collective": 1, "last_completed_collective": 0}}
TIMES = {"time_created_ns": 5, "time_discovered_started_ns": 6, "time_discovered_completed_ns": 9, "duration_ms": 1e-6}
NUMBERS = {"op_id": 1, "p2p_seq_id": 0, "pg_id": 0, "timeout_ms": 60}
FRAMES = [{"name": "step", "filename": "train.py", "line": 3}]
TIMED = {"output_sizes": [[4]], "output_dtypes": ["Float"], "frames": FRAMES, **TIMES, **NUMBERS}
GLOO = {"profiling_name": "gloo:all_gather", "retired": True, "record_id": 1, "collective_seq_id": 2}
WHOLE: dict[str, tuple[Any, Callable[[Any], bytes]]] = {
    "dump_0": (dump(pg_status=STATUS, entries=[entry(**TIMED), entry(**{**TIMED, **GLOO})]), text),
    "rank0.json": (whole_profile(), text),
    "a.log": (whole_log(), lambda lines: b"\n".join(map(text, lines))),
    "et.json": (whole_execution_trace(), text),
}
"""{name of a file: its content, and how that is written}."""


def changed(content: Any, value: Any) -> Iterator[Any]:
    """Yield the content once for each value in it that is replaced by another."""
    for key, member in list(content.items() if isinstance(content, dict) else enumerate(content)):
        content[key] = value
        yield content
        content[key] = member
        if isinstance(member, dict | list):
            for _ in changed(member, value):
                yield content


@pytest.mark.parametrize("value", [None, -1, HUGE, float("nan"), [None], {}], ids=str)
@pytest.mark.parametrize("name", WHOLE)
def test_no_value_of_a_file_leads_to_what_cannot_be(tmp_path: Path, name: str, value: Any) -> None:
    content, write = deepcopy(WHOLE[name][0]), WHOLE[name][1]
    (tmp_path / name).write_bytes(write(content))
    assert len(dsexplore.load(tmp_path / name))
    count, said = 0, set()
    for hostile in changed(content, value):
        (tmp_path / name).write_bytes(write(hostile))
        try:
            tables = dsexplore.load(tmp_path / name).tables
        except TraceFileError as error:
            said.add(str(error))
            continue
        count += 1
        checked_tables(tables)
        assert tables.events.filter(pl.col("end") < pl.col("start")).is_empty()
        texts = (*tables.events.select(pl.col(pl.String)).rows(), *tables.groups.rows(), tables.info.notes)
        assert value is not None or "None" not in str([[cell for cell in row if cell is not None] for row in texts])
    assert count
    assert all(name in error for error in said)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 80), 1 << 80) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
FIELDS = st.sampled_from(sorted({*entry(), "time_created_ns", "frames", "duration_ms", "output_sizes", "pg_id"}))
ARGUMENTS = ("Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name", "Seq")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=FIELDS, value=VALUES, is_packed=st.booleans())
def test_any_value_in_a_dump_is_read_or_refused(tmp_path: Path, field: str, value: Any, is_packed: bool) -> None:
    content = dump(entries=[entry(**{field: value})])
    (tmp_path / "dump_0").write_bytes(packed(content) if is_packed else text(content))
    try:
        dsexplore.load(tmp_path).headline()
        dsexplore.explain_hang(tmp_path)
    except TraceFileError:
        pass


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(field=st.sampled_from(["name", "cat", "pid", "tid", "ts", "dur", "args", *ARGUMENTS]), value=VALUES)
def test_any_value_in_a_profile_is_read_or_refused(tmp_path: Path, field: str, value: Any) -> None:
    is_argument = field in ARGUMENTS
    changes = {"arguments": {field: value}} if is_argument else {"event": {field: value}}
    (tmp_path / "rank0.json").write_bytes(text(profile(0, **changes)))
    with suppress(TraceFileError):
        dsexplore.load(tmp_path).headline()


def test_a_text_that_no_literal_can_be_is_no_list() -> None:
    assert [listed(text) for text in ("{[]: 1}", "[" * 100_000, "[0, 1]")] == [None, None, (0, 1)]
