"""Traces of torch's profiler (Kineto), read as a stream; only events related to communication are kept.

A trace is JSON, optionally gzipped: an object with ``traceEvents``, or only the list of events. Most events are ops and
kernels of the computation. So a file is split at each ``"ph":``, the first key of each event as torch writes it, and an
event is parsed only if its name is needed. Of compute kernels only device and time are parsed, and of the ranges of
modules and autograd nodes only those of the requested threads. A file of another form is parsed whole.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import IO, Any, cast

import polars as pl

from dsexplore.errors import TraceFileError

Event = dict[str, Any]

_COMMUNICATION = re.compile(
    r"[nrxhmsu]ccl(?!ude)|oneccl|nvshmem|deep_?ep|multimem|cross_device_reduce|quickreduce|shot_all|userbuffers"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all",
    re.IGNORECASE,
)
"""Found in the names of kernels that communicate, those of libraries that nobody described among them."""
_GENERATED = re.compile(r"triton_[a-z]+_fused_")
"""Begins the name of a kernel of torch.compile's. The rest names the ops that it works on the results of, such as
``all_gather_into_tensor``, and the kernel only computes."""
_RANGES = ("nn.Module: ", "autograd::engine::evaluate_function")
"""Begin the names of ranges on the CPU of which a file has very many."""
_NAMES = (
    *("record_param_comms", "c10d::", "gloo:", "nccl:"),
    *("ProfilerStep#", "Optimizer."),  # whatever their category: old files have them among the ops
)
_BEGIN = re.compile(rb'\s*"[^"]*"(?:,\s*"cat":\s*"([^"]*)")?,\s*"name":\s*"((?:[^"\\]|\\.)*)"')
_MARK = b'"ph":'
_PID = b'"pid"'
_NEXT = rb'\{\s*(?:"name":\s*"[^"]*",\s*)?$'
_FIRST_BEGINS = re.compile(rb"\[\s*" + _NEXT)
_NEXT_BEGINS = re.compile(rb"\s*,\s*" + _NEXT)
"""What stands before a ``"ph":``: names and marks, which Kineto writes among the events, may have their name first."""
_DESCRIBED = b'"Collective name"'
"""Stands in an event of a collective, also of a kernel whose name says nothing."""
_BLOCK = 1 << 23
_KERNELS = pl.Schema({"pid": pl.String, "ts": pl.Float64, "dur": pl.Float64})
_NO_VALUE = re.compile(r'(":\s*)(?:-?(?:inf|nan)\b|(?=[,}\]]))')
"""A key without a value that JSON has: Kineto writes ``inf`` and ``nan`` where it divides by zero, and nothing at all
for the description of a group that has none, ``"Process Group Description": ,``."""
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d+)')


class _Kind(Enum):
    """How an event is read, by its category and name."""

    NOTHING = 0
    EVENT = 1
    RANGE = 2
    KERNEL = 3
    """A communication where it is described as one, else a kernel that computes."""


class _Kinds(dict[bytes, _Kind]):
    """The kind of each event, by the text before its ``pid``, which is category and name as torch writes them.

    Few of these texts differ, and each is examined once.
    """

    def __missing__(self, begin: bytes) -> _Kind:
        found = _BEGIN.match(begin)
        kind = _kind((found[1] or b"").decode(), found[2].decode(errors="replace")) if found else _Kind.EVENT
        self[begin] = kind
        return kind


def _kind(category: str, name: str) -> _Kind:
    if name.startswith(_RANGES):
        return _Kind.RANGE
    if is_kept(category, name):
        return _Kind.EVENT
    return _Kind.KERNEL if is_kernel(category) else _Kind.NOTHING


@dataclass
class _Parts:
    """The text of a file, cut at each ``"ph":``."""

    head: bytes | None = None
    """Before the first event."""
    events: list[bytes] = field(default_factory=list)
    """From behind the ``"ph":`` on, as the ranges are."""
    ranges: dict[bytes, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    """By the text behind ``"pid"`` that says process and thread."""
    kernels: list[bytes] = field(default_factory=list)
    """Of kernels that compute: the text behind ``"pid"`` that says process, thread, begin and duration."""
    last: bytes = b""
    """The last event, and what follows."""

    def sort(self, parts: Iterable[bytes], kinds: _Kinds) -> None:
        """Add events by their kind."""
        nothing, of_range, of_kernel = _Kind.NOTHING, _Kind.RANGE, _Kind.KERNEL  # looked up once: there are millions
        for part in parts:
            begin, pid, behind = part.partition(_PID)
            kind = kinds[begin] if pid else _Kind.EVENT
            if kind is nothing:
                continue
            if kind is of_range and b'"ts"' in behind:
                self.ranges[behind.partition(b'"ts"')[0]].append(part)
            elif kind is of_kernel and _DESCRIBED not in part:
                self.kernels.append(behind.partition(b'"args"')[0])
            else:
                self.events.append(part)


@dataclass(frozen=True)
class ProfilerFile:
    """The events of a profiler trace that concern communication."""

    file: Path
    events: tuple[Event, ...]
    """Complete events (``"ph": "X"``), their times in microseconds since `base`."""
    distributed: dict[str, Any]
    """``distributedInfo``: rank, world size and groups; empty in files of earlier versions."""
    base: int
    """Nanoseconds since the epoch that every time counts from."""
    kernels: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_KERNELS))
    """The kernels that compute: ``pid`` (of a GPU: its number) as text, ``ts`` and ``dur`` of each; null where the file
    has no number."""
    damaged: int = 0
    """How many events are no JSON, and are left out; without those among the ranges."""
    ranges: Mapping[tuple[Any, Any], Sequence[bytes]] = field(default_factory=dict)
    """By process and thread: the text of modules and autograd's nodes, where these are not among `events`."""

    def ranges_on(self, threads: Collection[object]) -> tuple[list[Event], int]:
        """Return the ranges of these threads, and how many were damaged and left out.

        Args:
            threads: ``(pid, tid)`` of each.
        """
        found: list[Event] = []
        damaged = 0
        for thread in self.ranges.keys() & threads:
            texts = self.ranges[thread]
            try:
                events, without = _events(_texts(texts))
            except ValueError:
                events, without = [], len(texts)
            found += _complete(self.file, events)
            damaged += without
        return found, damaged


