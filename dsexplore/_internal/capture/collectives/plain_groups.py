"""The mesh axis of a group that a program made with ``new_group`` and no mesh, as Megatron and DeepSpeed make theirs.

Two things name it, and nothing is guessed:

* its ``group_desc``, where that is an axis's name or one of `AXES_OF`: Megatron's ``TENSOR_MODEL_PARALLEL_GROUP`` is
  ``tp``; its ``DATA_PARALLEL_GROUP_WITH_CP`` is ``dp_cp``, or ``dp`` where the ``CONTEXT_PARALLEL_GROUP`` has one rank;
* else its ranks, where they are those of exactly one axis of a mesh, or of exactly one choice of several axes: with
  ``--mesh dp=2,cp=2,tp=2``, ranks 0 and 4 are ``dp``, and ranks 0, 2, 4, 6 are ``dp_cp``.

Ranks name neither a group of one rank, nor one of the whole world that is no single axis. A message within such a group
has the axis along which its two ranks differ, where they differ along one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, pairwise, product
from math import prod

import torch.distributed as dist

AXES_OF: dict[str, tuple[str, ...]] = {
    "TENSOR_MODEL_PARALLEL": ("tp",),
    "TENSOR_PARALLEL": ("tp",),
    "PIPELINE_MODEL_PARALLEL": ("pp",),
    "PIPELINE_PARALLEL": ("pp",),
    "DATA_PARALLEL": ("dp",),
    "CONTEXT_PARALLEL": ("cp",),
    "SEQUENCE_PARALLEL": ("sp",),
    "EXPERT_MODEL_PARALLEL": ("ep",),
    "EXPERT_PARALLEL": ("ep",),
    "EXPERT_TENSOR_PARALLEL": ("etp",),
    "EXPERT_DATA_PARALLEL": ("edp",),
    "MODEL_PARALLEL": ("tp", "pp"),
    "DATA_PARALLEL_WITH_CP": ("dp", "cp"),
    "HYBRID_DP_CP": ("dp", "cp"),
    "TENSOR_AND_DATA_PARALLEL": ("tp", "dp"),
    "TENSOR_AND_DATA_PARALLEL_WITH_CP": ("tp", "dp", "cp"),
    "TENSOR_AND_CONTEXT_PARALLEL": ("tp", "cp"),
    "EXPERT_TENSOR_AND_MODEL_PARALLEL": ("etp", "ep"),
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL": ("etp", "ep", "pp"),
}
"""Axes by ``group_desc``: the names of Megatron's ``parallel_state.py``, without what says that they are groups, or
which of several groups along the same axes."""
ENDS_OF = {"EMBEDDING": "pp", "POSITION_EMBEDDING": "pp"}
"""Axis by ``group_desc``, of groups of an axis's first and last rank: Megatron's pipeline ends share an embedding."""

_SHORT = {axis for axes in AXES_OF.values() for axis in axes}
_SAME_AXES = re.compile(r"^(HIERARCHICAL_|INTRA_PARTIAL_|INTER_PARTIAL_)|_GROUP(?=_|$)|(_GLOO|_AG|_L\d+|_\d+)$")


def axis_of_description(description: str, groups: Iterable[dist.ProcessGroup]) -> str:
    """Return the axis that a ``group_desc`` names, ``"dp_cp"`` for a group along two; "" if it names none.

    Args:
        description: as given to ``new_group``.
        groups: those of this process. An axis whose own group has one rank is omitted of a group along several.
    """
    words = _words(description)
    axes = _axes(words)
    if len(axes) > 1:
        single_rank_axes = {_axes(_words(group.group_desc)) for group in groups if group.size() == 1}
        axes = tuple(axis for axis in axes if (axis,) not in single_rank_axes) or axes
    return "_".join(axes) or ENDS_OF.get(words, "")


def _words(description: str) -> str:
    """Strip a description to its axes.

    Example: ``"INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO"`` → ``"DATA_PARALLEL_WITH_CP"``.
    """
    words = description.strip().upper()
    while (shorter := _SAME_AXES.sub("", words)) != words:
        words = shorter
    return words


def _axes(words: str) -> tuple[str, ...]:
    return (words.lower(),) if words.lower() in _SHORT else AXES_OF.get(words, ())


def axes_of_ranks(ranks: Sequence[int], along: Mapping[str, Sequence[int]], own_rank: int) -> set[str]:
    """Return the axes of a mesh, or joined names of several axes, that have exactly these ranks.

    Args:
        ranks: of a group that this process is in.
        along: ranks of the mesh's groups that this process is in, by axis, outermost first.
        own_rank: the rank of this process.
    """
    axes = {name: tuple(on_axis) for name, on_axis in along.items() if len(on_axis) > 1}
    is_whole = len(ranks) == prod(map(len, axes.values()))
    is_regular = all(len({after - before for before, after in pairwise(on_axis)}) == 1 for on_axis in axes.values())
    most = 1 if is_whole or not is_regular else len(axes)
    wanted = set(ranks)
    return {
        "_".join(chosen)
        for count in range(1, most + 1)
        for chosen in combinations(axes, count)
        if prod(len(axes[name]) for name in chosen) == len(ranks)
        and _differing_along([axes[name] for name in chosen], own_rank) == wanted
    }


def axes_of_peers(meshes: Iterable[Mapping[str, Sequence[int]]]) -> dict[int, str]:
    """Return {rank: axis that it shares with this process}; ranks for which meshes name two axes are omitted.

    Example: a program that sends to the next pipeline stage within the group of all ranks sends along ``pp``.

    Args:
        meshes: of each mesh, the ranks of its groups that this process is in, by axis.
    """
    names: dict[int, set[str]] = {}
    for along in meshes:
        for name, ranks in along.items():
            for rank in ranks:
                names.setdefault(rank, set()).add(name)
    return {rank: name for rank, (name, *others) in names.items() if not others}


def _differing_along(axes: Sequence[Sequence[int]], own_rank: int) -> set[int]:
    """Return the ranks of a mesh whose coordinates differ from this process's along these axes only.

    Example: rank 1 of a 2×2×2 mesh, axes (1, 5) and (1, 3): the ranks 1, 3, 5, 7.
    """
    steps = [[rank - own_rank for rank in axis] for axis in axes]
    return {own_rank + sum(offsets) for offsets in product(*steps)}
