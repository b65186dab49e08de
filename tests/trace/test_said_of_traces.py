"""Every sentence in the source of what reads our own files: files of which it is said, and whole ones of which not.

Modules: ``trace/``.
"""

from __future__ import annotations

import base64
import io
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dsexplore._internal import trace as package
from dsexplore._internal.errors import Documented
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.call_journal import CallJournal, JournalInfo, journal_file
from dsexplore._internal.trace.file_digest import write_digest
from dsexplore._internal.trace.files import check_destination, load, load_several, rank_file, save
from dsexplore._internal.trace.job_files import load_with_journals
from dsexplore._internal.trace.merge import merge_tables
from dsexplore._internal.trace.process_states import host_clock
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.unknown_sizes import what_is_unknown
from tests.trace.conftest import DEFAULT, build
from tests.trace.importers.test_hostile_files import DUMPS, profile, text
from tests.trace.importers.test_said_of_files import literals
from tests.trace.test_call_journal import GROUP, Call
from tests.trace.test_checked_tables import HUGE, changed
from tests.trace.test_files import written

Fill = Callable[[Path], object]
"""Writes files into a folder."""
SECOND = 1_000_000_000


def calls(rank: int, *rows: dict[str, Any], **info: Any) -> Tables:
    """Return what one rank of two recorded: its rows, or a reduction with times."""
    reduced = {"group": "tp", "group_size": 2, "start": 5, "end": 9, "state": "completed", "group_seq": 0}
    built = build([{"rank": rank, **row} for row in rows or (reduced,)], (rank,), **{"world_size": 2, **info})
    groups = built.groups.filter(group="tp").with_columns(mesh=pl.lit(""))
    return replace(built, groups=groups, parameters=schema.empty("parameters"))


def ranks(*tables: Tables) -> Fill:
    """Return a function that writes a file for each rank."""
    return lambda folder: [save(part, folder / rank_file(part.info.ranks[0])) for part in tables]


def one(tables: Tables) -> Fill:
    """Return a function that writes one file."""
    return lambda folder: save(tables, folder / "t.parquet")


def metadata(**changes: str | None) -> Fill:
    """Return a function that writes one file with other metadata."""
    return lambda folder: written(folder / "t.parquet", calls(0), **changes)


def raw(content: bytes, name: str = "t.parquet") -> Fill:
    """Return a function that writes one file with that content."""
    return lambda folder: (folder / name).write_bytes(content)


def cut(folder: Path) -> None:
    save(calls(0), folder / "t.parquet")
    whole = (folder / "t.parquet").read_bytes()
    (folder / "t.parquet").write_bytes(whole[:-30])


def flipped(folder: Path) -> None:
    save(calls(0), folder / "t.parquet")
    whole = bytearray((folder / "t.parquet").read_bytes())
    whole[40] ^= 1
    (folder / "t.parquet").write_bytes(whole)


def foreign_parquet(folder: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(folder / "t.parquet")


def of_another_type(folder: Path) -> None:
    packed = io.BytesIO()
    calls(0).groups.cast({"size": pl.Int64}).write_parquet(packed)
    written(folder / "t.parquet", calls(0), groups=base64.b64encode(packed.getvalue()).decode())


def without_placeholder(folder: Path) -> None:
    pl.DataFrame({"a": [1]}).write_parquet(folder / "t.parquet")
    write_digest(folder / "t.parquet")


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "t.parquet")


def journal(folder: Path, count: int = 1, pid: int = 0, **changes: Any) -> None:
    """Write rank 0's trace, and a journal of rank 1, whose process is gone."""
    save(calls(0, ends=("running",), attempt="a 1", began=(1,)), folder / rank_file(0))
    info = JournalInfo(1, 2, "a 1", 1, host_clock(), pid or os.getpid(), 0)
    kept = CallJournal(folder / journal_file(1), info)
    kind = kept.add_kind([{**DEFAULT, "rank": 1, "group": "0", "wire_bytes": 8, **changes}], GROUP)
    for number in range(count):
        kept.add(kind, number, number + 1, Call())


