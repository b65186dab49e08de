"""Read traces of torch's profiler (Kineto) as a stream, and keep only events that are needed for communication.

A trace is JSON, gzipped or not: an object with ``traceEvents``, or only the list of events. Most events are ops and
kernels of the computation. So a file is cut at each ``"ph":``, the first key of each event as torch writes it, and only
some of the events are parsed: see `EventKind`. A file that another program has written anew is parsed as a whole.
"""

from __future__ import annotations

import json
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
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
"""Text before a ``"ph":``; Kineto writes the name before it in events that name a process or mark a moment."""
_DESCRIBED = b'"Collective name"'
"""Argument of every event of a collective, also of a kernel whose own name does not tell that it communicates."""
_KERNELS = pl.Schema({"pid": pl.String, "ts": pl.Float64, "dur": pl.Float64})
_NO_VALUE = re.compile(r'(":\s*)(?:-?(?:inf|nan)\b|(?=[,}\]]))')
"""A key without a value of JSON: Kineto writes ``inf`` and ``nan`` after a division by zero, and nothing at all for the
description of a group without one: ``"Process Group Description": ,``."""
_CORRELATION = re.compile(rb'"correlation":\s*(\d{1,18})\b')
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d+)')


@dataclass
class _Parts:
    """The text of a file, cut at each ``"ph":``."""

    head: bytes | None = None
    """Text before the first event."""
    events: list[bytes] = field(default_factory=list)
    """Text of each event that is parsed, after its ``"ph":``."""
    ranges: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """{text after ``"pid"`` that gives process and thread: texts of its ranges, after their ``"ph":``}."""
    kernels: list[bytes] = field(default_factory=list)
    """Text of each compute kernel after its ``"pid"``, up to its duration."""
    launches: list[bytes] = field(default_factory=list)
    """Text of each launch after its ``"pid"``."""
    categories: frozenset[str] = frozenset()
    """Categories of all events."""
    last: bytes = b""
    """Text of the last event and of the end of the file."""

    def sort(self, parts: Iterable[bytes], kinds: EventKinds) -> None:
        """Add the texts of events to the lists of their kinds."""
        skipped, of_range = EventKind.SKIPPED, EventKind.RANGE  # local names, because there are millions of events
        of_kernel, of_launch = EventKind.KERNEL, EventKind.LAUNCH
        for part in parts:
            begin, pid, behind = part.partition(_PID)
            kind = kinds[begin] if pid else EventKind.EVENT
            if kind is skipped:
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
        kind = kinds[begin]  # also for a skipped event, so that its category is known
        if pid and kind in (EventKind.LAUNCH, EventKind.KERNEL):
            text = '{"pid"' + behind.decode(errors="replace")
            with suppress(ValueError):
                _, end = json.JSONDecoder(strict=False).raw_decode(text)
                part = begin + text[1:end].encode() + b", "
                if _DESCRIBED not in part:
                    self.sort([part], kinds)


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
    """Compute kernels: ``pid`` (the GPU's number) as text, ``ts`` and ``dur`` in microseconds; null if damaged."""
    damaged: int = 0
    """Number of events, without ranges, that were omitted because they are not valid JSON."""
    ranges: Mapping[tuple[Any, Any], Sequence[bytes]] = field(default_factory=dict)
    """{(process, thread): text of the ranges of modules and autograd nodes that are not in `events`}."""
    launches: Sequence[bytes] = ()
    """Text after ``"pid"`` of each launch of a kernel."""
    categories: frozenset[str] = frozenset()
    """Categories of all events in the file: ``cpu_op``, ``kernel``, ``cuda_runtime``, …"""
    has_times: bool = True
    """False for an execution trace, whose events have an order but no times."""

    def launches_of(self, correlations: Collection[int]) -> dict[int, Event]:
        """Return {correlation: launch with that number}; damaged launches are omitted."""
        texts: dict[int, bytes] = {}
        for text in self.launches:
            match = _CORRELATION.search(text)
            if match and int(match[1]) in correlations:
                texts[int(match[1])] = text[: text.rfind(b"}")]  # the text after it is the beginning of the next event
        try:
            events = json.loads(_objects(texts.values()), strict=False)
        except ValueError:
            return {}
        return {number: event for number, event in zip(texts, events, strict=True) if "ts" in event}

    def ranges_on(self, threads: Collection[object]) -> tuple[list[Event], int]:
        """Return the ranges of these threads, and the number of damaged ones that are omitted.

        Args:
            threads: ``(pid, tid)`` of each thread.
        """
        ranges: list[Event] = []
        damaged = 0
        for thread in self.ranges.keys() & threads:
            texts = self.ranges[thread]
            try:
                events, damaged_here = _events(_texts(texts))
            except ValueError:
                events, damaged_here = [], len(texts)
            ranges += _complete(self.file, events)
            damaged += damaged_here
        return ranges, damaged


