"""Traces of torch's profiler (Kineto), read as a stream; only events related to communication are kept.

A trace is JSON, optionally gzipped: an object with ``traceEvents``, or only the list of events. Most events are ops and
kernels of the computation. So a file is split at each ``"ph":``, the first key of each event as torch writes it, and an
event is parsed only if its name is needed. Of compute kernels only device and time are parsed, and of the ranges of
modules and autograd nodes only those of the requested threads. A file of another form is parsed whole.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.event_kinds import Event, EventKind, EventKinds, is_kept, is_kernel, is_launch
from dsexplore._internal.trace.importers.packed import blocks_of, content_of

_MARK = b'"ph":'
_PID = b'"pid"'
_NEXT = rb'\{\s*(?:"name":\s*"[^"]*",\s*)?$'
_FIRST_BEGINS = re.compile(rb"\[\s*" + _NEXT)
_NEXT_BEGINS = re.compile(rb"\s*,\s*" + _NEXT)
"""Text before a ``"ph":``; the names and marks that Kineto writes among the events may have their name first."""
_DESCRIBED = b'"Collective name"'
"""Occurs in every event of a collective, also of a kernel whose name does not show it."""
_KERNELS = pl.Schema({"pid": pl.String, "ts": pl.Float64, "dur": pl.Float64})
_NO_VALUE = re.compile(r'(":\s*)(?:-?(?:inf|nan)\b|(?=[,}\]]))')
"""A key without a value that JSON has: Kineto writes ``inf`` and ``nan`` where it divides by zero, and nothing at all
for the description of a group that has none, ``"Process Group Description": ,``."""
_CORRELATION = re.compile(rb'"correlation":\s*(\d{1,18})\b')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d+)')


@dataclass
class _Parts:
    """The text of a file, cut at each ``"ph":``."""

    head: bytes | None = None
    """Text before the first event."""
    events: list[bytes] = field(default_factory=list)
    """Text of each event after its ``"ph":``; the same holds for `ranges`."""
    ranges: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """Text of ranges by the text after ``"pid"`` that gives process and thread."""
    kernels: list[bytes] = field(default_factory=list)
    """Of compute kernels: the text after ``"pid"`` with process, thread, start and duration."""
    launches: list[bytes] = field(default_factory=list)
    """Of launches: the text after ``"pid"``."""
    categories: frozenset[str] = frozenset()
    last: bytes = b""
    """The last event, and the text after it."""

    def sort(self, parts: Iterable[bytes], kinds: EventKinds) -> None:
        """Add events by their kind."""
        nothing, of_range = EventKind.NOTHING, EventKind.RANGE  # looked up once: there are millions
        of_kernel, of_launch = EventKind.KERNEL, EventKind.LAUNCH
        for part in parts:
            begin, pid, behind = part.partition(_PID)
            kind = kinds[begin] if pid else EventKind.EVENT
            if kind is nothing:
                continue
            if kind is of_range and b'"ts"' in behind:
                self.ranges[behind.partition(b'"ts"')[0]].append(part)
            elif kind is of_kernel and _DESCRIBED not in part:
                self.kernels.append(behind.partition(b'"args"')[0])
            elif kind is of_launch:
                self.launches.append(behind)
            else:
                self.events.append(part)

    def sort_last(self, kinds: EventKinds) -> None:
        """Add the last event if it is a launch or a compute kernel; all others are parsed with the end of the file."""
        begin, pid, behind = self.last.partition(_PID)
        kind = kinds[begin]  # which notes its category, too
        if pid and kind in (EventKind.LAUNCH, EventKind.KERNEL):
            with suppress(ValueError):
                _, end = json.JSONDecoder(strict=False).raw_decode(text := '{"pid"' + behind.decode(errors="replace"))
                part = begin + pid + text[len('{"pid"') : end].encode() + b", "
                self.sort([part] if _DESCRIBED not in part else [], kinds)


@dataclass(frozen=True)
class ProfilerFile:
    """The events of a profiler trace that concern communication."""

    file: Path
    events: tuple[Event, ...]
    """Complete events (``"ph": "X"``), their times in microseconds since `base`."""
    distributed: dict[str, Any]
    """``distributedInfo``: rank, world size and groups; empty in files of earlier versions."""
    base: int
    """Origin of all times, in nanoseconds since the epoch."""
    kernels: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_KERNELS))
    """Compute kernels: ``pid`` (the GPU's number) as text, ``ts`` and ``dur`` of each; null if the file has no
    number."""
    damaged: int = 0
    """Number of events that were omitted as invalid JSON, not counting ranges."""
    ranges: Mapping[tuple[Any, Any], Sequence[bytes]] = field(default_factory=dict)
    """{(process, thread): text of the ranges of modules and autograd nodes that are not in `events`}."""
    launches: Sequence[bytes] = ()
    """Text after ``"pid"`` of each launch of a kernel."""
    categories: frozenset[str] = frozenset()
    """The categories of all events in the file: ``cpu_op``, ``kernel``, ``cuda_runtime``, …"""
    has_times: bool = True
    """False if the times of `events` only order them, as those of an execution trace."""

    def launches_of(self, correlations: Collection[int]) -> dict[int, Event]:
        """Return {correlation: the launch with that number}; damaged launches are omitted."""
        wanted: dict[int, bytes] = {}
        for text in self.launches:
            match = _CORRELATION.search(text)
            if match and int(match[1]) in correlations:
                wanted[int(match[1])] = text[: text.rfind(b"}")]  # what follows is the next event's
        try:
            events = json.loads(_objects(wanted.values()), strict=False)
        except ValueError:
            return {}
        return {number: event for number, event in zip(wanted, events, strict=True) if "ts" in event}

    def ranges_on(self, threads: Collection[object]) -> tuple[list[Event], int]:
        """Return the ranges of these threads, and how many were damaged and left out.

        Args:
            threads: ``(pid, tid)`` of each.
        """
        events_found: list[Event] = []
        damaged = 0
        for thread in self.ranges.keys() & threads:
            texts = self.ranges[thread]
            try:
                events, without = _events(_texts(texts))
            except ValueError:
                events, without = [], len(texts)
            events_found += _complete(self.file, events)
            damaged += without
        return events_found, damaged


def read_profiler_file(file: Path) -> ProfilerFile:
    """Read one rank's trace.

    Raises:
        TraceFileError: the file is truncated, damaged or no profiler trace; the message names a missing field.
    """
    try:
        parts = _cut(blocks_of(file))
        head, last = parts.head or b"", parts.last
        events, damaged = _parsed(head, parts.events, last)
        kernels = pl.read_json(_objects(parts.kernels), schema=_KERNELS)
        threads = [(event.get("pid"), event.get("tid")) for event in json.loads(_objects(parts.ranges))]
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    except (ValueError, RecursionError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return _parsed_whole(file)
    base = _BASE.search(head + last)
    when = int(base[1]) if base else 0
    ranges = dict(zip(threads, parts.ranges.values(), strict=True))
    complete = tuple(_complete(file, events))
    distributed = _distributed(head + last)
    return ProfilerFile(
        file,
        events=complete,
        distributed=distributed,
        base=when,
        kernels=kernels,
        damaged=damaged,
        ranges=ranges,
        launches=tuple(parts.launches),
        categories=parts.categories,
    )


def _cut(blocks: Iterable[bytes]) -> _Parts:
    parts, kinds = _Parts(), EventKinds()
    rest = b""
    for block in blocks:
        *whole, rest = (rest + block).split(_MARK)
        if parts.head is None and whole:
            parts.head = whole.pop(0)
        parts.sort(whole, kinds)
    if parts.head is None:
        parts.head = rest
    else:
        parts.last = rest
        parts.sort_last(kinds)
    parts.categories = frozenset(kinds.categories)
    return parts


def _objects(texts: Collection[bytes]) -> bytes:
    """Return a JSON list of the objects in `texts`, each starting after ``"pid"``, with or without a trailing comma."""
    joined = b'},{"pid"'.join([text.rstrip(b", \t\r\n") for text in texts])
    return b'[{"pid"' + joined + b"}]" if texts else b"[]"


def _parsed(head: bytes, kept: Sequence[bytes], last: bytes) -> tuple[list[Event], int]:
    """Return the kept events with the last one, and how many were damaged and left out.

    Raises:
        ValueError: the file is not written as torch writes it, or its end is missing.
    """
    if b'"traceEvents"' not in head or not _FIRST_BEGINS.search(head[-200:]) or not last.rstrip().endswith(b"}"):
        raise ValueError("not as torch writes it")
    texts = _texts(kept)
    ending = '{"ph":' + last.decode(errors="replace")
    final, end_of_final = json.JSONDecoder(strict=False).raw_decode(ending)
    if not ending[end_of_final:].lstrip().startswith("]"):
        raise ValueError("the list of events has no end")
    events, damaged = _events(texts)
    if any(event.get("ph") == "X" and not _has_torchs_order(event) for event in events):
        raise ValueError("not as torch writes it")
    return [*events, final] if _is_kept(final) else events, damaged


def _has_torchs_order(event: Event) -> bool:
    keys = iter(event)
    following = next(keys), next(keys, "")
    return following == ("ph", "name") or (following == ("ph", "cat") and next(keys, "") == "name")


def _texts(parts: Iterable[bytes]) -> list[str]:
    """Return the text of each event.

    Raises:
        ValueError: an event is followed by something other than the next event.
    """
    texts = []
    for part in parts:
        end = part.rfind(b"}") + 1
        if not _NEXT_BEGINS.match(part, end):
            raise ValueError("an event that begins otherwise")
        texts.append('{"ph":' + part[:end].decode(errors="replace"))
    return texts


def _events(texts: Sequence[str]) -> tuple[list[Event], int]:
    """Parse the events, and return them with the number of invalid ones.

    They are parsed one by one only if one of them is not valid JSON.

    Raises:
        ValueError: most are not valid JSON.
    """
    try:
        return json.loads(f"[{','.join(texts)}]", strict=False), 0
    except ValueError:
        events = []
    for text in texts:
        with suppress(ValueError):
            events.append(json.loads(_NO_VALUE.sub(r"\1null", text), strict=False))
    damaged = len(texts) - len(events)
    if damaged > len(events):
        raise ValueError(f"{damaged:,} of {len(texts):,} events are damaged")
    return events, damaged


def _parsed_whole(file: Path) -> ProfilerFile:
    try:
        content = _content(content_of(file).decode("utf-8-sig", errors="replace"))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    if isinstance(content, list):
        content = {"traceEvents": content}
    if not isinstance(content, dict) or content.get("traceEvents") is None:
        raise TraceFileError(f"{file} has no traceEvents: it is not a trace of torch's profiler")
    every = [event for event in content["traceEvents"] if isinstance(event, dict)]
    events = [event for event in every if _is_kept(event)]
    computing = [event for event in every if is_kernel(str(event.get("cat", ""))) and not _is_kept(event)]
    rows = [(str(event.get("pid")), _number(event.get("ts")), _number(event.get("dur"))) for event in computing]
    kernels = pl.DataFrame(rows, schema=_KERNELS, orient="row")
    launches = [event for event in every if is_launch(str(event.get("cat", "")), str(event.get("name", "")))]
    distributed = content.get("distributedInfo") or {}
    base = int(content.get("baseTimeNanoseconds") or 0)
    return ProfilerFile(
        file,
        tuple(_complete(file, events)),
        distributed,
        base,
        kernels,
        launches=tuple(map(_text_after_pid, launches)),
        categories=frozenset(str(event["cat"]) for event in every if event.get("ph") == "X" and "cat" in event),
    )


def _text_after_pid(event: Event) -> bytes:
    """Return the text of a launch after its ``"pid"``, as `ProfilerFile.launches` has it."""
    arguments = event["args"] if isinstance(event.get("args"), dict) else {}
    kept = {"tid": event.get("tid"), "ts": event.get("ts"), "args": {"correlation": arguments.get("correlation")}}
    return f": {json.dumps(event.get('pid'))}, {json.dumps(kept)[1:]}".encode()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _content(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        if _NO_VALUE.search(text) is None:
            raise
    return json.loads(_NO_VALUE.sub(r"\1null", text), strict=False)


def _is_kept(event: Event) -> bool:
    has_collective = isinstance(event.get("args"), dict) and "Collective name" in event["args"]
    return has_collective or is_kept(str(event.get("cat", "")), str(event.get("name", "")))


def _complete(file: Path, events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        if event.get("ph") != "X":
            continue
        for name in ("name", "ts", "dur"):
            if event.get(name, "" if name == "dur" else None) is None:
                raise TraceFileError(f"{file} has an event without {name}: it is not a trace of torch's profiler")
        yield event


def _distributed(ends: bytes) -> dict[str, Any]:
    at = ends.find(b'"distributedInfo"')
    opening = ends.find(b"{", at) if at >= 0 else -1
    if opening < 0:
        return {}
    try:
        text = _NO_VALUE.sub(r"\1null", ends[opening:].decode(errors="replace"))
        content, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
