"""Whether all ranks of each group made the same calls, in the same order: gloo lets some that differ pass, with wrong
values.

Compared is, call by call, what all ranks of a group must agree on: op, message bytes, dtype, reduction, root. Each rank
first sends a digest of every `CHUNK` calls; of the first chunk that differs in a group the calls themselves are sent.
Both are gathers of what every rank has, whatever it is; where ranks have made unequal numbers of calls they go by the
world's store. So ranks that differ get a report and cannot hang.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dsexplore.capture.source_lines import source_texts
from dsexplore.comm.log_records import Record, is_collective
from dsexplore.comm.rank_logs import has_one_size, is_matched
from dsexplore.comm.ranks_alike import alike
from dsexplore.units import format_bytes

CHUNK = 1024
GroupKey = tuple[str, tuple[int, ...]]
"""A group's name and its ranks."""


class Agreed(NamedTuple):
    """The properties of a call that all ranks must agree on."""

    op: str
    message_bytes: int | None
    """None where it may differ."""
    dtype: str
    reduction: str
    root: int | None

    def __str__(self) -> str:
        parts = [self.op, self.reduction]
        if self.message_bytes:
            parts.append(f"of {format_bytes(self.message_bytes)}")
        parts += [self.dtype, f"root {self.root}" if self.root is not None else ""]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True)
class Made:
    """The calls of one rank on one group, in order of issue."""

    first: int
    """The number of the first one that is still in the log."""
    calls: Sequence[Agreed]
    records: Sequence[Record]

    @property
    def end(self) -> int:
        """The number of the call after the last."""
        return self.first + len(self.calls)


class Digests(NamedTuple):
    """The digests of a rank's calls on a group: what ranks exchange before any call itself."""

    first: int
    end: int
    of_chunks: dict[int, bytes]
    """By number: the digest of a chunk that is whole, or the last one."""


def calls_made(records: Iterable[Record], dropped: Mapping[GroupKey, int]) -> dict[GroupKey, Made]:
    """A rank's calls by group.

    Args:
        records: the lines that the log still has, without those out of their places (`Earlier.out_of_place`).
        dropped: how many calls on each group before those it no longer has.
    """
    by_group: dict[GroupKey, list[Record]] = defaultdict(list)
    for record in records:
        if is_matched(record) and is_collective(record.issued):
            by_group[record.group.name, record.group.ranks].append(record)
    return {
        group: Made(dropped.get(group, 0), [_agreed(record) for record in members], members)
        for group, members in by_group.items()
    }


def _agreed(record: Record) -> Agreed:
    parties = record.issued.parties
    return Agreed(
        record.op,
        record.bytes if has_one_size(record) else None,
        str(record.dtype).removeprefix("torch.") if record.dtype is not None else "",
        record.reduction,
        parties.root if parties is not None else None,
    )


def digests(made: Mapping[GroupKey, Made]) -> dict[GroupKey, Digests]:
    """The digests of a rank's calls, which it sends first."""
    return {group: Digests(one.first, one.end, _of_chunks(one)) for group, one in made.items()}


def _of_chunks(made: Made) -> dict[int, bytes]:
    found = {}
    for number in range(-(-made.first // CHUNK), -(-made.end // CHUNK)):
        calls = made.calls[number * CHUNK - made.first : (number + 1) * CHUNK - made.first]
        found[number] = hashlib.blake2b(repr(calls).encode(), digest_size=8).digest()
    return found


def chunks_to_compare(sent: Mapping[int, Mapping[GroupKey, Digests]]) -> dict[GroupKey, int]:
    """By group the first chunk whose digests differ, the same on every rank.

    Args:
        sent: by rank, what it sent first.
    """
    found = {}
    for group in sorted({group for by_group in sent.values() for group in by_group}):
        of_ranks = [sent[rank].get(group, Digests(0, 0, {})) for rank in group[1] if rank in sent]
        begin = max(-(-each.first // CHUNK) for each in of_ranks)
        end = max(-(-each.end // CHUNK) for each in of_ranks)
        for number in range(begin, end):
            if len({each.of_chunks.get(number) for each in of_ranks}) > 1:
                found[group] = number
                break
    return found


def calls_of_chunk(made: Mapping[GroupKey, Made], chunks: Mapping[GroupKey, int]) -> dict[GroupKey, list[Any]]:
    """The calls of the chunks to be compared, each with its line of the program."""
    found = {}
    for group, number in chunks.items():
        one = made.get(group)
        if one is not None:
            begin, end = (max(0, edge * CHUNK - one.first) for edge in (number, number + 1))
            lines = source_texts(record.issued.origin.sources[:1] for record in one.records[begin:end])
            found[group] = list(zip(one.calls[begin:end], lines, strict=True))
    return found


def differences(
    chunks: Mapping[GroupKey, int], sent: Mapping[int, Mapping[GroupKey, Sequence[tuple[Agreed, str]]]]
) -> list[str]:
    """For each group whose ranks made different calls: the first one, and what each rank made of it."""
    texts = []
    for group, number in chunks.items():
        name, ranks = group
        of_ranks = {rank: sent[rank].get(group, ()) for rank in ranks if rank in sent}
        for position in range(max(map(len, of_ranks.values()))):
            calls = {rank: calls[position] if position < len(calls) else None for rank, calls in of_ranks.items()}
            if len({call[0] if call is not None else None for call in calls.values()}) > 1:
                what = alike(calls, _text)
                texts.append(f"call {number * CHUNK + position} on group {name} differs: {what}")
                break
    return texts


def _text(call: tuple[Agreed, str] | None) -> str:
    return f"{call[0]} at {call[1]}" if call is not None else "made no such call"
