"""Marks collectives as failed whose communicator was aborted, although their devices report them as done.

If a collective exceeds its group's timeout, or a peer has gone, torch's watchdog aborts the NCCL communicator. The
collectives in flight then end with wrong values, and CUDA reports them as done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.capture.collectives.issued_collective import Issued

_FAILURE = "failed: NCCL gave the group up"


def mark_given_up(issued: Sequence[Issued], groups: Iterable[Group]) -> list[str]:
    """Mark the collectives as failed that ended because NCCL gave their group up.

    Returns:
        One sentence for the trace's notes for each group with collectives that were not marked before.
    """
    notes = []
    for group in groups:
        of_group = [collective for collective in issued if collective.group is group] if group.error else []
        if any(collective.failure.startswith(_FAILURE) for collective in of_group):
            continue
        failed = _aborted(of_group)
        for collective in failed:
            collective.end, collective.failure = None, f"{_FAILURE}, {group.error}"
        if failed:
            notes.append(
                f"NCCL gave group {group.axis or group.name} up ({group.error}): "
                f"collective {of_group.index(failed[0]) + 1} of it and those after it failed"
            )
    return notes


def _aborted(collectives: Sequence[Issued]) -> list[Issued]:
    """Return those of a group's collectives that its abort has ended; empty while any is in flight.

    These are the one that took longest and those after it: the first that could not complete lasted until the watchdog
    aborted the communicator. The group's first collective is not considered if there are others, since it may have
    taken long to create the communicator. While a collective is in flight, there was no abort yet: the watchdog sets
    the group's error first, and leaves time for the flight recorder.
    """
    for collective in collectives:
        collective.read_clock(waits=False)
    if any(collective.span is not None and collective.span.has_end for collective in collectives):
        return []
    ended, durations = [], []
    for collective in collectives:
        if collective.start is not None and collective.end is not None:
            ended.append(collective)
            durations.append(collective.end - collective.start)
    if not ended:
        return []
    longest = durations.index(max(durations[1:] or durations), min(1, len(ended) - 1))
    return ended[longest:]
