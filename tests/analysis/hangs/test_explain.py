"""`explain_hang` and ``dsexplore hang`` on files, good and bad."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dsexplore
from dsexplore._internal.cli import main
from dsexplore._internal.errors import TraceFileError, UsageError
from tests.analysis.hangs.hangs import ALL4, HANGS, WORLD4, slow_loader, steps
from tests.analysis.hangs.programs import STOP, Collective, Group, Step, dumps, run, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(dumps(run(slow_loader, 4), ALL4), tmp_path / "dumps")


def test_the_command_prints_the_sentence_and_the_waits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hang", str(folder)]) == 0
    first, *waits = capsys.readouterr().out.splitlines()
    assert first.startswith("rank 2 did not come: rank 3 waits for it in all_gather (train.py:10, group tp, 4 KiB)")
    assert len(waits) == 3
    assert waits[0].strip().startswith("rank 0 waits in all_reduce (collective 4 of group dp, 16 KiB, train.py:12;")


def test_the_command_prints_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "hang.html"
    assert main(["hang", "--json", "--html", str(page), str(folder)]) == 0
    read = json.loads(capsys.readouterr().out)
    assert read["culprits"] == [2]
    assert read["sources"] == {"2": "/job/train.py:12"}
    assert {row["rank"]: row["waits_for"] for row in read["waiting"]} == {0: [2], 1: [3], 3: [2]}
    assert "Rank 2 did not come" in page.read_text()


def test_a_reader_that_has_gone_is_no_error(folder: Path, tmp_path: Path) -> None:
    """``dsexplore hang DIR | head -1`` closes its pipe early."""
    page = tmp_path / "hang.html"
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dsexplore", "hang", "--html", str(page), str(folder)]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=240)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, f"wrote {page}\n")
    assert "Rank 2 did not come" in page.read_text()


def test_json_and_pickle_say_the_same(folder: Path, tmp_path: Path) -> None:
    as_json = write(dumps(run(slow_loader, 4), ALL4), tmp_path / "json", "of {} here.txt", as_json=True)
    assert dsexplore.explain_hang(as_json).verdict() == dsexplore.explain_hang(folder).verdict()
    assert dsexplore.explain_hang(sorted(folder.iterdir())).culprits == (2,)


def test_a_line_that_one_of_the_waiting_ranks_lacks_is_taken_from_another(tmp_path: Path) -> None:
    """Dumps in torch's JSON have no frames, even if those of other ranks have."""

    def program(rank: int) -> Iterator[Step]:
        yield STOP if rank == 3 else Collective(WORLD4, "all_reduce", 512, line=20)

    found = dumps(run(program, 4), [WORLD4])
    for entry in found[0]["entries"]:
        entry["frames"] = []
    sentence = dsexplore.explain_hang(write(found, tmp_path / "dumps")).verdict()
    assert "ranks 0–2 wait for it in all_reduce (train.py:20, group default, 2 KiB)" in sentence


def test_an_empty_file_is_a_rank_without_evidence(folder: Path) -> None:
    (folder / "_dump_2").write_bytes(b"")
    report = dsexplore.explain_hang(folder)
    assert report.culprits == (2,)
    assert report.reason == "did not come"
    assert "left nothing but an empty file, which does not say where it stopped" in report.verdict()
    assert "rank 2 left an empty file" in report.notes


def test_a_broken_file_is_named_and_the_others_go_on(folder: Path) -> None:
    (folder / "_dump_3").write_bytes(b"\x80\x02}q\x00(X\x07\x00\x00\x00entries")
    report = dsexplore.explain_hang(folder)
    assert report.culprits == (2,)
    assert any("_dump_3 cannot be read" in note for note in report.notes)
    assert "rank 3 left no dump" in report.notes


def test_files_that_are_no_dump_by_their_content_are_named_and_the_others_go_on(folder: Path) -> None:
    (folder / "_dump_1").write_bytes(pickle.dumps(Path("a")))
    (folder / "_dump_3").write_text("Segmentation fault")
    (folder / "list.json").write_text("[1, 2]")
    (folder / "train.log").write_text("step 1")
    report = dsexplore.explain_hang(folder)
    assert not any("train.log" in note for note in report.notes)
    assert "ranks 1, 3 left no dump" in report.notes
    given = dsexplore.explain_hang(
        [folder / name for name in ("_dump_0", "_dump_1", "_dump_2", "_dump_3", "list.json")]
    )
    said = {
        "_dump_1": "cannot be read (the pickle names pathlib",
        "_dump_3": "cannot be read (Expecting value",
        "list.json": "has no entries and no pg_config: it is not a dump of torch's flight recorder",
    }
    for found in (report, given):
        assert found.culprits == (2,)
        for name, what in said.items():
            assert any(f"{folder / name} {what}" in note for note in found.notes)


def test_nothing_hangs(tmp_path: Path) -> None:
    def good(_rank: int) -> Any:
        for _ in range(3):
            yield Collective(ALL4[0])

    report = dsexplore.explain_hang(write(dumps(run(good, 4), ALL4), tmp_path / "dumps"))
    assert (report.culprits, report.reason) == ((), "none")
    assert report.verdict() == "nothing hangs: no rank waits, all 12 recorded calls ended"
    assert report.waiting.is_empty()


