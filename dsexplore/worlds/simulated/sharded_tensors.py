"""``ShardedTensor`` in a simulated world: what the other ranks hold of it, where one rank alone says what it holds.

Each rank sends the others where its shards lie, and torch checks that they cover the tensor. What arrives here from
another rank is a copy of this rank's own; so the tensor is taken to be cut evenly, and each to hold the next part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from torch.distributed._shard.sharded_tensor import utils
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata
from torch.distributed.remote_device import _remote_device

from dsexplore.torch_internals.patches import Patches


def patch_sharded_tensors(patches: Patches) -> None:
    """Each rank holds its own part of a ``ShardedTensor`` that is made from local shards, from now on."""
    patches.function(utils.build_global_metadata, _spread)


def _spread(original: Callable[..., ShardedTensorMetadata]) -> Callable[..., ShardedTensorMetadata]:
    @wraps(original)
    def build_global_metadata(
        gathered_metadatas: Sequence[ShardedTensorMetadata | None], *args: Any, **kwargs: Any
    ) -> ShardedTensorMetadata:
        own = gathered_metadatas[0]
        if own is not None and len(own.shards_metadata) == 1 and all(each == own for each in gathered_metadatas):
            gathered_metadatas = _side_by_side(own, len(gathered_metadatas))
        return original(gathered_metadatas, *args, **kwargs)

    return build_global_metadata


def _side_by_side(own: ShardedTensorMetadata, ranks: int) -> list[ShardedTensorMetadata | None]:
    """What ranks hold of a tensor that is cut along one dim as `torch.chunk` does; None for those behind its end.

    Worked example: of 10 elements, three ranks hold 4, 4 and 2. A tensor that is cut in another way stays as it is.
    """
    shard = own.shards_metadata[0]
    cut = [dim for dim, (part, whole) in enumerate(zip(shard.shard_sizes, own.size, strict=True)) if part < whole]
    if len(cut) != 1:
        return [own] * ranks
    dim, whole = cut[0], own.size[cut[0]]
    length = -(-whole // ranks)
    place, beside = divmod(shard.shard_offsets[dim], length)
    if beside or shard.shard_sizes[dim] != min(length, whole - place * length):
        return [own] * ranks
    held: list[ShardedTensorMetadata | None] = []
    for number in range(ranks):
        start = number * length
        each = copy.deepcopy(own)
        held.append(each if start < whole else None)
        part = each.shards_metadata[0]
        part.shard_offsets[dim], part.shard_sizes[dim] = start, min(length, whole - start)
        if part.placement is not None and number != place:
            part.placement = _remote_device(f"rank:{number}/{part.placement.device()}")
    return held
