"""Objects that a script's other ranks send, got by playing these ranks.

Modules: ``worlds/simulated/shared_objects.py``, ``worlds/scripts/play_rank.py``.
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


def test_a_rank_that_has_none_to_send_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OF_NOBODY.replace("[None]", "[None] if dist.get_rank() == 0 else 1 / 0"))
    with pytest.raises(UsageError, match="receives an object of rank 1"):
        dsexplore.run(tmp_path / "train.py", world_size=2)
