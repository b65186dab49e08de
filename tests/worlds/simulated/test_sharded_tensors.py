"""A ``ShardedTensor`` of a simulated world has this rank's shard, and an even split for the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

import dsexplore
from dsexplore._internal.worlds.simulate import simulate

pytestmark = pytest.mark.filterwarnings("ignore")


def of(rank: int, size: int, *whole: Any) -> list[tuple[list[int], list[int], int | None]]:
    """Return offsets, sizes and rank of each shard of a tensor whose rows are split into parts of 5."""
    shard = Shard.from_tensor_and_offsets(torch.ones(size, 2), [5 * rank, 0], rank)
    made = init_from_local_shards([shard], *whole)
    shards = made.metadata().shards_metadata
    return [
        (each.shard_offsets, each.shard_sizes, None if each.placement is None else each.placement.rank())
        for each in shards
    ]


@pytest.mark.parametrize(("rank", "size"), [(0, 5), (1, 5), (3, 3)])
def test_the_other_ranks_hold_the_rest(rank: int, size: int) -> None:
    with simulate(4, rank=rank), dsexplore.commtrace() as trace:
        shards = of(rank, size, 18, 2)
    assert shards == [([0, 0], [5, 2], 0), ([5, 0], [5, 2], 1), ([10, 0], [5, 2], 2), ([15, 0], [3, 2], 3)]
    assert set(trace.events["op"]) == {"all_gather"}


def test_some_ranks_may_hold_nothing() -> None:
    with simulate(8, rank=1):
        shard = Shard.from_tensor_and_offsets(torch.ones(2), [2], 1)
        made = init_from_local_shards([shard], 9)
        assert [each.shard_sizes for each in made.metadata().shards_metadata] == [[2]] * 4 + [[1]]


def test_what_covers_no_tensor_is_torchs_error() -> None:
    with simulate(4, rank=1), pytest.raises(ValueError, match="overlap"):
        of(1, 4, 18, 2)


@pytest.mark.parametrize("rank", [0, 3])
def test_fsdp1_hands_out_and_takes_its_local_state(rank: int) -> None:
    with simulate(4, rank=rank, hardware="h100"):
        dist.init_process_group("nccl")
        model = FullyShardedDataParallel(nn.Linear(5, 3), device_id=torch.cuda.current_device())
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
            state = model.state_dict()
            assert state["_flat_param"].metadata().size == (18,)
            model.load_state_dict(state)
