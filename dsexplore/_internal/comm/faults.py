"""Add the op, the process group, the rank and advice to the errors that collectives raise."""

from __future__ import annotations

from typing import Any

import torch.distributed as td

from dsexplore._internal.comm.logs.meeting import stopped_or_ended

_SHOWN_RANKS = 16


def explain(error: Exception, call: str, group: Any) -> None:
    """Add op, group, rank and advice to an error's message; its type is unchanged, for ``except``."""
    if getattr(error, "_explained_by_dsexplore", False):
        return
    text, advice = str(error), _advice(str(error), group)
    stop = "." if advice and text[-1].isalnum() else ""
    error.args = (f"{call} on {describe(group)} failed on {_this_rank()}: {text}{stop}{advice}",)
    error._explained_by_dsexplore = True  # type: ignore[attr-defined]


def check_peers(call: str, group: Any, *, peer: int | None = None, group_peer: int | None = None) -> None:
    """Raise if a rank does not exist; gloo would use it as an index into memory.

    Args:
        call: name of the op in errors.
        group: a process group that this rank is in.
        peer: a global rank; None if the caller gave none.
        group_peer: a rank in `group`; None if the caller gave none.

    Raises:
        ValueError: no such rank.
    """
    for rank, ranks, where in ((peer, td.group.WORLD, "the world"), (group_peer, group, "the group")):
        if rank is not None and ranks is not None and not 0 <= rank < ranks.size():
            error = ValueError(f"rank {rank} is not in {where}, whose ranks are 0 to {ranks.size() - 1}.")
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


def _stopped_peers(group: Any) -> str:
    """Return a text on peers that are known to be stopped or to have ended; empty if there are none."""
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
    """Return a sentence on what to do about an error with this text; empty if there is no advice."""
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
            f"{_stopped_peers(group)}"
        )
    return ""
