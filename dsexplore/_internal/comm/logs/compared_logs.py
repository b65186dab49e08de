"""Compare the logs of all ranks: the `Skew` of their joint trace, and the calls that differ.

Every rank of the world must call `compare` or `check`. If ranks have made different numbers of collectives, another
collective could hang, so the logs are exchanged through the world's store. To send little, each rank first sends a
digest of every `CHUNK` calls of a group; the calls themselves are sent only for the first chunk that differs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch.distributed as td

from dsexplore._internal.analysis.hangs.call_text import difference_text
from dsexplore._internal.analysis.hangs.mismatches import differences
from dsexplore._internal.analysis.hangs.trace_calls import job_of_trace
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.capture.collectives.groups import describe_group, own_rank
from dsexplore._internal.comm.logs.dropped_calls import DroppedCalls
from dsexplore._internal.comm.logs.log_records import Record, is_collective
from dsexplore._internal.comm.logs.meeting import exchange, meet, store_of_world
from dsexplore._internal.comm.logs.sent_calls import NumberedCall, Series, last_calls, numbered, sent_calls, tables_of
from dsexplore._internal.errors import MismatchError, UsageError

CHUNK = 1024
_MOST_DIFFERENCES = 20


class SeriesDigests(NamedTuple):
    """Digests of a rank's calls in one series."""

    first: int
    """Number of the first call that is still in the log."""
    end: int
    """Number after the last call."""
    by_chunk: Mapping[int, bytes]
    """{number of a chunk: digest of its calls}; calls of a chunk that the log no longer has in full are omitted."""


Digests = Mapping[Series, SeriesDigests]


def compare(records: Sequence[Record], dropped: DroppedCalls) -> tuple[Skew, list[str]]:
    """Return the skew of the ranks' logs, and texts on the calls that differ, which are also its notes.

    Args:
        records: lines of this rank's log, without `DroppedCalls.counted_early`.
        dropped: earlier calls that the log has dropped.

    Raises:
        TimeoutError: some ranks have not made this call; the error names them.
    """
    calls = numbered(records, dropped.numbered)
    by_store = not meet("log_summary(show_straggler=True)", made=_made_on_world(calls, dropped))
    tables = tables_of(list(exchange(sent_calls(last_calls(calls), own_rank()), by_store).values()))
    differences = _differences(_collectives(calls), dropped, by_store)
    info = replace(tables.info, notes=(*differences, *tables.info.notes))
    return Skew(replace(tables, info=info)), differences


def check(records: Sequence[Record], dropped: DroppedCalls) -> None:
    """Raise MismatchError if the ranks' calls differ, see `CommsLogger.check`; the arguments are those of `compare`."""
    calls = _collectives(numbered(records, dropped.numbered))
    by_store = not meet("check()", made=_made_on_world(calls, dropped))
    if not any(exchange(bool(records), by_store).values()):
        raise UsageError("check(): no rank has logged a call: turn the log on before, with configure(enabled=True)")
    differences = _differences(calls, dropped, by_store)
    if differences:
        raise MismatchError("the ranks did not make the same calls: " + "; ".join(differences))


def _collectives(calls: Iterable[NumberedCall]) -> list[NumberedCall]:
    """Return the calls that torch issued as collectives, which must be equal on all ranks."""
    return [call for call in calls if is_collective(call.record.issued)]


def _made_on_world(calls: Iterable[NumberedCall], dropped: DroppedCalls) -> int | None:
    """Return the number of collectives that this rank made on the world; None if one of them failed."""
    if store_of_world() is None:
        return 0
    world = describe_group(td.group.WORLD)
    series = world.name, world.ranks
    records = [call.record for call in calls if call.series == series]
    if any(record.failed for record in records):
        return None
    return dropped.numbered[series] + len(records)


def _differences(calls: Sequence[NumberedCall], dropped: DroppedCalls, by_store: bool) -> list[str]:
    """Return a text for the first call of each series that differs between ranks, `_MOST_DIFFERENCES` at most."""
    chunks = chunks_to_compare(exchange(digests(calls, dropped.numbered), by_store))
    if not chunks:
        return []
    compared = [call for call in calls if call.number // CHUNK == chunks.get(call.series)]
    tables = tables_of(list(exchange(sent_calls(compared, own_rank()), by_store).values()))
    texts = [difference_text(difference) for difference in differences(job_of_trace(tables))]
    if len(texts) > _MOST_DIFFERENCES:
        texts[_MOST_DIFFERENCES:] = [f"… and {len(texts) - _MOST_DIFFERENCES:,} more"]
    return texts


def digests(calls: Iterable[NumberedCall], dropped: Mapping[Series, int]) -> Digests:
    """Return the digests of a rank's calls, which it sends to the other ranks.

    Args:
        calls: calls of the rank, in the order of issue.
        dropped: {series: number of earlier calls that the log no longer has}.
    """
    texts: dict[Series, list[str]] = defaultdict(list)
    for call in calls:
        texts[call.series].append(_agreed_text(call.record))
    series_digests = {}
    for series, call_texts in texts.items():
        first = dropped.get(series, 0)
        end = first + len(call_texts)
        by_chunk = {
            chunk: _digest(call_texts, chunk * CHUNK - first) for chunk in range(_chunk_from(first), _chunk_from(end))
        }
        series_digests[series] = SeriesDigests(first, end, by_chunk)
    return series_digests


def _chunk_from(number: int) -> int:
    """Return the first chunk that begins at or after call `number`."""
    return (number + CHUNK - 1) // CHUNK


def _digest(texts: Sequence[str], begin: int) -> bytes:
    """Return the digest of the chunk that begins at `begin`."""
    return hashlib.blake2b("\n".join(texts[begin : begin + CHUNK]).encode(), digest_size=8).digest()


def _agreed_text(record: Record) -> str:
    """Return the properties of a call that all ranks must agree on; objects and all_to_all parts may differ in size."""
    parties = record.issued.parties
    root = parties.root if parties is not None else None
    has_same_size = record.op != "all_to_all" and not record.is_object
    size = record.bytes if has_same_size else ""
    return f"{record.op} {size} {record.dtype} {record.reduction} {root}"


def chunks_to_compare(sent: Mapping[int, Digests]) -> dict[Series, int]:
    """Return {series: first chunk with differing digests}, the same on every rank.

    Args:
        sent: {rank: its digests}.
    """
    chunks = {}
    for series in sorted({series for by_series in sent.values() for series in by_series}):
        _, ranks = series
        rank_digests = [sent[rank].get(series, SeriesDigests(0, 0, {})) for rank in ranks if rank in sent]
        begin = max(_chunk_from(rank_digest.first) for rank_digest in rank_digests)
        end = max(_chunk_from(rank_digest.end) for rank_digest in rank_digests)
        for chunk in range(begin, end):
            if len({rank_digest.by_chunk.get(chunk) for rank_digest in rank_digests}) > 1:
                chunks[series] = chunk
                break
    return chunks
