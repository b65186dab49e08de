"""Dumps of torch's flight recorder, formats 2.3 to 2.10: what one rank had issued when it was asked.

A dump is JSON or a pickle of plain data, each maybe gzipped:

| key | value |
|---|---|
| ``entries`` | a ring buffer of the last collectives, in the order of issue; empty where nothing was pending |
| ``pg_config`` | by group name: its description, and its ranks as text, ``"[0, 1]"`` |
| ``pg_status`` | by a number of the group in this process: its last enqueued, started and completed sequence number |
| ``nccl_version``, since 2.10 ``comm_lib_version`` | of the communication library |

`recorder_entry` reads the entries, and `coalesced_calls` what NCCL starts together.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsexplore.errors import TraceFileError
from dsexplore.trace.importers.coalesced_calls import is_of_active, with_states_of_calls
from dsexplore.trace.importers.plain_pickle import load_plain
from dsexplore.trace.importers.recorder_entry import LIBRARIES_WITHOUT_ENDS, MissingField, RecorderEntry, entries_of


@dataclass(frozen=True)
class RecorderDump:
    """The content of one rank's flight recorder."""

    file: Path
    rank: int
    version: str
    library: str
    """Version of the communication library."""
    entries: tuple[RecorderEntry, ...]
    groups: Mapping[str, tuple[str, tuple[int, ...]]]
    """By name: description and global ranks, which are empty where they are not known."""
    status: Mapping[int, tuple[int, int, int]]
    """By `RecorderEntry.group_number`: the last enqueued, started and completed sequence number, −1 for none."""
    is_of_active: bool = False
    """Whether it was asked for what is active alone: what has ended is left out."""
    note: str = ""
    """Why there is nothing in it, where the file itself is empty."""


def is_recorder_dump(content: Any) -> bool:
    """Return True if `content` is that of a flight-recorder dump."""
    return isinstance(content, dict) and (
        "pg_config" in content or "pg_status" in content or ("entries" in content and "version" in content)
    )


def read_content(file: Path) -> Any:
    """Read a JSON file or a pickle of plain data, gzipped or not; None if it is empty.

    Raises:
        TraceFileError: the file is neither, or incomplete.
    """
    data = file.read_bytes()
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        if not data.strip():
            return None
        if data[:1] == b"\x80":
            return load_plain(data)
        return _from_json(data)
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise TraceFileError(
            f"{file} cannot be read ({reason}): give a dump of torch's flight recorder, JSON or pickle, as written"
        ) from error


def _from_json(data: bytes) -> Any:
    """Parse JSON, each distinct stack once: stacks are most of a dump, and few of them differ.

    If that fails, as with a bracket in a file's name, everything is parsed as usual.
    """
    stacks: dict[bytes, int] = {}
    shorter = _STACK.sub(lambda found: b'"frames":%d' % stacks.setdefault(found[1], len(stacks)), data)
    try:
        frames = [json.loads(stack) for stack in stacks]
        content = json.loads(shorter)
        for entry in content["entries"] if stacks else ():
            if isinstance(entry.get("frames"), int):
                entry["frames"] = frames[entry["frames"]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return json.loads(data)
    return content


_STACK = re.compile(rb'"frames":\s*(\[[^\]]*\])')


def dump_of(file: Path, content: Any, rank: int) -> RecorderDump:
    """Build one rank's dump from the content of its file.

    Raises:
        TraceFileError: a field is missing or invalid; the message names it.
    """
    if content is None:
        return RecorderDump(file, rank, "", "", (), {}, {}, note=f"{file.name} is empty")
    try:
        entries = entries_of(content)
        entries.sort(key=lambda entry: entry.record)
        status = {int(number): _status(one) for number, one in (content.get("pg_status") or {}).items()}
        return RecorderDump(
            file,
            rank,
            version=str(content.get("version", "")),
            library=str(content.get("comm_lib_version") or content.get("nccl_version") or ""),
            entries=tuple(with_states_of_calls(entries, _ended_messages(entries, status))),
            groups=groups_of(content),
            status=status,
            is_of_active=is_of_active(entries),
        )
    except MissingField as missing:
        raise TraceFileError(f"{file} has no {missing}: it is no whole dump of torch's flight recorder") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise TraceFileError(f"{file} is no dump of torch's flight recorder ({error}): dump it again") from error


def groups_of(content: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return {group name: (description, ranks)} of a dump; gloo's entry without name and ranks is skipped.

    Raises:
        TypeError, ValueError: ``pg_config`` lists no groups.
    """
    listed = content.get("pg_config") or {}
    if not isinstance(listed, Mapping):
        raise TypeError(f"pg_config is {listed!r}")
    groups = {}
    for key, group in listed.items():
        if isinstance(group, Mapping):
            name = str(group.get("name", key))
            described = str(group.get("desc", "")), numbers(group.get("ranks", ""))
        else:  # before format 2.1: only the ranks
            name, described = str(key), ("", numbers(group))
        if name or described[1]:
            groups[name] = described
    return groups


def numbers(ranks: Any) -> tuple[int, ...]:
    """Return ranks from a list, or from text such as ``"[0, 1]"``."""
    if isinstance(ranks, str):
        return tuple(int(number) for number in re.findall(r"\d+", ranks))
    return tuple(int(rank) for rank in ranks or ())


def _status(one: Mapping[str, Any]) -> tuple[int, int, int]:
    enqueued, started, completed = (
        int(one.get(f"last_{what}_collective", -1)) for what in ("enqueued", "started", "completed")
    )
    return enqueued, started, completed


def _ended_messages(entries: Sequence[RecorderEntry], status: Mapping[int, tuple[int, int, int]]) -> dict[str, int]:
    """Return {group: number of its last completed message} for groups that have only sent messages.

    A group has one count of what completed, of collectives and messages alike.
    """
    by_group: dict[str, list[RecorderEntry]] = defaultdict(list)
    for entry in entries:
        by_group[entry.group].append(entry)
    found = {}
    for group, own in by_group.items():
        number = own[0].group_number
        is_of_nccl = not own[0].raw_op.startswith(LIBRARIES_WITHOUT_ENDS)
        if number is not None and number in status and is_of_nccl and all(entry.numbers[0] == 0 for entry in own):
            found[group] = status[number][2]
    return found
