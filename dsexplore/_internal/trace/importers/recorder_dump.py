"""Read dumps of torch's flight recorder, formats 2.3 to 2.10: the last collectives that one rank issued.

A dump is JSON or a pickle of plain data, either of them gzipped or not:

| key | value |
|---|---|
| ``entries`` | a ring buffer of the last collectives, in the order of issue; empty if nothing was pending |
| ``pg_config`` | by group name: its description, and its ranks as text, ``"[0, 1]"`` |
| ``pg_status`` | by the group's number in this process: its last enqueued, started and completed sequence number |
| ``nccl_version``, since 2.10 ``comm_lib_version`` | version of the communication library |

`recorder_entry` reads the entries, and `coalesced_entries` joins those that NCCL starts together.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dsexplore._internal.errors import TraceFileError
from dsexplore._internal.trace.importers.coalesced_entries import is_of_active, with_states_of_calls
from dsexplore._internal.trace.importers.packed import content_of
from dsexplore._internal.trace.importers.plain_pickle import load_plain
from dsexplore._internal.trace.importers.recorder_entry import (
    LIBRARIES_WITHOUT_ENDS,
    MissingField,
    RecorderEntry,
    entries_of,
)
from dsexplore._internal.trace.limits import checked_ranks
from dsexplore._internal.units import format_count

_MOST_NAMED = 4
_SPARSE = 1_000
"""Omitted numbers per recorded one from which the numbers are not taken for numbers of calls."""


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
    """{group name: (description, global ranks)}; the ranks are empty if unknown."""
    status: Mapping[int, tuple[int, int, int]]
    """{`RecorderEntry.group_number`: last enqueued, started and completed sequence number}; −1 if there is none."""
    is_of_active: bool = False
    """True if only active entries were requested, so that completed ones are missing."""
    note: str = ""
    """Note on why the dump has no content; empty if it has."""

    @cached_property
    def unwritten(self) -> tuple[int, ...]:
        """Numbers of gloo's calls that are missing between the recorded ones.

        Gloo's recorder counts sends, receives and monitored barriers (``op_id``) but does not write them, at least up
        to torch 2.15. Such a call after the last recorded one cannot be noticed.
        """
        if self.is_of_active:
            return ()
        numbers_of_group: dict[str, set[int]] = defaultdict(set)
        for entry in self.entries:
            if entry.raw_op.startswith("gloo") and entry.call_number is not None:
                numbers_of_group[entry.group].add(entry.call_number)
        missing: list[int] = []
        for present in numbers_of_group.values():
            if _SPARSE * len(present) > max(present) - min(present):
                missing += set(range(min(present), max(present))) - present
        return tuple(sorted(missing))

    @property
    def note_on_unwritten(self) -> str:
        """Sentence about `unwritten`; empty if no call is missing."""
        missing = self.unwritten
        if not missing:
            return ""
        shown = ", ".join(map(str, missing[:_MOST_NAMED])) + (", …" if len(missing) > _MOST_NAMED else "")
        return (
            f"rank {self.rank}: {format_count(len(missing), 'call')} without a record (op_id {shown}): "
            "gloo's recorder writes no send, recv and monitored_barrier"
        )


def is_recorder_dump(content: Any) -> bool:
    """Return True if `content` has the keys of a flight-recorder dump."""
    return isinstance(content, dict) and (
        "pg_config" in content or "pg_status" in content or ("entries" in content and "version" in content)
    )


def read_content(file: Path) -> Any:
    """Read a JSON file or a pickle of plain data, gzipped or not; None if it is empty.

    Raises:
        TraceFileError: the file is neither, or it is incomplete.
    """
    try:
        data = content_of(file)
        if not data or data.isspace():
            return None
        if data[:1] == b"\x80":
            return load_plain(data)
        content = _parse_json(data)
        if _SURROGATE.search(data):
            json.dumps(content, ensure_ascii=False).encode()  # raises if the other surrogate of a pair is missing
        return content
    except MemoryError:
        raise
    except Exception as error:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        raise TraceFileError(
            f"{file} cannot be read ({reason}): give a dump of torch's flight recorder, JSON or pickle, as written"
        ) from error


def _parse_json(data: bytes) -> Any:
    """Parse JSON, and each distinct stack only once, because stacks are most of a dump and few of them differ.

    Each stack is replaced by its number before parsing. If this fails, because a file's name has a bracket, the whole
    text is parsed.
    """
    stacks: dict[bytes, int] = {}
    numbered = _STACK.sub(lambda match: b'"frames":%d' % stacks.setdefault(match[1], len(stacks)), data)
    if not stacks:
        return json.loads(data)
    try:
        frames = [json.loads(stack) for stack in stacks]
        content = json.loads(numbered)
        for entry in content["entries"]:
            if isinstance(entry.get("frames"), int):
                entry["frames"] = frames[entry["frames"]]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return json.loads(data)
    return content


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
"""Matches the beginning of an escaped UTF-16 surrogate, which is half of a character."""
_STACK = re.compile(rb'"frames":\s*(\[[^\]]*\])')


def dump_of(file: Path, content: Any, rank: int) -> RecorderDump:
    """Build one rank's dump from the content of its file.

    Raises:
        TraceFileError: a field is missing or invalid; the message names it.
    """
    if content is None:
        return RecorderDump(
            file, rank, version="", library="", entries=(), groups={}, status={}, note=f"{file.name} is empty"
        )
    try:
        _check_fields(content)
        entries = entries_of(content)
        entries.sort(key=lambda entry: entry.record)
        status = {int(number): _status(number, of_group) for number, of_group in content.get("pg_status", {}).items()}
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
        raise TraceFileError(f"{file} has no {missing}: it is not a whole dump of torch's flight recorder") from None
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise TraceFileError(f"{file} is not a dump of torch's flight recorder ({reason}): dump it again") from error


_FIELDS = {"version": (str,), "pg_config": (Mapping,), "pg_status": (Mapping,), "entries": (list, tuple)}
"""{field of a dump: its types}; torch may leave a field empty or out, but never writes null."""


def _check_fields(content: Mapping[str, Any]) -> None:
    """Check that no field is null or of another type, which would be damage.

    Raises:
        MissingField: fields are null; the text names all of them.
        TypeError: a field is of another type.
    """
    missing = [name for name in _FIELDS if name in content and content[name] is None]
    if missing:
        raise MissingField(", ".join(missing))
    for name, kinds in _FIELDS.items():
        if name in content and not isinstance(content[name], kinds):
            raise TypeError(f"{name} is {reprlib.repr(content[name])}")


def groups_of(content: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return {group name: (description, ranks)} of a dump, without gloo's group that has neither name nor ranks.

    Raises:
        TypeError, ValueError: ``pg_config`` is not a list of groups.
    """
    listed = content.get("pg_config") or {}
    if not isinstance(listed, Mapping):
        raise TypeError(f"pg_config is {reprlib.repr(listed)}")
    groups = {}
    for key, group in listed.items():
        if isinstance(group, Mapping):
            name = str(key if group.get("name") is None else group["name"])
            description, ranks = str(group.get("desc") or ""), parse_ranks(group.get("ranks", ""))
        else:  # before format 2.1: only the ranks
            name, description, ranks = str(key), "", parse_ranks(group)
        if name or ranks:
            groups[name] = description, ranks
    return groups


