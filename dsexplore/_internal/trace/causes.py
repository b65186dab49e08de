"""Values of the column ``cause`` that FSDP and pipelines have.

``FSDP …`` are those of ``fully_shard`` (FSDP2), ``FSDP1 …`` those of the wrapper ``FullyShardedDataParallel``.
"""

from __future__ import annotations

from collections.abc import Iterable

FSDP_GATHERS = tuple(
    f"{kind} {when}" for kind in ("FSDP", "FSDP1") for when in ("pre_forward", "pre_backward", "prefetch")
)
FSDP_REDUCES = ("FSDP post_backward", "FSDP1 post_backward")
PIPELINE_SCHEDULE = "pipeline schedule"
"""Cause of the messages that a pipeline's schedule sends and receives between its calls of the stages."""


def is_fsdp2(cause: str) -> bool:
    """Return True if `cause` names ``fully_shard`` (FSDP2)."""
    return cause.startswith("FSDP") and not cause.startswith("FSDP1")


def is_fsdp1(causes: Iterable[str]) -> bool:
    """Return True if any cause names the ``FullyShardedDataParallel`` wrapper (FSDP1)."""
    return any(cause.startswith("FSDP1") for cause in causes)
