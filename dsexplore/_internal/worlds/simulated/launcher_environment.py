"""The environment variables that torchrun sets for a process, for one rank of a simulated world.

Scripts and frameworks read them to learn their rank; without them, accelerate and transformers' Trainer run as a single
process. The variables are set while the world is open, and restored afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dsexplore._internal.errors import UsageError
from dsexplore._internal.launch_constants import SIMULATED_RUN

RANKS_PER_NODE = 8
"""Default number of ranks on one node: the GPUs of a DGX or HGX machine."""
_PORT = 29500
"""torchrun's default port; nothing listens on it."""


def check_ranks_per_node(ranks_per_node: int | None, world_size: int) -> int:
    """Return the number of ranks on a full node.

    Args:
        ranks_per_node: number of ranks; None for `RANKS_PER_NODE`, or for all ranks of a smaller world. With None, the
            last node may have fewer ranks.
        world_size: number of ranks of the world.

    Raises:
        UsageError: ``ranks_per_node`` is not a positive integer, or the world size is not a multiple of it.
    """
    if ranks_per_node is None:
        return min(RANKS_PER_NODE, world_size)
    if not isinstance(ranks_per_node, int) or isinstance(ranks_per_node, bool) or ranks_per_node < 1:
        raise UsageError(f"{ranks_per_node!r} ranks per node is not a number of ranks: give 1 or more")
    if world_size % ranks_per_node:
        raise UsageError(
            f"a world of {world_size} ranks does not divide into nodes of {ranks_per_node} ranks: "
            f"give a world size that is a multiple of {ranks_per_node}, or other ranks per node"
        )
    return ranks_per_node


def launcher_variables(rank: int, world_size: int, ranks_per_node: int) -> dict[str, str]:
    """Return the environment variables that torchrun sets for a rank, with one process per rank and no restarts.

    Args:
        rank: 0 to ``world_size`` - 1.
        world_size: number of ranks.
        ranks_per_node: number of ranks on each node; the last node may have fewer.
    """
    node, local_rank = divmod(rank, ranks_per_node)
    nodes = -(-world_size // ranks_per_node)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(min(ranks_per_node, world_size - node * ranks_per_node)),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_PORT),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": SIMULATED_RUN,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in a block, and restore them afterwards."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
