"""A script receives objects of other ranks, which are run on demand.

Modules: ``worlds/simulated/shared_objects.py``, ``worlds/scripts/run_as_rank.py``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import dsexplore
from dsexplore._internal.errors import UsageError

IN_TURN = """\
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
first = ["a" * 50 if rank == 0 else None]
dist.broadcast_object_list(first, src=0)
second = ["b" * 100 + first[0] if rank == 1 else None]
dist.broadcast_object_list(second, src=1)
mine = [None]
dist.scatter_object_list(mine, [second[0] + "c" * i for i in range(size)] if rank == 2 else None, src=2)
dist.all_reduce(torch.ones(len(mine[0]), dtype=torch.uint8))
"""
ALONG_A_LINE = """\
import torch, torch.distributed as dist
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
even = dist.new_group([0, 2])
mine = ["a" * 50]
if rank:
    mine = [None]
    dist.recv_object_list(mine, src=rank - 1)
    mine = [mine[0] + "b"]
if rank < size - 1:
    dist.send_object_list(mine, rank + 1)
other = [None, None]
if rank == 0:
    dist.send_object_list(["c" * 7, mine[0]], group=even, group_dst=1)
elif rank == 2:
    dist.recv_object_list(other, group=even, group_src=0)
    mine = [mine[0] + other[0] + other[1]]
dist.all_reduce(torch.ones(len(mine[0]), dtype=torch.uint8))
"""
TO_AND_FRO = """\
import torch, torch.distributed as dist
dist.init_process_group("nccl")
first, answer = ["a" * 50], [None]
if dist.get_rank() == 0:
    dist.send_object_list(first, dst=1)
    dist.recv_object_list(answer, src=1)
else:
    first = [None]
    dist.recv_object_list(first, src=0)
    answer = [first[0] + "b"]
    dist.send_object_list(answer, dst=0)
dist.all_reduce(torch.ones(len(answer[0]), dtype=torch.uint8))
"""
OF_NOBODY = """\
import torch.distributed as dist
dist.init_process_group("nccl")
dist.broadcast_object_list([None], src=1)
"""


@pytest.mark.parametrize(("rank", "fake"), [(0, False), (3, False), (1, True)])
def test_ranks_that_send_are_played(tmp_path: Path, rank: int, fake: bool) -> None:
    (tmp_path / "train.py").write_text(IN_TURN)
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, rank=rank, fake=fake, hardware="cpu")
    assert trace.events["message_bytes"][-1] == 150 + rank


@pytest.mark.parametrize(("rank", "size", "fake"), [(2, 52 + 7 + 50, False), (3, 53, True)])
def test_ranks_that_send_messages_are_played(tmp_path: Path, rank: int, size: int, fake: bool) -> None:
    (tmp_path / "train.py").write_text(ALONG_A_LINE)
    trace = dsexplore.run(tmp_path / "train.py", world_size=4, rank=rank, fake=fake, hardware="cpu")
    assert trace.events["message_bytes"][-1] == size


@pytest.mark.parametrize("rank", [0, 1])
def test_an_answer_arrives_as_the_question_did(tmp_path: Path, rank: int) -> None:
    (tmp_path / "train.py").write_text(TO_AND_FRO)
    trace = dsexplore.run(tmp_path / "train.py", world_size=2, rank=rank, hardware="cpu")
    assert trace.events["message_bytes"][-1] == 51


def test_a_rank_that_has_none_to_send_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OF_NOBODY.replace("[None]", "[None] if dist.get_rank() == 0 else 1 / 0"))
    with pytest.raises(UsageError, match="receives an object of rank 1"):
        dsexplore.run(tmp_path / "train.py", world_size=2)
