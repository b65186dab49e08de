"""Several ranks of one script run in processes of their own, and are merged into one trace."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from dsexplore import load
from dsexplore._internal.errors import UsageError
from dsexplore._internal.worlds.scripts.program import Program
from dsexplore._internal.worlds.scripts.rank_processes import parse_ranks, run_as_ranks
from dsexplore._internal.worlds.scripts.run_as_rank import Setting

SCRIPT = """\
import os, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
print("hello from", rank)
dist.all_reduce(torch.ones(4))
if rank == 2:
    dist.broadcast(torch.ones(1), src=2)
    if len(sys.argv) > 2:
        raise ValueError("only here")
torch.save(torch.ones(2), sys.argv[1] + "/weights.pt")
with open(sys.argv[1] + f"/rank{rank}.txt", "w") as file:
    file.write("own")
"""
OBJECTS = """\
import sys
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
told, part, parts = [None, None], [None], None
if rank == 0:
    told, parts = [f"run {rank}", 1], [f"part {rank}" for rank in range(4)]
dist.broadcast_object_list(told, src=0)
dist.scatter_object_list(part, parts, src=0)
print(told, *part)
"""

MESSAGES = """\
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank:
    dist.send_object_list([f"from {rank}"], dst=0)
else:
    received = [[None], [None]]
    for source, objects in enumerate(received, 1):
        dist.recv_object_list(objects, src=source)
    print([objects[0] for objects in received])
"""


@pytest.mark.parametrize(
    ("ranks", "expected"), [("0,8", [0, 8]), (" 3 , 1", [1, 3]), ("all", list(range(9))), ([2], [2])]
)
def test_ranks_as_people_write_them(ranks: str | list[int], expected: list[int]) -> None:
    assert parse_ranks(ranks, 9) == expected


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ("some", "ranks 'some': write them like 0,8, all or distinct"),
        ("", "write them like"),
        ("0,9", "rank 9 is not in a world of 9 ranks: give ranks from 0 to 8"),
        ("1,1", "each once"),
        ([], "name one rank or more"),
    ],
)
def test_ranks_that_are_not_there(ranks: str | list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_ranks(ranks, 9)


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
class TestProcesses:
    @pytest.fixture
    def script(self, tmp_path: Path) -> Path:
        path = tmp_path / "train.py"
        path.write_text(dedent(SCRIPT))
        return path

    def test_receive_the_objects_of_those_before_them(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "train.py").write_text(dedent(OBJECTS))
        trace, ends = run_as_ranks(Program(str(tmp_path / "train.py"), ()), Setting(world_size=4), [0, 1, 3])
        assert [end.traceback for end in ends] == ["", "", ""]
        lines = sorted(capsys.readouterr().out.splitlines())
        assert lines[0].startswith("[rank 0] ['run 0', 1] part 0")
        assert lines[1:] == [f"[rank {rank}] ['run 0', 1] part {rank}" for rank in (1, 3)]
        of_rank = [trace.where(rank=rank).events["message_bytes"].to_list() for rank in (0, 1, 3)]
        assert of_rank[0] == of_rank[1] == of_rank[2]

    def test_do_not_wait_for_one_that_ended_and_run_one_that_comes_later(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text(dedent(OBJECTS).replace("if rank == 0:", "if rank == 0:\n    sys.exit(3)"))
        _, ends = run_as_ranks(Program(str(tmp_path / "train.py"), ()), Setting(world_size=4), [0, 1])
        assert ends[0].status == 3
        assert "an object of rank 0, which did not send it before (ranks that run together" in ends[1].traceback
        assert "Let rank 1 pass an object of its own" in ends[1].traceback
        (tmp_path / "train.py").write_text(dedent(OBJECTS).replace("rank == 0", "rank == 1").replace("src=0", "src=1"))
        _, ends = run_as_ranks(Program(str(tmp_path / "train.py"), ()), Setting(world_size=4), [0, 1, 2])
        assert [end.traceback for end in ends] == ["", "", ""]  # one that comes later is run for what it sends

    def test_receive_messages_of_those_after_them(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "train.py").write_text(dedent(MESSAGES))
        trace, ends = run_as_ranks(Program(str(tmp_path / "train.py"), ()), Setting(world_size=3), [0, 1, 2])
        assert [end.traceback for end in ends] == ["", "", ""]
        assert "[rank 0] ['from 1', 'from 2']" in capsys.readouterr().out.splitlines()
        assert sorted(trace.events["op"].to_list()) == ["recv"] * 4 + ["send"] * 4

    def test_are_merged_into_one_trace(self, script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "out").mkdir()
        setting = Setting(world_size=4, save=tmp_path / "trace")
        trace, ends = run_as_ranks(Program(str(script), (str(tmp_path / "out"),)), setting, [0, 2, 3])
        assert trace.events.select("rank", "op").rows() == [
            (0, "all_reduce"),
            (2, "all_reduce"),
            (2, "broadcast"),
            (3, "all_reduce"),
        ]
        assert [(end.rank, end.status) for end in ends] == [(0, 0), (2, 0), (3, 0)]
        assert sorted(capsys.readouterr().out.splitlines()) == [
            "[rank 0] hello from 0",
            "[rank 2] hello from 2",
            "[rank 3] hello from 3",
        ]
        (note,) = [note for note in trace.info.notes if "weights.pt" in note]
        assert note.startswith("each of the 3 ranks runs the whole script, so ")
        assert "was opened for writing by 3 of them" in note
        assert "rank0.txt" not in note
        assert load(tmp_path / "trace").info.ranks == (0, 2, 3)
        assert sorted(path.name for path in (tmp_path / "trace").iterdir())[-1] == "rank-00003.parquet"

    def test_save_fake_tensors_each(self, script: Path, tmp_path: Path) -> None:
        setting = Setting(world_size=2, fake=True)
        trace, ends = run_as_ranks(Program(str(script), (str(tmp_path),)), setting, [0, 1])
        assert [(end.status, end.traceback) for end in ends] == [(0, ""), (0, "")]
        assert trace.events["rank"].to_list() == [0, 1]
        assert any("weights.pt was opened for writing by 2 of them" in note for note in trace.info.notes)

    def test_one_that_fails_keeps_what_it_recorded_and_the_others(self, script: Path, tmp_path: Path) -> None:
        trace, ends = run_as_ranks(Program(str(script), (str(tmp_path), "fail")), Setting(world_size=4), [1, 2])
        assert trace.events["rank"].to_list() == [1, 2, 2]
        assert [end.status for end in ends] == [0, 1]
        assert ends[1].traceback.splitlines()[1:] == [
            f'  File "{script}", line 10, in <module>',
            '    raise ValueError("only here")',
            "ValueError: only here",
        ]
