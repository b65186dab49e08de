"""Collectives of a group whose communicator NCCL gave up: they failed, though their devices got past them.

Where a collective runs into the group's timeout, or a peer is gone, torch's watchdog aborts the communicator. Whatever
waits in it ends then with wrong values, and CUDA calls it done. Nothing can be issued in the group afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from dsexplore.capture.groups import Group
from dsexplore.capture.issued_collective import Issued

_FAILURE = "failed: NCCL gave the group up"


def mark_given_up(issued: Sequence[Issued], groups: Iterable[Group]) -> list[str]:
    """Mark as failed what ended because its group was given up.

    Of the group's collectives this is the one that took longest, and those after it: the first that did not end by
    itself stood until the watchdog came. The group's first collective is left out unless there are no others: it may
    have taken long, as it made the communicator. As long as one still stands, what has ended did so by itself: the
    watchdog notes the error first, and leaves time for the flight recorder before it aborts.

    Returns:
        A sentence for each group in which there are any that were not marked before.
    """
    notes = []
    for group in groups:
        own = [one for one in issued if one.group is group] if group.error else []
        if any(one.failure.startswith(_FAILURE) for one in own):
            continue
        for one in own:
            one.read_clock(waits=False)
        if any(one.span is not None and one.span.has_end for one in own):
            continue
        lasted = [(one, one.end - one.start) for one in own if one.start is not None and one.end is not None]
        if not lasted:
            continue
        first, _ = max(lasted[1:] or lasted, key=itemgetter(1))
        ended = [one for one, _ in lasted]
        failed = ended[ended.index(first) :]
        for one in failed:
            one.end, one.failure = None, f"{_FAILURE}, {group.error}"
        notes.append(
            f"NCCL gave group {group.axis or group.name} up ({group.error}): collective {own.index(first) + 1} of it "
            "and those after it failed"
        )
    return notes