@pytest.mark.parametrize("left", [None, b"", b'{"entries": [{}], "pg_config": {}}', b"{", "counted"])
def test_where_a_rank_left_no_readable_record_it_is_not_said_that_nothing_hangs(
    tmp_path: Path, left: bytes | str | None
) -> None:
    def good(_rank: int) -> Any:
        for _ in range(3):
            yield Collective(ALL4[0])

    folder = write(dumps(run(good, 4), ALL4), tmp_path / "dumps")
    file = folder / "_dump_2"
    assert file.exists()
    if left is None:
        file.unlink()
    elif isinstance(left, bytes):
        file.write_bytes(left)
    else:
        content = pickle.loads(file.read_bytes())
        content["entries"] = []
        content["pg_status"] = {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}}
        file.write_bytes(pickle.dumps(content))
    report = dsexplore.explain_hang(folder)
    assert (report.culprits, report.suspects, report.reason) == ((), (2,), "unknown")
    assert report.verdict() == (
        "all 9 recorded calls of ranks 0, 1, 3 ended; rank 2 left no readable record of calls: "
        "the evidence does not say whether it waits"
    )


def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing at .*nowhere: give the folder that the ranks wrote to"):
        dsexplore.explain_hang(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="was given no files"):
        dsexplore.explain_hang([])
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(TraceFileError):
        dsexplore.explain_hang(tmp_path)
    assert main(["hang", str(tmp_path / "nowhere")]) == 2
    assert "dsexplore hang: nothing at" in capsys.readouterr().err


def test_a_simulation_has_nothing_that_waits(tmp_path: Path) -> None:
    import torch
    import torch.distributed as dist

    with dsexplore.commtrace(world_size=2, save=tmp_path / "trace"):
        dist.all_reduce(torch.ones(2))
    with pytest.raises(UsageError, match="a trace of a simulation, in which nothing waits"):
        dsexplore.explain_hang(tmp_path / "trace")
    with pytest.raises(UsageError, match="a trace of a simulation, in which nothing waits"):
        dsexplore.explain_hang(dsexplore.load(tmp_path / "trace"))


def test_every_hang_has_a_page(tmp_path: Path) -> None:
    for i, hang in enumerate(HANGS.values()):
        left = dumps(run(hang.program, hang.size), hang.groups, lost=hang.lost, empty=hang.empty)
        report = dsexplore.explain_hang(write(left, tmp_path / str(i)))
        html = report._repr_mimebundle_()["text/html"]
        assert "Hang" in html
        assert len(html) < 40_000


def test_the_culprit_among_sixteen_ranks_of_three_kinds_of_groups(tmp_path: Path) -> None:
    world = Group("0", tuple(range(16)), "default_pg")
    tp = [Group(str(1 + i), tuple(range(4 * i, 4 * i + 4)), "mesh_tp") for i in range(4)]
    dp = [Group(str(5 + i), tuple(range(i, 16, 4)), "mesh_dp") for i in range(4)]

    def program(rank: int) -> Any:
        for i in range(400):
            if rank == 6 and i == 333:
                return
            yield Collective(tp[rank // 4], line=1)
            yield Collective(dp[rank % 4], line=2)
            yield Collective(world, line=3)

    folder = write(dumps(run(program, 16, 10**7), [world, *tp, *dp], keep=1_000), tmp_path / "dumps")
    assert dsexplore.explain_hang(folder).culprits == (6,)


def test_the_dump_of_an_earlier_attempt_does_not_count(tmp_path: Path) -> None:
    """Rank 2 stops in the second attempt without a dump, and its file is of the first one."""
    latest = dumps(run(slow_loader, 4), ALL4, lost=(2,))
    for dump in latest.values():
        for entry in dump["entries"]:
            for when in ("time_created_ns", "time_discovered_completed_ns"):
                entry[when] = entry[when] and entry[when] + 60_000_000_000
    earlier = dumps(run(lambda rank: steps(rank, 6), 4), ALL4)
    report = dsexplore.explain_hang(write({**latest, 2: earlier[2]}, tmp_path / "both"))
    alone = dsexplore.explain_hang(write(latest, tmp_path / "alone"))
    assert (report.culprits, report.verdict()) == (alone.culprits, alone.verdict())
    assert report.culprits == (2,)
    assert report.notes == (
        "the dump of rank 2 is of an earlier attempt of the job, and left out",
        "rank 2 left no dump of this attempt",
    )


def test_a_rank_is_behind_that_waits_in_what_its_peers_have_counted_as_completed(tmp_path: Path) -> None:
    """Peers have lost their records of the collective, but their ``last_completed_collective`` counts it."""
    left = dumps(run(lambda rank: steps(rank, 6), 4), ALL4)
    last = left[1]["entries"][-1]
    last |= {"state": "scheduled", "time_discovered_completed_ns": None, "retired": False}
    name = last["process_group"][0]
    of_group = left[1]["pg_status"][str(last["pg_id"])]
    of_group["last_completed_collective"] -= 1
    for rank in (0, 2, 3):
        left[rank]["entries"] = [entry for entry in left[rank]["entries"] if entry["process_group"][0] != name]
    report = dsexplore.explain_hang(write(left, tmp_path / "dumps"))
    assert (report.culprits, report.reason) == ((1,), "device")
    assert "rank 1 waits in all_reduce" in report.verdict()
    assert "which has ended on rank" in report.verdict()


def test_groups_whose_ranks_no_dump_lists_are_said_to_be_those_that_called_there(tmp_path: Path) -> None:
    left = dumps(run(slow_loader, 4), ALL4)
    for dump in left.values():
        dump["pg_config"] = {}
    report = dsexplore.explain_hang(write(left, tmp_path / "dumps"))
    (note,) = report.notes
    assert note.startswith("no dump lists the ranks of group tp, dp: those that called there are taken for all of them")
