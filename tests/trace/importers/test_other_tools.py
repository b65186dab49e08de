"""Files of other tools: logs of NCCL Inspector, execution traces, archives, and kinds that are named but not read.

Modules: ``trace/importers/inspector_log.py``, ``trace/importers/execution_trace.py``, ``trace/importers/archives.py``.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.errors import TraceFileError
from tests.trace.importers.test_hostile_files import Content, dump, limited, made, profile, text

STAMP = 1_748_030_377_748_202


def line(
    coll: str = "AllReduce", number: int = 1, size: int = 4096, rank: int = 0, ranks: int = 2, **more: Any
) -> dict[str, Any]:
    """Return one line as format v4.0 of NCCL Inspector has it; verbose if ``times`` are given."""
    kind = "p2p" if coll in ("Send", "Recv") else "coll"
    perf = {kind: coll, f"{kind}_sn": number, f"{kind}_msg_size_bytes": size, f"{kind}_exec_time_us": 250}
    if kind == "p2p":
        perf["p2p_peer"] = 1 - rank
    if times := more.pop("times", None):
        kernels = [{"channel_id": i, "kernel_start_ts": a, "kernel_stop_ts": b} for i, (a, b) in enumerate(times)]
        perf["event_trace_ts"] = {"coll_start_ts": STAMP, "kernel_events": kernels}
    header = {"id": "0x7f8c", "comm_name": "unknown", "rank": rank, "n_ranks": ranks, "nnodes": 1, **more}
    metadata = {"inspector_output_format_version": "v4.0", "dump_timestamp_us": STAMP, "hostname": "a", "pid": 7}
    return {"header": header, "metadata": metadata, f"{kind}_perf": perf}


def log_of(*lines: dict[str, Any], cut: int = 0) -> bytes:
    content = "".join(json.dumps(one) + "\n" for one in lines).encode()
    return content[: len(content) - cut]


def test_a_verbose_log_says_when_and_how_much(tmp_path: Path) -> None:
    times = [(STAMP + 5, STAMP + 90), (STAMP + 3, STAMP + 80)]
    for rank in range(2):
        lines = [
            line("AllReduce", 1, 4096, rank, times=times),
            line("ReduceScatter", 2, 512, rank, times=times),
            line("AllGather", 3, 512, rank, times=times),
            line("Send" if rank == 0 else "Recv", 1, 64, rank, times=times),
        ]
        (tmp_path / f"host-pid{rank}.log").write_bytes(log_of(*lines))
    trace = dsexplore.load(tmp_path)
    assert trace.info.ranks == (0, 1)
    assert trace.events.filter(rank=0).select("op", "message_bytes", "group_seq", "peer").rows() == [
        ("all_reduce", 4096, 1, None),
        ("reduce_scatter", 1024, 2, None),
        ("all_gather", 1024, 3, None),
        ("send", 64, None, 1),
    ]
    assert trace.events.select("start", "end").row(0) == ((STAMP + 3) * 1_000, (STAMP + 90) * 1_000)
    assert trace.groups.select("ranks", "backend", "timing").rows() == [([0, 1], "nccl", "cuda")]
    assert not [note for note in trace.info.notes if "pid0.log" in note]


def test_a_plain_log_says_how_long_but_not_when(tmp_path: Path) -> None:
    lines = [line(number=number) for number in (1, 2, 5)]
    (tmp_path / "a.log").write_bytes(log_of(*lines, line(number=6), cut=20))
    trace = dsexplore.load(tmp_path / "a.log")
    assert trace.events["start"].to_list() == [None] * 3
    assert "a.log: 1 damaged line left out" in trace.info.notes
    assert "a.log lacks 2 collectives between those that it has, by their numbers" in trace.info.notes
    said = "a.log says how long 3 collectives took, 750 µs together, but not when: record with"
    assert any(note.startswith(said) for note in trace.info.notes)
    whole = tmp_path / "b.log"
    whole.write_bytes(log_of(*lines[:2]))
    assert not any("damaged" in note or "lacks" in note for note in dsexplore.load(whole).info.notes)


def test_the_rank_is_that_in_the_largest_communicator(tmp_path: Path) -> None:
    for rank in range(4):
        pair = {"id": f"0x{rank // 2}", "comm_name": "tp"}
        lines = [line(rank=rank, ranks=4), line(rank=rank % 2, ranks=2, **pair)]
        (tmp_path / f"{rank}.log").write_bytes(log_of(*lines))
    trace = dsexplore.load(tmp_path)
    assert trace.info.world_size == 4
    groups = dict(trace.groups.select("group", "ranks").rows())
    assert groups == {"0x7f8c": [0, 1, 2, 3], "0x0": [0, 1], "0x1": [2, 3]}
    (tmp_path / "3.log").unlink()
    missing = dsexplore.load(tmp_path)
    assert missing.groups.filter(group="0x1")["ranks"].to_list() == [[]]
    assert any("rank 3" in note for note in missing.info.notes)


def test_a_process_with_several_gpus_writes_one_file(tmp_path: Path) -> None:
    lines = [line(rank=rank) for rank in range(2)]
    alone = line(rank=0, ranks=1, id="0x9")
    (tmp_path / "a.log").write_bytes(log_of(*lines, alone))
    trace = dsexplore.load(tmp_path / "a.log")
    assert trace.events["rank"].to_list() == [0, 1]
    said = "a.log does not name the rank of 1 collective, left out here"
    assert said in trace.info.notes
    (tmp_path / "b.log").write_bytes(log_of(*lines))
    assert not any("of which rank" in note for note in dsexplore.load(tmp_path / "b.log").info.notes)


def node(number: int, name: str, parent: int, dims: Any = (), kinds: Any = (), **attributes: Any) -> dict[str, Any]:
    """Return one node as format 1.1.1-chakra.0.0.4 of torch's execution traces has it."""
    told = {"tid": 1, **attributes}
    return {
        "id": number,
        "name": name,
        "ctrl_deps": parent,
        "inputs": {"values": ["" for _ in dims], "shapes": list(dims), "types": list(kinds)},
        "outputs": {"values": [], "shapes": [], "types": []},
        "attrs": [{"name": key, "type": "string", "value": value} for key, value in told.items()],
    }