def parse_ranks(listed: Any) -> tuple[int, ...]:
    """Return ranks from a list, or from text such as ``"[0, 1]"``.

    Raises:
        TypeError, ValueError: one of them is not a number, or not a rank that a job can have.
    """
    texts = re.findall(r"\d+", listed) if isinstance(listed, str) else listed or ()
    return checked_ranks(int(rank) for rank in texts)


def _status(group: object, status: object) -> tuple[int, int, int]:
    """Return the last enqueued, started and completed sequence number of a group; −1 if there is none.

    Raises:
        MissingField: one of them is null.
        TypeError, ValueError: the status is invalid.
    """
    if not isinstance(status, Mapping):
        raise TypeError(f"pg_status[{group}] is {reprlib.repr(status)}")
    last = []
    for name in ("last_enqueued_collective", "last_started_collective", "last_completed_collective"):
        if status.get(name, -1) is None:
            raise MissingField(f"pg_status[{group}].{name}")
        last.append(int(status.get(name, -1)))
    return last[0], last[1], last[2]


def _ended_messages(entries: Sequence[RecorderEntry], status: Mapping[int, tuple[int, int, int]]) -> dict[str, int]:
    """Return {group: number of its last completed message} for groups that have sent messages only.

    A group has one count of completed calls, for collectives and messages together, so others are left out.
    """
    by_group: dict[str, list[RecorderEntry]] = defaultdict(list)
    for entry in entries:
        by_group[entry.group].append(entry)
    ended = {}
    for group, of_group in by_group.items():
        number = of_group[0].group_number
        has_ends = not of_group[0].raw_op.startswith(LIBRARIES_WITHOUT_ENDS)
        if number is not None and number in status and has_ends and all(entry.numbers[0] == 0 for entry in of_group):
            _, _, ended[group] = status[number]
    return ended