def read_profiler_file(file: Path) -> ProfilerFile:
    """Read one rank's trace.

    Raises:
        TraceFileError: the file is truncated, damaged or not a profiler trace; the message names a missing field.
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
    return ProfilerFile(
        file,
        events=tuple(_complete(file, events)),
        distributed=_distributed(head + last),
        base=int(base[1]) if base else 0,
        kernels=kernels,
        damaged=damaged,
        ranges=dict(zip(threads, parts.ranges.values(), strict=True)),
        launches=tuple(parts.launches),
        categories=parts.categories,
    )


def _cut(blocks: Iterable[bytes]) -> _Parts:
    """Cut the text of a file at each ``"ph":``, and sort the events by their kind."""
    parts, kinds = _Parts(), EventKinds()
    remainder = b""
    for block in blocks:
        *texts, remainder = (remainder + block).split(_MARK)
        if parts.head is None and texts:
            parts.head = texts.pop(0)
        parts.sort(texts, kinds)
    if parts.head is None:
        parts.head = remainder
    else:
        parts.last = remainder
        parts.sort_last(kinds)
    parts.categories = frozenset(kinds.categories)
    return parts


def _objects(texts: Collection[bytes]) -> bytes:
    """Return a JSON list of objects from their texts after ``"pid"``, which may end with a comma."""
    joined = b'},{"pid"'.join([text.rstrip(b", \t\r\n") for text in texts])
    return b'[{"pid"' + joined + b"}]" if texts else b"[]"


def _parsed(head: bytes, parts: Sequence[bytes], last: bytes) -> tuple[list[Event], int]:
    """Parse the events of `parts` and the last one; also return the number of damaged events, which are omitted.

    Raises:
        ValueError: the file is not written as torch writes it, or its end is missing.
    """
    if b'"traceEvents"' not in head or not _FIRST_BEGINS.search(head[-200:]) or not last.rstrip().endswith(b"}"):
        raise ValueError("not as torch writes it")
    texts = _texts(parts)
    ending = '{"ph":' + last.decode(errors="replace")
    final, end_of_final = json.JSONDecoder(strict=False).raw_decode(ending)
    if not ending[end_of_final:].lstrip().startswith("]"):
        raise ValueError("the list of events has no end")
    events, damaged = _events(texts)
    if any(event.get("ph") == "X" and not _has_torchs_order(event) for event in events):
        raise ValueError("not as torch writes it")
    if _is_kept(final):
        events.append(final)
    return events, damaged


def _has_torchs_order(event: Event) -> bool:
    """Return True if the first keys are ``ph``, ``cat`` and ``name``, or ``ph`` and ``name``."""
    first_keys = list(islice(event, 3))
    return first_keys[:2] == ["ph", "name"] or first_keys == ["ph", "cat", "name"]


def _texts(parts: Iterable[bytes]) -> list[str]:
    """Return the JSON of each event, from its text after ``"ph":``.

    Raises:
        ValueError: an event is followed by something other than the next event.
    """
    texts = []
    for part in parts:
        end = part.rfind(b"}") + 1
        if not _NEXT_BEGINS.match(part, end):
            raise ValueError("not as torch writes it")
        texts.append('{"ph":' + part[:end].decode(errors="replace"))
    return texts


def _events(texts: Sequence[str]) -> tuple[list[Event], int]:
    """Parse events; also return the number of those that are not valid JSON, which are omitted.

    They are parsed together, and one by one only if this fails.

    Raises:
        ValueError: most of them are not valid JSON.
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
    """Read a trace by parsing the whole file.

    Raises:
        TraceFileError: the file is truncated, damaged or not a profiler trace.
    """
    try:
        content = _content(content_of(file).decode("utf-8-sig", errors="replace"))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    if isinstance(content, list):
        content = {"traceEvents": content}
    if not isinstance(content, dict) or content.get("traceEvents") is None:
        raise TraceFileError(f"{file} has no traceEvents: it is not a trace of torch's profiler")
    events = [event for event in content["traceEvents"] if isinstance(event, dict)]
    kernels = [
        (str(event.get("pid")), _number(event.get("ts")), _number(event.get("dur")))
        for event in events
        if is_kernel(str(event.get("cat", ""))) and not _is_kept(event)
    ]
    launches = [event for event in events if is_launch(str(event.get("cat", "")), str(event.get("name", "")))]
    return ProfilerFile(
        file,
        events=tuple(_complete(file, filter(_is_kept, events))),
        distributed=content.get("distributedInfo") or {},
        base=int(content.get("baseTimeNanoseconds") or 0),
        kernels=pl.DataFrame(kernels, schema=_KERNELS, orient="row"),
        launches=tuple(map(_text_after_pid, launches)),
        categories=frozenset(str(event["cat"]) for event in events if event.get("ph") == "X" and "cat" in event),
    )