def execution_trace(*nodes: dict[str, Any]) -> bytes:
    listed = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo", "pg_size": 2, "ranks": [0, 1]}]
    groups = node(3, "## process_group:init ##", 2)
    groups["inputs"] = {"values": [json.dumps(listed)], "shapes": [[]], "types": ["String"]}
    content = {"schema": "1.1.1-chakra.0.0.4", "pid": 7, "time": "now", "start_ts": 1, "nodes": [groups, *nodes]}
    return json.dumps(content).encode()


COLLECTIVE = {
    "collective_name": "_allgather_base",
    "dtype": "BFloat16",
    "in_msg_nelems": 16,
    "out_msg_nelems": 32,
    "pg_name": "0",
    "pg_desc": "default_pg",
    "pg_size": 2,
}


def test_an_execution_trace_has_collectives_without_times(tmp_path: Path) -> None:
    nodes = [
        node(10, "## forward ##", 2),
        node(11, "c10d::_allgather_base_", 10, [[32], [16]], ["Tensor(c10::BFloat16)"] * 2),
        node(12, "record_param_comms", 11, **COLLECTIVE),
        node(13, "nccl:_all_gather_base", 12, [[16]], ["Tensor(c10::BFloat16)"]),
        node(14, "c10d::allreduce_", 2, [[[8]], []], ["GenericList[Tensor(float)]", "Object"]),
    ]
    for rank in range(2):
        (tmp_path / f"et_rank{rank}.json").write_bytes(execution_trace(*nodes))
    trace = dsexplore.load(tmp_path)
    rows = trace.events.filter(rank=0).select("op", "message_bytes", "dtype", "phase", "start", "end", "group")
    assert rows.rows() == [
        ("all_gather", 64, "bfloat16", "forward", None, None, "0"),
        ("all_reduce", 32, "float32", "other", None, None, "0"),
    ]
    said = "et_rank0.json is an execution trace: it has the order of its collectives, but no times"
    assert said in trace.info.notes
    assert not any("durations are unknown" in note for note in trace.info.notes)


def test_an_older_execution_trace_has_the_name_among_the_inputs(tmp_path: Path) -> None:
    """Format 1.0.2-chakra.0.0.4 describes a wait as well."""
    described = node(12, "record_param_comms", 11, [[[4]], [], []], ["GenericList[Tensor(float)]", "Int", "String"])
    described["inputs"]["values"] = [[[14, 15, 0, 4, 4, "cuda:0"]], 12, "all_gather"]
    waiting = node(20, "record_param_comms", 2, [[], []], ["Int", "String"])
    waiting["inputs"]["values"] = [12, "wait"]
    nodes = [described, node(13, "nccl:all_gather", 12, [[4]], ["Tensor(float)"]), waiting]
    (tmp_path / "et.json").write_bytes(execution_trace(*nodes))
    trace = dsexplore.load(tmp_path / "et.json")
    assert trace.events.select("op", "message_bytes").rows() == [("all_gather", 32)]


