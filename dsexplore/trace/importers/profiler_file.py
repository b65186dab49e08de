"""Traces of torch's profiler (Kineto), read as a stream: only the events that say something of communication are kept.

A trace is JSON, maybe gzipped: an object with ``traceEvents``, or only the list of events. Most of its events are ops
and kernels of the computation: a file is cut at each ``"ph":``, the first key of each event as torch writes it, and an
event is parsed only if its name is one that is needed. A file of another form is parsed whole.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

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
_NAMES = (
    *("nn.Module: ", "record_param_comms", "c10d::", "gloo:", "nccl:", "autograd::engine::evaluate_function"),
    *("ProfilerStep#", "Optimizer."),  # whatever their category: old files have them among the ops
)
_BEGIN = re.compile(rb'\s*"[^"]*"(?:,\s*"cat":\s*"([^"]*)")?,\s*"name":\s*"((?:[^"\\]|\\.)*)"')
_MARK = b'"ph":'
_DESCRIBED = b'"Collective name"'
"""Stands in an event of a collective, also of a kernel whose name says nothing."""
_BLOCK = 1 << 23
_NOT_A_NUMBER = re.compile(r"(:\s*)-?(?:inf|nan)\b")
_BASE = re.compile(rb'"baseTimeNanoseconds"\s*:\s*"?(\d+)')


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
    damaged: int = 0
    """How many events are no JSON, and are left out."""


def read_profiler_file(file: Path) -> ProfilerFile:
    """Read one rank's trace.

    Raises:
        TraceFileError: the file is cut off, damaged or no profiler trace; the message names a field that is missing.
    """
    try:
        with _opened(file) as stream:
            head, kept, last = _cut(stream)
        events, damaged = _parsed(head, kept, last)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceFileError(f"{file} cannot be read ({error}): copy or record it again") from error
    except ValueError:
        return _parsed_whole(file)
    ends = head + last
    base = _BASE.search(ends)
    when = int(base[1]) if base else 0
    return ProfilerFile(file, tuple(_complete(file, events)), _distributed(ends), when, damaged)


def _opened(file: Path) -> IO[bytes]:
    with file.open("rb") as opened:
        is_packed = opened.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(file)) if is_packed else file.open("rb")


def _cut(stream: IO[bytes]) -> tuple[bytes, list[bytes], bytes]:
    """The text before the first event; the kept events, each from behind its ``"ph":`` on; and the last one."""
    head: bytes | None = None
    kept: list[bytes] = []
    decided: dict[bytes, bytes | None] = {}
    rest = b""
    while block := stream.read(_BLOCK):
        *whole, rest = (rest + block).split(_MARK)
        if head is None and whole:
            head = whole.pop(0)
        kept += [part for part in whole if _says_something(part, decided)]
    return (rest, [], b"") if head is None else (head, kept, rest)


def _says_something(part: bytes, decided: dict[bytes, bytes | None]) -> bool:
    """Whether an event says something of communication, or where in the program it was.

    Category and name stand before ``pid`` as torch writes them, and few of them are all: each is looked at once.
    """
    end = part.find(b'"pid"')
    if end < 0:
        return True
    key = part[:end]
    if key not in decided:
        decided[key] = _needed(part)
    needed = decided[key]
    return needed is not None and needed in part


def _needed(part: bytes) -> bytes | None:
    """The text that an event of that category and name must hold to be kept; empty for none, None if it is not kept."""
    found = _BEGIN.match(part)
    if found is None:
        return b""
    category = (found[1] or b"").decode()
    if is_kept(category, found[2].decode(errors="replace")):
        return b""
    return _DESCRIBED if is_kernel(category) else None


def is_kept(category: str, name: str) -> bool:
    """Whether an event of that category and name says something of communication, or where in the program it was."""
    if name.startswith(_NAMES) or category.endswith("user_annotation"):
        return True
    return is_kernel(category) and is_communication(name)


def is_kernel(category: str) -> bool:
    """Whether events of that category ran on a GPU."""
    return category.lower() == "kernel"


def is_communication(name: str) -> bool:
    """Whether a kernel of that name communicates, as far as the name says."""
    return _COMMUNICATION.search(name) is not None and _GENERATED.match(name) is None


def _parsed(head: bytes, kept: Sequence[bytes], last: bytes) -> tuple[list[Event], int]:
    """The kept events and the last one; and how many of them are damaged, and left out.

    Raises:
        ValueError: the file is not written as torch writes it, or its end is missing.
    """
    if b'"traceEvents"' not in head or not _squeezed(head).endswith(b"[{") or not last.rstrip().endswith(b"}"):
        raise ValueError("not as torch writes it")
    texts = []
    for part in kept:
        end = part.rfind(b"}") + 1
        if _squeezed(part[end:]) != b",{":
            raise ValueError("an event whose first key is not ph")
        texts.append('{"ph":' + part[:end].decode(errors="replace"))
    ending = '{"ph":' + last.decode(errors="replace")
    final, end_of_final = json.JSONDecoder(strict=False).raw_decode(ending)
    if not ending[end_of_final:].lstrip().startswith("]"):
        raise ValueError("the list of events has no end")
    events, damaged = _events(texts)
    return [*events, final] if _is_kept(final) else events, damaged


def _events(texts: Sequence[str]) -> tuple[list[Event], int]:
    """The events of these texts, and how many are no JSON: only where one is not is each parsed by itself.

    Kineto writes ``inf`` and ``nan`` for what it divides by zero, such as the blocks per multiprocessor of a device
    that it does not know.

    Raises:
        ValueError: most are no JSON.
    """
    try:
        return json.loads(f"[{','.join(texts)}]", strict=False), 0
    except ValueError:
        events = []
    for text in texts:
        with suppress(ValueError):
            events.append(json.loads(_NOT_A_NUMBER.sub(r"\1null", text), strict=False))
    damaged = len(texts) - len(events)
    if damaged > len(events):
        raise ValueError(f"{damaged:,} of {len(texts):,} events are damaged")
    return events, damaged


def _squeezed(text: bytes) -> bytes:
    return text[-64:].translate(None, b" \t\r\n")


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
    events = [event for event in content["traceEvents"] if isinstance(event, dict) and _is_kept(event)]
    distributed = content.get("distributedInfo") or {}
    base = int(content.get("baseTimeNanoseconds") or 0)
    return ProfilerFile(file, tuple(_complete(file, events)), distributed, base)


def _content(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        if _NOT_A_NUMBER.search(text) is None:
            raise
    return json.loads(_NOT_A_NUMBER.sub(r"\1null", text), strict=False)


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
        found, _ = json.JSONDecoder().raw_decode(ends[opening:].decode(errors="replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
