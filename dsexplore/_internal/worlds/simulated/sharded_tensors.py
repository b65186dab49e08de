"""``ShardedTensor`` in a simulated world: shard metadata of the ranks that are not played.

Each rank sends the offsets and sizes of its shards, and torch checks that together they cover the tensor. In a
simulated world the metadata received from another rank is a copy of this rank's. So the tensor is assumed to be split
evenly, and each rank to hold the next part.
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
    """Return the metadata of each rank for a tensor split along one dim as by `torch.chunk`; None for an empty part.

    Example: of 10 elements, three ranks hold 4, 4 and 2. A tensor that is sharded otherwise is returned as is.
    """
    shard = local.shards_metadata[0]
    cut = [dim for dim, (part, whole) in enumerate(zip(shard.shard_sizes, local.size, strict=True)) if part < whole]
    if len(cut) != 1:
        return [local] * ranks
    dim, whole = cut[0], local.size[cut[0]]
    length = -(-whole // ranks)
    place, beside = divmod(shard.shard_offsets[dim], length)
    if beside or shard.shard_sizes[dim] != min(length, whole - place * length):
        return [local] * ranks
    held: list[ShardedTensorMetadata | None] = []
    for number in range(ranks):
        start = number * length
        copied = copy.deepcopy(local)
        held.append(copied if start < whole else None)
        part = copied.shards_metadata[0]
        part.shard_offsets[dim], part.shard_sizes[dim] = start, min(length, whole - start)
        if part.placement is not None and number != place:
            part.placement = placement_of_shard(number, part.placement)
    return held


PATCHES = (
    Patch(
        checkpoint.BUILD_GLOBAL_METADATA,
        "all ranks seem to hold what this rank does, and torch checks that they cover the tensor",
        _spread,
        by_code=True,
    ),
)