def archive(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as opened:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return packed.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_an_archive_is_read_as_the_folder_in_it(tmp_path: Path, mode: str) -> None:
    files = {f"job/step/rank{rank}.json": text(profile(rank)) for rank in range(2)}
    hidden = {"job/step/._rank0.json": b"\0" * 99, "../rank7.txt": b"outside"}
    file = tmp_path / "in" / "job.tar"
    file.parent.mkdir()
    file.write_bytes(archive({**files, **hidden}, mode))
    trace = dsexplore.load(file)
    assert trace.info.ranks == (0, 1)
    assert not (tmp_path / "rank7.txt").exists()


def test_what_is_wrong_in_an_archive_is_said_of_it(tmp_path: Path) -> None:
    (tmp_path / "job.tar.gz").write_bytes(archive({"rank0.json": b'{"traceEvents": [{"ph"'}))
    with pytest.raises(TraceFileError, match=r"job\.tar\.gz/rank0\.json cannot be read"):
        dsexplore.load(tmp_path / "job.tar.gz")
    (tmp_path / "cut.tar.gz").write_bytes(archive({"rank0.json": text(profile(0))})[:-30])
    with pytest.raises(TraceFileError, match=r"cut\.tar\.gz cannot be unpacked"):
        dsexplore.load(tmp_path / "cut.tar.gz")


def declared(size: int) -> bytes:
    """Return a tar file whose only member says to be of that size."""
    member = tarfile.TarInfo("rank0.json")
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT) + b"{}" + b"\0" * 510


NESTED = b"[" * 200_000 + b"]" * 200_000
HOSTILE: dict[str, tuple[str, Content]] = {
    "blank archive": ("a.tar.gz", lambda: gzip.compress(b"a" * 257 + b"ustar" + b"\0" * (1 << 27), 1)),
    "declared size": ("a.tar", declared(1 << 62)),
    "many bytes": ("a.tar.gz", lambda: archive({"rank0.json": b" " * (1 << 27)})),
    "line": ("a.log", lambda: log_of(line()) + b'{"coll_perf": "' + b"x" * (1 << 25)),
    "no lines": ("a.log", b'{"coll_perf": 1}\n' * 100_000),
    "ranks": ("a.log", log_of(line(ranks=1 << 40))),
    "number": ("a.log", log_of(line(number=1 << 80))),
    "deep line": ("a.log", b'{"coll_perf": ' + NESTED + b"}\n"),
    "deep nodes": ("a.json", b'{"nodes": ' + NESTED + b', "ctrl_deps": 1}'),
    "no nodes": ("a.json", b'{"nodes": 5, "ctrl_deps": 1}'),
    "blanks": ("a.json", lambda: gzip.compress(b'{"nodes": [{"ctrl_deps": 1' + b" " * (1 << 26), 1)),
}


@pytest.mark.parametrize(("name", "content"), HOSTILE.values(), ids=HOSTILE)
def test_a_file_that_asks_for_too_much_is_refused(tmp_path: Path, name: str, content: Content) -> None:
    (tmp_path / name).write_bytes(made(content))
    with limited(), pytest.raises(TraceFileError, match=name):
        dsexplore.load(tmp_path / name)


