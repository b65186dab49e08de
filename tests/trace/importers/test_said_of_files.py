"""Every sentence in the source of an importer: a folder of files of which it is said, and whole ones of which none is.

Modules: ``trace/importers/``.
"""

from __future__ import annotations

import ast
import gzip
import pickle
import re
import struct
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal.errors import TraceFileError, UsageError
from dsexplore._internal.trace import importers
from dsexplore._internal.trace.importers.file_kinds import kind_not_read
from tests.trace.importers.test_hostile_files import DEEP, DUMPS, Content, dump, entry, made, profile, text
from tests.trace.importers.test_other_tools import archive, execution_trace, line, log_of, node
from tests.trace.importers.test_recorder_dump import gloo
from tests.trace.importers.test_sentences import CASES as NOTES
from tests.trace.importers.test_sentences import LAUNCH, MARK

Files = Mapping[str, Content]


GOOD: dict[str, Files] = {
    "dumps": {"dump_0": text(dump()), "dump_1": text(dump())},
    "profiles": {"rank0.json": text(profile(0)), "rank1.json": text(profile(1))},
    "logs": {"a_0.log": log_of(line(rank=0)), "a_1.log": log_of(line(rank=1))},
    "archive": {"a.tar": archive({"rank0.json": text(profile(0)), "rank1.json": text(profile(1))}, "w")},
}
ASKS_FOR_MORE = b"\x80\x05X\x07\x00\x00\x00entries\x8e" + struct.pack("<Q", 1 << 40) + b"."
TOO_DEEP = b"\x80\x02X\x07\x00\x00\x00entries0" + b"]" * 100_000 + b"a" * 99_999 + b"."
NO_RANK = {**profile(), "distributedInfo": {"backend": "nccl", "world_size": 2}}
SAID: dict[str, Files] = {
    # of single files that are not read
    "it unpacks to more than": {"a.tar.gz": lambda: archive({"rank0.json": b" " * (1 << 27)})},
    "copy or pack it again": {"a.tar.gz": archive({"rank0.json": text(profile(0))})[:-30]},
    "it is blank for": {"dump_0": lambda: gzip.compress(b'{"entries"' + b" " * (1 << 26), 1)},
    "times its size": {"dump_0": lambda: gzip.compress(b'{"entries":"' + b"x" * (1 << 27), 6)},
    "its values are more than": {"dump_0": TOO_DEEP},
    "and plain data names nothing": {"dump_0": pickle.dumps({"entries": Path})},
    "the pickle refers to an object outside it": {"dump_0": b"\x80\x02X\x07\x00\x00\x00entriesQ."},
    "and plain data has not": {"dump_0": b"\x80\x02X\x07\x00\x00\x00entries\x88\x82\x01."},
    "the pickle asks for more than it has": {"dump_0": ASKS_FOR_MORE},
    "its values use each other more than": {"dump_0": DUMPS["shared sizes"]},
    "pg_status[0] is 5": {"dump_0": text(dump(pg_status={"0": 5}))},
    "pg_config is": {"dump_0": text(dump(pg_config=5))},
    "give a dump of torch's flight recorder": {"dump_0": text(dump())[:-5]},
    "it is not a whole dump": {"dump_0": text(dump(entries=[{"record_id": 0}]))},
    "its state is": {"dump_0": text(dump(entries=[entry(state="waiting")]))},
    "node 12 has no name": {"a.json": execution_trace({**node(12, "x", 2), "name": None})},
    "is not a dump of torch's flight recorder": {"dump_0": text(dump(entries=5))},
    "give one file of each rank, recorded": {"a": text(dump(rank=1)), "b": text(dump(rank=1))},
    "do not say which rank each is from": {"a": text(dump(pg_config={})), "b": text(dump(pg_config={}))},
    "has no entries and no pg_config": {"dump_0": text(dump()), "dump_1": b'{"entries": []}'},
    "of its first lines are damaged": {"a.log": b'{"coll_perf": 1}\n' * 20},
    "has no line of NCCL Inspector": {"a.log": b'{"coll_perf": 1}\n'},
    "a line is longer than": {"a.log": lambda: log_of(line()) + b'{"coll_perf": "' + b"x" * (1 << 25)},
    "give one job's files": {"a_0.log": log_of(line(rank=0)), "b_0.log": log_of(line(rank=0))},
    "copy or record it again": {"rank0.json": b'{"traceEvents":' + DEEP + b"}"},
    "has no traceEvents": {"rank0.json": b'{"ph": 5}'},
    "has an event without ts": {"rank0.json": b'{"traceEvents": [{"ph": "X", "name": "nccl:all_reduce"}]}'},
    "it has no events": {"rank0.json": b'{"traceEvents": []}'},
    "it has launches of kernels, but not the kernels": {"rank0.json": text({**NO_RANK, "traceEvents": [LAUNCH]})},
    "only events of the kinds user_annotation": {"rank0.json": text({**NO_RANK, "traceEvents": [MARK]})},
    # of files beside others
    "is empty: copy or record it again": {"rank0.json": text(profile(0)), "rank1.json": b""},
    "load dumps alone": {"rank0.json": text(profile(0)), "dump_1": text(dump())},
    "load logs alone": {"rank0.json": text(profile(0)), "a.log": log_of(line())},
    # of what was read
    "numbered in the order of their names": {"a": text(NO_RANK), "b": text(NO_RANK)},
    "does not say its rank: it is taken for rank 0": {"a": text(NO_RANK)},
    "writes no send, recv and monitored_barrier": {
        "dump_0": text(dump(entries=[gloo("all_reduce", 1, 0), gloo("barrier", 4, 1), gloo("all_reduce", 5, 2)]))
    },
    "the recorder kept 1 collectives, not the 7": {"dump_0": text(dump(entries=[entry(record_id=7)]))},
    "dump_1 is empty": {"dump_0": text(dump()), "dump_1": b""},
}

