"""Traces of torch's profiler (Kineto), read as a stream: only the events that say something of communication are kept.

A trace is JSON, maybe gzipped: an object with ``traceEvents``, or only the list of events. Most of its events are ops and
kernels of the computation. They are told from the others by their text alone, and are not parsed: a file is cut
at each ``"ph":``, the first key of each event as torch writes it. A file of another form is parsed whole.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from dsexplore.errors import TraceFileError

Event = dict[str, Any]

_KEPT = tuple(
    part.encode()
    for part in (
        *("ccl", "c10d::", "gloo:", "record_param_comms", "Collective name", "nn.Module: ", "_annotation"),
        *("ProfilerStep", "evaluate_function", "FSDP::", "all_reduce", "all_gather", "reduce_scatter", "allreduce"),
        *("allgather", "alltoall", "all_to_all", "AllReduce", "AllGather", "nvshmem", "deep_ep", "multimem"),
    )
)
"""An event that has none of these in its text says nothing of communication."""
_MARK = b'"ph":'
_BLOCK = 1 << 23
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d+)')


@dataclass(frozen=True)
class ProfilerFile:
    """What a profiler trace says of communication."""

    file: Path
    events: tuple[Event, ...]
    """Complete events (``"ph": "X"``), their times in microseconds since `base`."""
    distributed: dict[str, Any]
    """``distributedInfo``: rank, world size and groups; empty in files of earlier versions."""
    base: int
    """Nanoseconds since the epoch that every time counts from."""


def read_profiler_file(file: Path) -> ProfilerFile:
    """Read one rank's trace.

    Raises:
        TraceFileError: the file is cut off, damaged or no profiler trace; the message names a field that is missing.
    """
    try:
        with _opened(file) as stream:
            head, parts, tail = _cut(stream)
    except (OSError, EOFError, gzip.BadGzipFile) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    if b'"traceEvents"' not in head and not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"["):
        return _parsed_whole(file)
    kept = [part for part in parts if any(word in part for word in _KEPT)]
    try:
        events = json.loads(b"[" + b",".join(_events(kept)) + b"]")
    except ValueError:
        return _parsed_whole(file)
    if not tail.rstrip().endswith((b"}", b"]")):
        raise TraceFileError(f"{file} is cut off after {len(parts):,} events: copy or record it again")
    ends = head + tail
    base = _BASE.search(ends)
    return ProfilerFile(file, tuple(_complete(file, events)), _distributed(ends), int(base[1]) if base else 0)


def _opened(file: Path) -> IO[bytes]:
    with file.open("rb") as opened:
        is_packed = opened.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(file)) if is_packed else file.open("rb")


def _cut(stream: IO[bytes]) -> tuple[bytes, list[bytes], bytes]:
    """What stands before the first event, each event from behind its ``"ph":`` on, and the end of the file."""
    parts: list[bytes] = []
    rest = b""
    while block := stream.read(_BLOCK):
        *whole, rest = (rest + block).split(_MARK)
        parts += whole
        if parts:
            rest = _MARK + rest  # a mark that stands across two blocks is whole in the next turn
            parts.append(b"") if False else None
    head, *events = [*parts, rest]
    return head, events, rest[-(1 << 16) :]


def _events(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Each event as JSON of its own: without the comma and the brace that begin the next."""
    for part in parts:
        end = part.rfind(b"}")
        following = part.rfind(b"{")
        if following > end:
            end = part.rfind(b"}", 0, following)
        yield b'{"ph":' + part[: end + 1]


def _parsed_whole(file: Path) -> ProfilerFile:
    try:
        with _opened(file) as stream:
            content = json.load(stream)
    except (OSError, EOFError, ValueError, gzip.BadGzipFile) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    if isinstance(content, list):
        content = {"traceEvents": content}
    if not isinstance(content, dict) or "traceEvents" not in content:
        raise TraceFileError(f"{file} has no traceEvents: it is no trace of torch's profiler")
    events = [event for event in content["traceEvents"] if isinstance(event, dict)]
    distributed = content.get("distributedInfo") or {}
    base = int(content.get("baseTimeNanoseconds") or 0)
    return ProfilerFile(file, tuple(_complete(file, events)), distributed, base)


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
        found, _ = json.JSONDecoder().raw_decode(ends[opening:].decode(errors="replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
