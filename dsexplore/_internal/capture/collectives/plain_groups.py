"""Finds the mesh axis of a group that a program created with ``new_group`` and no mesh, as Megatron and DeepSpeed do.

The axis comes from one of two sources:

* the group's ``group_desc``, if it is an axis's name or one of `AXES_OF`. Megatron's ``TENSOR_MODEL_PARALLEL_GROUP`` is
  ``tp``. Its ``DATA_PARALLEL_GROUP_WITH_CP`` is ``dp_cp``, or ``dp`` if the ``CONTEXT_PARALLEL_GROUP`` has one rank;
* otherwise the group's ranks, if they are those of exactly one axis of a mesh, or of exactly one set of axes. With
  ``--mesh dp=2,cp=2,tp=2``, ranks 0 and 4 are ``dp``, and ranks 0, 2, 4, 6 are ``dp_cp``.

Ranks do not name a group of one rank, nor a group of the whole world unless it is a single axis. A message in a group
without an axis has the axis along which its two ranks differ, if there is exactly one.
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
"""{``group_desc`` as `_words` returns it: its axes}, for the names in Megatron's ``parallel_state.py``."""
ENDS_OF = {"EMBEDDING": "pp", "POSITION_EMBEDDING": "pp"}
"""The same for groups of an axis's first and last rank: the two ends of Megatron's pipeline share an embedding."""

_SHORT = {axis for axes in AXES_OF.values() for axis in axes}
"""The names of axes."""
_SAME_AXES = re.compile(r"^(HIERARCHICAL_|INTRA_PARTIAL_|INTER_PARTIAL_)|_GROUP(?=_|$)|(_GLOO|_AG|_L\d+|_\d+)$")


def axis_of_description(description: str, groups: Iterable[dist.ProcessGroup]) -> str:
    """Return the axis that a ``group_desc`` names, ``"dp_cp"`` for a group along two axes; "" if it names none.

    Args:
        description: the ``group_desc`` given to ``new_group``.
        groups: all groups of this process. Of several axes, those are omitted along which a group has one rank.
    """
    words = _words(description)
    axes = _axes(words)
    if len(axes) > 1:
        single_rank_axes = {_axes(_words(group.group_desc)) for group in groups if group.size() == 1}
        axes = tuple(axis for axis in axes if (axis,) not in single_rank_axes) or axes
    return "_".join(axes) or ENDS_OF.get(words, "")


def _words(description: str) -> str:
    """Remove the words from a description that do not name axes.

    Example: ``"INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO"`` → ``"DATA_PARALLEL_WITH_CP"``.
    """
    words = description.strip().upper()
    while (shorter := _SAME_AXES.sub("", words)) != words:
        words = shorter
    return words


def _axes(words: str) -> tuple[str, ...]:
    return (words.lower(),) if words.lower() in _SHORT else AXES_OF.get(words, ())


def axes_of_ranks(ranks: Sequence[int], along: Mapping[str, Sequence[int]], own_rank: int) -> set[str]:
    """Return the names of the axes of a mesh, or the joined names of several axes, that have exactly these ranks.

    Args:
        ranks: the ranks of a group that this process is in.
        along: {axis of the mesh, outermost first: ranks of this process's group along it}.
        own_rank: the rank of this process.
    """
    axes = {name: tuple(on_axis) for name, on_axis in along.items() if len(on_axis) > 1}
    is_whole = len(ranks) == prod(map(len, axes.values()))
    is_regular = all(len({after - before for before, after in pairwise(on_axis)}) == 1 for on_axis in axes.values())
    most = 1 if is_whole or not is_regular else len(axes)
    matching = set()
    for count in range(1, most + 1):
        for names in combinations(axes, count):
            chosen = [axes[name] for name in names]
            if prod(map(len, chosen)) == len(ranks) and _differing_along(chosen, own_rank) == set(ranks):
                matching.add("_".join(names))
    return matching


def axes_of_peers(meshes: Iterable[Mapping[str, Sequence[int]]]) -> dict[int, str]:
    """Return {rank: the axis that it shares with this process}, for ranks that share exactly one.

    Example: a program that sends to the next pipeline stage within the group of all ranks sends along ``pp``.

    Args:
        meshes: for each mesh, {axis: ranks of this process's group along it}.
    """
    names: dict[int, set[str]] = {}
    for along in meshes:
        for name, ranks in along.items():
            for rank in ranks:
                names.setdefault(rank, set()).add(name)
    return {rank: axes.pop() for rank, axes in names.items() if len(axes) == 1}


def _differing_along(axes: Sequence[Sequence[int]], own_rank: int) -> set[int]:
    """Return the ranks of a mesh whose coordinates differ from this process's along these axes only.

    Example: for rank 1 of a 2×2×2 mesh, whose groups along two axes are (1, 5) and (1, 3): the ranks 1, 3, 5, 7.
    """
    steps = [[rank - own_rank for rank in axis] for axis in axes]
    return {own_rank + sum(offsets) for offsets in product(*steps)}