KINDS: dict[str, tuple[str, bytes]] = {
    "a report of Nsight Systems": ("a.nsys-rep", b"\x01"),
    "a report of Nsight Compute": ("a.ncu-rep", b"\x01"),
    "a profile of XLA": ("a.xplane.pb", b"\x0a\x03abc"),
    "an SQLite database": ("a", b"SQLite format 3\0"),
    "a zip archive": ("a", b"PK\x03\x04"),
    "compressed with zstd": ("a", b"\x28\xb5\x2f\xfd"),
    "compressed with xz": ("a", b"\xfd7zXZ\0"),
    "compressed with bzip2": ("a", b"BZh9"),
    "an array of NumPy's": ("a", b"\x93NUMPY"),
    "a program or library": ("a", b"\x7fELF"),
    "a web page": ("a", b"<html>"),
    "a web page: give": ("a", b"<!DOCTYPE html>"),
    "a Chakra trace for simulators": ("a", b'{"workload_graph": []}'),
    "a profile under another name": ("a", b'{"traceEvents": []}'),
    "a trace of OpenTelemetry": ("a", b'{"resourceSpans": []}'),
    "a snapshot of CUDA's memory": ("a", pickle.dumps({"device_traces": []})),
    "a checkpoint of torch's": ("a", pickle.dumps({"storages": []})),
    "a Chakra trace in protobuf": ("a", b"\x07\x0a\x050.0.4\x05\x08\x01\x12\x01a"),
    "a Perfetto protobuf": ("a", b"\x0a\x06\x50\x01\x5a\x02ab" * 4),
    "empty: copy or record it again": ("a", b" \n"),
    "JSON of none of the kinds that are read": ("a", b'{"layers": 2}'),
    "a pickle without entries and pg_config": ("a", pickle.dumps([1])),
    "a tar archive: give the file itself": ("a", archive({"step.txt": b"1"}, "w")),
    "of a kind that is not known": ("a", b"\xff\xfe\x00\x01"),
}
"""{part of the kind's name: (name of a file, its content)}."""

