"""Shard metadata of the other ranks for a ``ShardedTensor`` in a simulated world.

Each rank sends the offsets and sizes of its shards, and torch checks that together they cover the tensor. A simulated
rank receives copies of its own metadata, which fail this check. They are replaced by those of an even split, in which
each rank holds the next part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from dsexplore._internal.torch_internals import checkpoint
from dsexplore._internal.torch_internals.checkpoint import ShardedTensorMetadata, placement_of_shard
from dsexplore._internal.torch_internals.patches import Parts, Patch


def _spread(original: Callable[..., ShardedTensorMetadata], _parts: Parts) -> Callable[..., ShardedTensorMetadata]:
    """Wrap torch's join of the ranks' metadata: copies of this rank's are replaced by those of an even split."""

    @wraps(original)
    def build_global_metadata(
        gathered_metadatas: Sequence[ShardedTensorMetadata | None], *args: Any, **kwargs: Any
    ) -> ShardedTensorMetadata:
        local = gathered_metadatas[0]
        if (
            local is not None
            and len(local.shards_metadata) == 1
            and all(metadata == local for metadata in gathered_metadatas)
        ):
            gathered_metadatas = _side_by_side(local, len(gathered_metadatas))
        return original(gathered_metadatas, *args, **kwargs)

    return build_global_metadata


def _side_by_side(local: ShardedTensorMetadata, ranks: int) -> list[ShardedTensorMetadata | None]:
    """Return the metadata of each rank for a tensor split along one dim, as `torch.chunk` splits it.

    Three ranks hold 4, 4 and 2 of 10 elements, for example. A rank with an empty part has None. If the tensor is
    sharded in another way, each rank gets a copy of the local metadata.
    """
    shard = local.shards_metadata[0]
    split_dims = [dim for dim, size in enumerate(local.size) if shard.shard_sizes[dim] < size]
    if len(split_dims) != 1:
        return [local] * ranks
    dim = split_dims[0]
    size = local.size[dim]
    length = -(-size // ranks)
    local_rank, remainder = divmod(shard.shard_offsets[dim], length)
    if remainder or shard.shard_sizes[dim] != min(length, size - local_rank * length):
        return [local] * ranks
    metadatas: list[ShardedTensorMetadata | None] = []
    for rank in range(ranks):
        start = rank * length
        if start >= size:
            metadatas.append(None)
            continue
        metadata = copy.deepcopy(local)
        part = metadata.shards_metadata[0]
        part.shard_offsets[dim], part.shard_sizes[dim] = start, min(length, size - start)
        if part.placement is not None and rank != local_rank:
            part.placement = placement_of_shard(rank, part.placement)
        metadatas.append(metadata)
    return metadatas


PATCHES = (
    Patch(
        checkpoint.BUILD_GLOBAL_METADATA,
        "torch checks that the shards cover the tensor, and all ranks seem to hold the same shard",
        _spread,
        by_code=True,
    ),
)