def damaged_journal(folder: Path) -> None:
    journal(folder)
    (folder / journal_file(1)).write_bytes((folder / journal_file(1)).read_bytes()[:-1])


def journal_of_nobody(folder: Path) -> None:
    journal(folder)
    whole = (folder / journal_file(1)).read_bytes()
    (folder / journal_file(1)).write_bytes(whole.replace(b'"rank": 1,', b'"rank":"",', 1))


SEND = {"op": "send", "peer": 1, "group": "tp", "message_bytes": 64, "source": "train.py:10"}
RECV = {"op": "recv", "peer": 0, "group": "tp", "message_bytes": 64, "source": "train.py:20"}
ROW = {"group": "tp", "group_size": 2, "op": "all_reduce", "state": "completed"}
LOOP: list[dict[str, Any]] = [{**ROW, "start": at, "end": at + 9} for at in range(0, 500, 50)]
ON_ANOTHER_CLOCK = [{**row, "start": row["start"] + SECOND, "end": row["end"] + SECOND} for row in LOOP]
UNSIZED: dict[str, Any] = {"group": "tp", "message_bytes": None, "wire_bytes": None, "shape": []}
SPLIT = {"op": "all_to_all", "group": "tp", "group_size": 2, "message_bytes": 16}


def uneven(rank: int, sent: list[int], received: list[int]) -> Tables:
    return calls(rank, {**SPLIT, "send_splits": sent, "recv_splits": received})