def read_profiler_file(file: Path) -> ProfilerFile:
    """Read one rank's trace.

    Raises:
        TraceFileError: the file is truncated, damaged or no profiler trace; the message names a missing field.
    """
    try:
        with _opened(file) as stream:
            parts = _cut(stream)
        head, last = parts.head or b"", parts.last
        events, damaged = _parsed(head, parts.events, last)
        kernels = pl.read_json(_objects(parts.kernels), schema=_KERNELS)
        threads = [(one.get("pid"), one.get("tid")) for one in json.loads(_objects(parts.ranges))]
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    except (ValueError, pl.exceptions.ComputeError):
        return _parsed_whole(file)
    base = _BASE.search(head + last)
    when = int(base[1]) if base else 0
    ranges = dict(zip(threads, parts.ranges.values(), strict=True))
    complete = tuple(_complete(file, events))
    return ProfilerFile(file, complete, _distributed(head + last), when, kernels, damaged, ranges)


def _opened(file: Path) -> IO[bytes]:
    with file.open("rb") as opened:
        is_packed = opened.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(file)) if is_packed else file.open("rb")


def _cut(stream: IO[bytes]) -> _Parts:
    found, kinds = _Parts(), _Kinds()
    rest = b""
    while block := stream.read(_BLOCK):
        *whole, rest = (rest + block).split(_MARK)
        if found.head is None and whole:
            found.head = whole.pop(0)
        found.sort(whole, kinds)
    if found.head is None:
        found.head = rest
    else:
        found.last = rest
    return found


def _objects(texts: Collection[bytes]) -> bytes:
    """Return a JSON list of the objects in `texts`, each starting after ``"pid"``, with or without a trailing comma."""
    each = b'},{"pid"'.join([text.rstrip(b", \t\r\n") for text in texts])
    return b'[{"pid"' + each + b"}]" if texts else b"[]"


def is_kept(category: str, name: str) -> bool:
    """Return True if an event of that category and name is about communication, or is a range of the program."""
    if name.startswith((*_NAMES, *_RANGES)) or category.endswith("user_annotation"):
        return True
    return is_kernel(category) and is_communication(name)


def is_kernel(category: str) -> bool:
    """Return True if events of that category ran on a GPU."""
    return category.lower() == "kernel"


def is_communication(name: str) -> bool:
    """Return True if a kernel communicates, according to its name."""
    return _COMMUNICATION.search(name) is not None and _GENERATED.match(name) is None


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
    if any(event.get("ph") == "X" and "name" not in event for event in events):
        raise ValueError("an event whose name is before its ph")
    return [*events, final] if _is_kept(final) else events, damaged


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
        with _opened(file) as stream:
            text = stream.read().decode("utf-8-sig", errors="replace")
        content = _content(text)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    if isinstance(content, list):
        content = {"traceEvents": content}
    if not isinstance(content, dict) or "traceEvents" not in content:
        raise TraceFileError(f"{file} has no traceEvents: it is no trace of torch's profiler")
    every = [event for event in content["traceEvents"] if isinstance(event, dict)]
    events = [event for event in every if _is_kept(event)]
    computing = [event for event in every if is_kernel(str(event.get("cat", ""))) and not _is_kept(event)]
    rows = [(str(event.get("pid")), _number(event.get("ts")), _number(event.get("dur"))) for event in computing]
    kernels = pl.DataFrame(rows, schema=_KERNELS, orient="row")
    distributed = content.get("distributedInfo") or {}
    base = int(content.get("baseTimeNanoseconds") or 0)
    return ProfilerFile(file, tuple(_complete(file, events)), distributed, base, kernels)


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
        for name in ("name", "ts"):
            if name not in event:
                raise TraceFileError(f"{file} has an event without {name}: it is no trace of torch's profiler")
        yield event


def _distributed(ends: bytes) -> dict[str, Any]:
    at = ends.find(b'"distributedInfo"')
    opening = ends.find(b"{", at) if at >= 0 else -1
    if opening < 0:
        return {}
    try:
        text = _NO_VALUE.sub(r"\1null", ends[opening:].decode(errors="replace"))
        found, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