NOT_SAID = re.compile(
    r"[mM]sg nelems|Global rank|Process Group|## process_group|<h2>|^reading|an inference engine|symmetric memory|"
    r" ranks, of rank |a group of rank|durations are unknown$"
)
"""Keys of files, labels of progress, names of libraries and groups."""
ELSEWHERE = (
    "give the address of torch's debug server",
    "records its collectives: start the job with",
    "it is not a dump",
    "did not answer",
    "is empty: give the dumps of all ranks",
    "not as torch writes it",
    "an event that begins otherwise",
    "the list of events has no end",
    "an event whose name is before its ph",
    " events are damaged",
)
"""Of the debug server, see `test_debug_server`; of an empty list of files; and reasons to read a profile in another
way, which nobody sees."""


def said_of(folder: Path, files: Files) -> list[str]:
    """Return all that is said where these files are loaded."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(made(content))
    sources = [folder / name for name in files] if len(files) == 1 else []
    sources += [] if any(".tar" in name for name in files) else [folder]
    said: list[str] = []
    for source in sources:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                said += dsexplore.load(source).info.notes
            except (TraceFileError, UsageError) as error:
                said.append(str(error))
        said += [str(one.message) for one in warned]
    return said


@pytest.mark.parametrize("sentence", SAID)
def test_it_is_said_of_files_of_which_it_is_true(tmp_path: Path, sentence: str) -> None:
    said = said_of(tmp_path / "files", SAID[sentence])
    assert any(sentence in one for one in said), said


@pytest.mark.parametrize("files", GOOD.values(), ids=GOOD)
def test_none_is_said_of_whole_files(tmp_path: Path, files: Files) -> None:
    said = "\n".join(said_of(tmp_path / "files", files))
    words = {max(re.split(r"\d+", sentence), key=len) for sentence in (*SAID, *KINDS)}
    assert [sentence for sentence in words if sentence in said] == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_is_named_and_no_other(tmp_path: Path, kind: str) -> None:
    name, content = KINDS[kind]
    (tmp_path / name).write_bytes(content)
    said = kind_not_read(tmp_path / name)
    assert said.startswith(kind)
    others = {other for other in KINDS if not (other.startswith(kind) or kind.startswith(other))}
    assert not any(other in said for other in others)


def literals(file: Path) -> Iterator[str]:
    """Yield each text of three or more words in a module; of one with values between, its longest fixed part."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    every = list(ast.walk(tree))
    parts = {id(part) for found in every if isinstance(found, ast.JoinedStr) for part in found.values}
    parts |= {id(found.value) for found in every if isinstance(found, ast.Expr)}
    for found in every:
        fixed: list[str] = []
        if isinstance(found, ast.JoinedStr):
            fixed = [str(part.value) for part in found.values if isinstance(part, ast.Constant)]
        elif isinstance(found, ast.Constant) and isinstance(found.value, str) and id(found) not in parts:
            fixed = [found.value]
        if len(re.findall(r"[a-z]{2,}", " ".join(fixed))) >= 3 and any(" " in part.strip() for part in fixed):
            yield max(fixed, key=len)


def test_every_sentence_of_the_importers_has_a_file(tmp_path: Path) -> None:
    said: list[str] = []
    for at, files in enumerate(SAID.values()):
        said += said_of(tmp_path / str(at), files)
    for at, (so, _) in enumerate(NOTES.values()):
        said += said_of(tmp_path / f"note{at}", {"rank0.json": so})
    for at, (name, content) in enumerate(KINDS.values()):
        (tmp_path / f"kind{at}").mkdir()
        (tmp_path / f"kind{at}" / name).write_bytes(content)
        said.append(kind_not_read(tmp_path / f"kind{at}" / name))
    text_of_all = "\n".join(said)
    folder = Path(str(importers.__file__)).parent
    found = {(file.name, part) for file in sorted(folder.glob("*.py")) for part in literals(file)}
    assert len(found) > 80
    missing = {
        (name, part)
        for name, part in found
        if part not in text_of_all and not NOT_SAID.search(part) and not any(one in part for one in ELSEWHERE)
    }
    assert missing == set()
