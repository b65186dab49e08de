"""Collectives of a group whose communicator NCCL gave up: they failed, though their devices got past them.

Where a collective runs into the group's timeout, or a peer is gone, torch's watchdog aborts the communicator. Whatever
waits in it ends then with wrong values, and CUDA calls it done. Nothing can be issued in the group afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.capture.collectives.issued_collective import Issued

_FAILURE = "failed: NCCL gave the group up"


def mark_given_up(issued: Sequence[Issued], groups: Iterable[Group]) -> list[str]:
    """Mark as failed what ended because its group was given up.

    Of the group's collectives this is the one that took longest, and those after it: the first that did not end by
    itself stood until the watchdog came. The group's first collective is omitted unless there are no others: it may
    have taken long, as it made the communicator. As long as one still stands, what has ended did so by itself: the
    watchdog notes the error first, and leaves time for the flight recorder before it aborts.

    Returns:
        A sentence for each group in which there are any that were not marked before.
    """
    notes = []
    for group in groups:
        of_group = [collective for collective in issued if collective.group is group] if group.error else []
        if any(collective.failure.startswith(_FAILURE) for collective in of_group):
            continue
        for collective in of_group:
            collective.read_clock(waits=False)
        if any(collective.span is not None and collective.span.has_end for collective in of_group):
            continue
        lasted = [
            (collective, collective.end - collective.start)
            for collective in of_group
            if collective.start is not None and collective.end is not None
        ]
        if not lasted:
            continue
        first, _ = max(lasted[1:] or lasted, key=itemgetter(1))
        ended = [collective for collective, _ in lasted]
        failed = ended[ended.index(first) :]
        for collective in failed:
            collective.end, collective.failure = None, f"{_FAILURE}, {group.error}"
        notes.append(
            f"NCCL gave group {group.axis or group.name} up ({group.error}): "
            f"collective {of_group.index(first) + 1} of it and those after it failed"
        )
    return notes