@pytest.mark.parametrize(
    "given",
    [line(size=1 << 62), line(size=-5), line("Send", rank=0, ranks=2), line("Nothing")],
    ids=["huge", "negative", "message", "unknown"],
)
def test_what_cannot_be_true_in_a_log_is_unknown(tmp_path: Path, given: dict[str, Any]) -> None:
    (tmp_path / "a.log").write_bytes(log_of(given))
    with limited():
        trace = dsexplore.load(tmp_path / "a.log")
    assert trace.events["message_bytes"].to_list() in ([None], [4096])
    assert "nothing on the wire" not in str(trace.headline())


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("trace.pftrace", b"\x0a\x06\x50\x01\x5a\x02ab" * 4, "a Perfetto protobuf: export it as JSON"),
        ("job.nsys-rep", b"\x01\x02", "a report of Nsight Systems: profile the job"),
        ("job.sqlite", b"SQLite format 3\0rest", "an SQLite database, as Nsight Systems exports"),
        ("host.xplane.pb", b"\x0a\x03abc", "a profile of XLA"),
        ("chakra.0.et", b"\x07\x0a\x050.0.4\x05\x08\x01\x12\x01a", "a Chakra trace in protobuf"),
        ("model.pt", b"PK\x03\x04rest", "a zip archive"),
        ("trace.json.zst", b"\x28\xb5\x2f\xfdrest", "compressed with zstd: unpack it"),
        ("memory.pickle", pickle.dumps({"segments": [], "device_traces": []}), "a snapshot of CUDA's memory"),
        ("config.json", b'{"layers": 2}', "JSON of none of the kinds that are read"),
        ("graph.json", b'{"workload_graph": []}', "a Chakra trace for simulators"),
        ("other.pickle", pickle.dumps([1]), "a pickle without entries and pg_config"),
        ("job.log", b"step 1\n", "text"),
        ("page", b"<!DOCTYPE html>", "a web page"),
        ("blob", b"\xff\xfe\x00\x01", "of a kind that is not known"),
        ("blank.json", b" \n", "empty: copy or record it again"),
    ],
)
@pytest.mark.parametrize("is_packed", [False, True])
def test_what_is_not_read_is_named_by_its_kind(
    tmp_path: Path, name: str, content: bytes, kind: str, is_packed: bool
) -> None:
    file = tmp_path / (name + (".gz" if is_packed else ""))
    file.write_bytes(gzip.compress(content) if is_packed else content)
    for source in (file, tmp_path):
        with pytest.raises(TraceFileError) as raised:
            dsexplore.load(source)
        assert f"is {kind}" in str(raised.value)
        assert "Parquet" not in str(raised.value)


def test_a_dump_of_torchs_cupti_timer(tmp_path: Path) -> None:
    """It writes dumps with NCCL's counts and dtypes, numbered by ranges, and without ranks if its hook has none."""
    for rank in (0, 3):
        own = {"process_group_ranks": [], "input_dtypes": ["ncclBfloat16"], "output_dtypes": ["ncclBfloat16"]}
        timed = {"state": "completed", "time_discovered_completed_ns": 9_000, "time_discovered_started_ns": 4_000}
        given = dump(pg_config={"0": {"name": "0", "desc": "", "ranks": "[]"}})
        sizes = {"input_sizes": [[64]], "output_sizes": [[64]], "record_id": 4711, **own, **timed}
        given["entries"] = [
            {**given["entries"][0], **sizes},
            {**given["entries"][0], **sizes, "profiling_name": "nccl:all_gather", "record_id": 4790},
        ]
        (tmp_path / f"comm_lib_trace_rank_{rank}").write_bytes(pickle.dumps(given))
    trace = dsexplore.load(tmp_path)
    assert trace.events.filter(rank=3).select("op", "message_bytes", "dtype").rows() == [
        ("all_reduce", 128, "bfloat16"),
        ("all_gather", None, "bfloat16"),
    ]
    assert not any("the recorder kept" in note for note in trace.info.notes)
    assert "nothing on the wire" not in str(trace.headline())
    for file in tmp_path.iterdir():
        given = pickle.loads(file.read_bytes())
        given["pg_config"]["0"]["ranks"] = "[0, 3]"
        file.write_bytes(pickle.dumps(given))
    assert dsexplore.load(tmp_path).events["message_bytes"].to_list() == [128, 256] * 2


@pytest.mark.parametrize(
    ("func", "count", "size"), [("AllReduce", 64, 128), ("AllGather", 16, 64), ("AllToAll", 8, 32)]
)
def test_a_kernel_that_torchs_cupti_monitor_describes(tmp_path: Path, func: str, count: int, size: int) -> None:
    content = profile(0)
    told = {"func": func, "datatype": "ncclBfloat16", "count": count, "algo": "RING", "seq": 1, "Group size": 2}
    content["traceEvents"][0] |= {"name": "ncclDevKernel_Generic(x)", "args": told}
    (tmp_path / "rank0.json").write_bytes(text(content))
    assert dsexplore.load(tmp_path).events.select("message_bytes", "dtype").rows() == [(size, "bfloat16")]