def _text_after_pid(event: Event) -> bytes:
    """Return the text of a launch after its ``"pid"``, as `ProfilerFile.launches` has it."""
    arguments = event["args"] if isinstance(event.get("args"), dict) else {}
    kept = {"tid": event.get("tid"), "ts": event.get("ts"), "args": {"correlation": arguments.get("correlation")}}
    return f": {json.dumps(event.get('pid'))}, {json.dumps(kept)[1:]}".encode()


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None


def _content(text: str) -> Any:
    """Parse JSON, with null for the values that `_NO_VALUE` matches.

    Raises:
        ValueError: the text is not JSON.
    """
    try:
        return json.loads(text, strict=False)
    except ValueError:
        if _NO_VALUE.search(text) is None:
            raise
    return json.loads(_NO_VALUE.sub(r"\1null", text), strict=False)


def _is_kept(event: Event) -> bool:
    """Return True if an event describes a collective, or is needed by its category and name."""
    has_collective = isinstance(event.get("args"), dict) and "Collective name" in event["args"]
    return has_collective or is_kept(str(event.get("cat", "")), str(event.get("name", "")))


def _complete(file: Path, events: Iterable[Event]) -> Iterator[Event]:
    """Yield the complete events (``"ph": "X"``).

    Raises:
        TraceFileError: one of them has no name or start, or a null in place of its duration.
    """
    for event in events:
        if event.get("ph") != "X":
            continue
        for name in ("name", "ts", "dur"):
            if event.get(name, "" if name == "dur" else None) is None:
                raise TraceFileError(f"{file} has an event without {name}: it is not a trace of torch's profiler")
        yield event


def _distributed(outside: bytes) -> dict[str, Any]:
    """Return ``distributedInfo`` from the text of a file outside its events; empty if it is missing or damaged."""
    at = outside.find(b'"distributedInfo"')
    opening = outside.find(b"{", at) if at >= 0 else -1
    if opening < 0:
        return {}
    try:
        text = _NO_VALUE.sub(r"\1null", outside[opening:].decode(errors="replace"))
        content, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}