def profiles(*begin: int, regular: bool = False) -> Fill:
    """Return a function that writes a profile of each rank, which begins at that collective of 24."""

    def fill(folder: Path) -> None:
        for rank, first in enumerate(begin):
            world = {"info": {"world_size": len(begin)}}
            whole = profile(rank, {"Group size": len(begin)}, **world)
            event = whole["traceEvents"][0]
            ops = ("_allgather_base", "allreduce")
            whole["traceEvents"] = [
                {
                    **event,
                    "args": {**event["args"], "Collective name": ops[at % 2]},
                    "ts": at * 10**5 + (0 if regular else 10**3 * (at // 2) ** 2),
                }
                for at in range(first, 24)
            ]
            (folder / f"rank{rank}.json").write_bytes(text(whole))

    return fill


def save_fewer_ranks(folder: Path) -> None:
    save(merge_tables([calls(0), calls(1)]), folder)
    save(calls(0), folder)


def record_into_one_file(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLD_SIZE", "2")
        check_destination(folder / "step.parquet")


def two_recordings(folder: Path) -> None:
    several = [save(calls(0), folder / "a.parquet"), save(calls(1, world_size=3), folder / "b.parquet")]
    load_several(several)


SAID: Mapping[str, Fill] = {
    # of single files
    "is a pipe, a socket or a device: give a file or a folder": a_pipe,
    "is truncated: ": cut,
    "is a Parquet file, but not a dsexplore trace": foreign_parquet,
    "is damaged: its content is not what was written": flipped,
    "is not a dsexplore trace: it is a web page": raw(b"<html>"),
    "its format version is 'one'; copy or record it again": metadata(format="one"),
    "newer than format 8 that this dsexplore reads: upgrade": metadata(format="9"),
    "table groups: column 'size' is missing, foreign or of another type": of_another_type,
    "(the info is not an object): copy or record it again": metadata(info="[]"),
    "(the info's world_size is '4')": metadata(info='{"world_size": "4"}'),
    "(the info's clocks is ('a',) for ranks (0, 1))": metadata(info='{"ranks": [0, 1], "clocks": ["a"]}'),
    "has no place for a digest: write it with metadata": without_placeholder,
    # of values that no recording has
    "1 values of op are missing": one(changed(calls(0), "events", "op", None)),
    "table events: shape has lists with missing values": one(changed(calls(0), "events", "shape", [2, None])),
    f"peer is {HUGE}, and may be 0 to 1": one(changed(calls(0), "events", "peer", HUGE)),
    "the parent of 'Llama' is 'Llama', which is not above": one(changed(calls(0), "modules", "parent", "Llama")),
    "its world_size is 0, and a job has 1 to": one(replace(calls(0), info=replace(calls(0).info, world_size=0))),
    "it is of rank 7, and the world has 2 ranks": one(replace(calls(0), info=replace(calls(0).info, ranks=(7,)))),
    f"its mesh is dp={HUGE}, and a job has 1 to": one(calls(0, mesh=f"dp={HUGE}")),
    "its schedule is not JSON: ": one(replace(calls(0), info=replace(calls(0).info, schedule="x"))),
    "'a few' is neither a rank nor a range of ranks": one(calls(0, stands_for=("a few",))),
    # of folders
    "has no trace files: a trace directory holds rank-00000.parquet": lambda folder: None,
    "has no trace files: step.txt is ": raw(b"loss: 1", "step.txt"),
    "mixes files of different recordings: world_size is 2 in one trace and 3 in another: merge one": ranks(
        calls(0), calls(1, world_size=3)
    ),
    "rank 0 is in two of the traces: merge one trace per rank": lambda folder: [
        save(calls(0), folder / name) for name in ("a.parquet", "b.parquet")
    ],
    "1 of 2 ranks left no trace: rank 1": ranks(calls(0)),
    "the file of rank 1 is of an earlier attempt of the job, and left out": ranks(
        calls(0, attempt="b 1", began=(9,)), calls(1, attempt="a 1", began=(5,))
    ),
    "the file of rank 1 is of an earlier block that was saved there, and left out": ranks(
        calls(0, attempt="a 2", began=(9,)), calls(1, attempt="a 1", began=(5,))
    ),
    "3 blocks of the job were saved there: this is the last, in place of those before": ranks(
        *(calls(rank, attempt="a 3", began=(9,)) for rank in (0, 1))
    ),
    # of messages
    "rank 0 sends 64 B to rank 1 at train.py:10, and rank 1 does not receive them": ranks(calls(0, SEND), calls(1)),
    "does not receive them (its last recv from there is at train.py:20)": ranks(calls(0, SEND, SEND), calls(1, RECV)),
    "rank 1 receives 64 B from rank 0 at train.py:20, and rank 0 does not send them": ranks(calls(0), calls(1, RECV)),
    "does not send them (its last send there is at train.py:10)": ranks(calls(0, SEND), calls(1, RECV, RECV)),
    "rank 0 sends 64 B to rank 1 at train.py:10, which receives 8 B at train.py:20": ranks(
        calls(0, SEND), calls(1, {**RECV, "message_bytes": 8})
    ),
    "in an all_to_all rank 0 sends 8 B to rank 1": ranks(uneven(0, [2, 2], [2, 2]), uneven(1, [2, 2], [1, 3])),
    "2 more messages do not fit together: see Trace.unmatched()": ranks(calls(0, *[SEND] * 5), calls(1)),
    # of clocks and of where records begin
    "clocks were aligned by the ends of collectives: rank 1 by -1 s (± 0 s": ranks(
        calls(0, *LOOP), calls(1, *ON_ANOTHER_CLOCK)
    ),
    "rank 1's file begins 4 collectives of an unnamed group": profiles(0, 4),
    "of an unnamed group later than another rank's (ends then agree within 0 s)": profiles(0, 4),
    "begins elsewhere in an unnamed group than another rank's, and times do not say": profiles(0, 5, 0, regular=True),
    "more files begin elsewhere in a group than another rank's": profiles(0, 4, 4, 4, 4, 4, 0),
    # of numbers that no file can have
    "is not a rank: a job has up to": raw(DUMPS["ranks"], "dump_0"),
    " is beyond 64 bits": raw(DUMPS["moment"], "dump_0"),
    # of sizes
    "the sizes of its collectives are unknown": one(calls(0, UNSIZED)),
    "the size of 1 of its 2 collectives is unknown": one(calls(0, UNSIZED, {"group": "tp"})),
    "how many ranks share 1 of its 1 collective is unknown": one(calls(0, {"group": "tp", "wire_bytes": None})),
    # of what is asked for
    "no trace at": lambda folder: load(folder / "gone.parquet"),
    "no trace is given: give at least one file": lambda folder: load_several([]),
    "of a rank that this trace does not have: save into an empty directory": save_fewer_ranks,
    "2 processes record: name a directory, such as": record_into_one_file,
    "and the others are of different recordings": two_recordings,
    "merge was given no traces": lambda folder: merge_tables([]),
    # of journals
    "rank 1 kept its last 4,096 of 5,000 calls": lambda folder: journal(folder, 5_000),
    "is not a whole journal of calls (it has another mark, version or size)": damaged_journal,
    "its rank is ''": journal_of_nobody,
}
GOOD: Mapping[str, Fill] = {
    "a file": one(calls(0, simulated=True)),
    "a folder": ranks(calls(0), calls(1)),
    "messages": ranks(calls(0, SEND, SEND), calls(1, RECV, RECV)),
    "an uneven all_to_all": ranks(uneven(0, [2, 2], [2, 1]), uneven(1, [1, 3], [2, 3])),
    "one clock": ranks(calls(0, *LOOP), calls(1, *LOOP)),
    "an attempt": ranks(*(calls(rank, attempt="a 1", began=(9,)) for rank in (0, 1))),
    "a journal": journal,
    "profiles": profiles(0, 0),
}

SAYS_NOTHING_OF_FILES = {
    "analyses.py": "calls analyses",
    "causes.py": "names of ops",
    "collectives.py": "arguments of calls",
    "exports.py": "writes",
    "numbered_modules.py": "names of modules",
    "schema.py": "names of phases",
    "select.py": "arguments of calls",
    "torch_json.py": "writes",
    "trace.py": "arguments of calls",
}
ELSEWHERE = {
    "ends.py": "test_process_states.py, and tests of the hang report with real ranks",
    "process_states.py": "test_process_states.py",
}
"""Modules, and why none of their sentences has a file here."""
NOT_SAID = ("whole; save again for the rest", "was interrupted: this trace is incomplete", " that stand for ")
"""Of Ctrl-C, see `test_files` and the tests of interrupts."""


def said_of(folder: Path, fill: Fill) -> str:
    """Return all that is said where files are written and loaded: as a folder, and what is in it as a file."""
    folder.mkdir(exist_ok=True)
    said: list[str] = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            fill(folder)
        except (Documented, FileNotFoundError) as error:
            said.append(str(error))
        inside = sorted(folder.iterdir())
        for source in [folder, *(inside if len(inside) == 1 else [])]:
            try:
                tables = load_with_journals([source])
            except (Documented, OSError) as error:
                said.append(str(error))
                continue
            said += tables.info.notes
            said.append(what_is_unknown(tables.events.filter(pl.col("wire_bytes").is_null()), tables.events.height))
    return "\n".join([*said, *(str(warning.message) for warning in warned)])


@pytest.mark.parametrize("sentence", SAID)
def test_it_is_said_of_files_of_which_it_is_true(tmp_path: Path, sentence: str) -> None:
    assert sentence in said_of(tmp_path / "files", SAID[sentence])


@pytest.mark.parametrize("fill", GOOD.values(), ids=GOOD)
def test_none_is_said_of_whole_files(tmp_path: Path, fill: Fill) -> None:
    said = said_of(tmp_path / "files", fill)
    words = {max(re.split(r"\d+", sentence), key=len) for sentence in SAID}
    assert [sentence for sentence in words if sentence in said] == []


def test_every_sentence_of_the_readers_has_a_file(tmp_path: Path) -> None:
    said = "\n".join(said_of(tmp_path / str(at), fill) for at, fill in enumerate(SAID.values()))
    folder = Path(str(package.__file__)).parent
    modules = [file for file in sorted(folder.glob("*.py")) if file.name not in {*SAYS_NOTHING_OF_FILES, *ELSEWHERE}]
    found = {(file.name, part) for file in modules for part in literals(file)}
    assert len(found) > 40
    missing = {(name, part) for name, part in found if part not in said and not any(one in part for one in NOT_SAID)}
    assert sorted(missing) == []
