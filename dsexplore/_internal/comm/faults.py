"""Errors of collectives, extended by the op, the group and the rank on which they happened."""

from __future__ import annotations

from typing import Any

import torch.distributed as td

from dsexplore._internal.comm.logs.meeting import stopped_or_ended

_SHOWN_RANKS = 16
NO_PEERS = (None, None)
"""Argument of `check_peers` for a call without root and peer."""


def explain(error: Exception, call: str, group: Any) -> None:
    """Add op, group, rank and advice to an error's message; its type is unchanged, for ``except``."""
    if getattr(error, "_explained_by_dsexplore", False):
        return
    text, advice = str(error), _advice(str(error), group)
    stop = "." if advice and text[-1].isalnum() else ""
    error.args = (f"{call} on {describe(group)} failed on {_this_rank()}: {text}{stop}{advice}",)
    error._explained_by_dsexplore = True  # type: ignore[attr-defined]


def check_peers(peers: tuple[Any, Any], call: str, group: Any) -> None:
    """Raise if a rank does not exist; gloo would use it as an index into memory.

    Args:
        peers: a global rank and a group rank; None if not given.
        call: name of the op in errors.
        group: a live group.

    Raises:
        ValueError: no such rank.
    """
    world = td.group.WORLD
    for peer, whole, where in zip(peers, (world, group), ("the world", "the group"), strict=True):
        if peer is not None and whole is not None and not 0 <= peer < whole.size():
            error = ValueError(f"rank {peer} is not in {where}, whose ranks are 0 to {whole.size() - 1}.")
            explain(error, call, group)
            raise error


def describe(group: Any) -> str:
    """Return a process group as text, ``"group '2' (ranks 0, 3)"``; never raises."""
    try:
        chosen = td.group.WORLD if group is None else group
        if chosen is None:
            return "the world group"
        if chosen == td.GroupMember.NON_GROUP_MEMBER:
            return "a group that this rank is not in"
        ranks = td.get_process_group_ranks(chosen)
        shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
        more = f", … {len(ranks)} in all" if len(ranks) > _SHOWN_RANKS else ""
        return f"group {chosen.group_name!r} (ranks {shown}{more})"
    except Exception:
        return f"group {group!r}"


def _peers_that_cannot(group: Any) -> str:
    """Return a text on peers that this process knows to be stopped or ended; empty if none."""
    try:
        ranks = td.get_process_group_ranks(td.group.WORLD if group is None else group)
        stopped = stopped_or_ended([rank for rank in ranks[:_SHOWN_RANKS] if rank != td.get_rank()])
    except Exception:
        return ""
    return f" {stopped}" if stopped else ""


def _this_rank() -> str:
    try:
        return f"rank {td.get_rank()}"
    except Exception:
        return "a rank without a process group"


def _advice(text: str, group: Any) -> str:
    lowered = text.lower()
    if "has not been initialized" in lowered:
        return " Call dsexplore.comm.init_distributed() first."
    if "connection" in lowered and ("reset" in lowered or "closed" in lowered or "refused" in lowered):
        return " A peer has ended: look at the output of the other ranks of this group."
    if "timed out" in lowered or "timeout" in lowered:
        return (
            " A peer did not join in time: see that every rank of the group makes this call, in the same order; with"
            " TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment, torch compares the ranks' calls and names the first"
            " that differs; where calls are logged, dsexplore.comm.check() does so after it."
            f"{_peers_that_cannot(group)}"
        )
    return ""
