"""Find the ranges of a profiler trace that were running on a thread at some moment."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

from dsexplore._internal.trace.importers.event_kinds import Event

Moment = tuple[object, float]
"""A thread, as `thread_of` returns it, and a time in the file's microseconds."""


def thread_of(event: Event) -> object:
    """Return the thread of an event: process and thread number, as written."""
    return event.get("pid"), event.get("tid")


def begin_of(event: Event) -> float:
    """Return the start of an event, in the file's microseconds."""
    return float(event["ts"])


def end_of(event: Event) -> float:
    """Return the end of an event, in the file's microseconds."""
    return begin_of(event) + float(event.get("dur", 0))


class EventRanges:
    """Events by thread, to find those around or inside another one.

    Args:
        events: events of a trace; those of one thread may be nested and may overlap.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self._events: dict[object, list[Event]] = defaultdict(list)
        for event in sorted(events, key=lambda event: (begin_of(event), -end_of(event))):
            self._events[thread_of(event)].append(event)

    def around(self, moments: Sequence[Moment]) -> list[tuple[Event, ...]]:
        """Return the events that were running at each moment on its thread, outermost first."""
        enclosing: list[tuple[Event, ...]] = [()] * len(moments)
        of_thread: dict[object, list[int]] = defaultdict(list)
        for place, (thread, _) in enumerate(moments):
            if thread in self._events:
                of_thread[thread].append(place)
        for thread, places in of_thread.items():
            places.sort(key=lambda place: moments[place][1])
            around = _running_at(self._events[thread], [moments[place][1] for place in places])
            for place, events in zip(places, around, strict=True):
                enclosing[place] = events
        return enclosing

    def within(self, event: Event) -> list[Event]:
        """Return the events of the same thread that began while `event` was running, in order of time."""
        events = self._events.get(thread_of(event), [])
        at = bisect_left(events, begin_of(event), key=begin_of)
        end = end_of(event)
        inner = []
        while at < len(events) and begin_of(events[at]) <= end:
            inner.append(events[at])
            at += 1
        return inner


def _running_at(events: Sequence[Event], moments: Sequence[float]) -> Iterable[tuple[Event, ...]]:
    """Yield for each moment, in order of time, the events that were running."""
    running: list[Event] = []
    following = 0
    for at in moments:
        while following < len(events) and begin_of(events[following]) <= at:
            running = [event for event in running if end_of(event) >= begin_of(events[following])]
            running.append(events[following])
            following += 1
        running = [event for event in running if end_of(event) >= at]
        yield tuple(running)
