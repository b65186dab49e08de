"""Compare the logs of all ranks: a `Skew` of their joint trace, and the calls that differ.

Every rank of the world must call each of these functions. If ranks have made unequal numbers of calls, the logs are
exchanged through the world's store instead of collectives, so ranks that differ get an answer and cannot hang. Each
rank first sends a digest of every `CHUNK` calls of a group; calls are sent only for the first chunk that differs.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch.distributed as td

from dsexplore._internal.analysis.hangs.call_text import difference_text
from dsexplore._internal.analysis.hangs.mismatches import differences
from dsexplore._internal.analysis.hangs.trace_calls import job_of_trace
from dsexplore._internal.analysis.skew import Skew
from dsexplore._internal.capture.collectives.groups import describe_group, own_rank
from dsexplore._internal.comm.logs.dropped_calls import DroppedCalls
from dsexplore._internal.comm.logs.log_records import Record, is_collective
from dsexplore._internal.comm.logs.meeting import exchange, meet, store_of_world
from dsexplore._internal.comm.logs.sent_calls import Series, last_calls, numbered, sent_calls, tables_of
from dsexplore._internal.errors import MismatchError, UsageError

CHUNK = 1024
_MOST_DIFFERENCES = 20
Call = tuple[Series, int, Record]
Digests = Mapping[Series, tuple[int, int, Mapping[int, bytes]]]
"""{series: (number of the first call still in the log, number after the last, {chunk: digest})}."""


def compare(records: Sequence[Record], dropped: DroppedCalls) -> tuple[Skew, list[str]]:
    """Return the skew of the logged ranks; its notes list the calls in which they differ.

    Args:
        records: of this rank, without `DroppedCalls.counted_early`.
        dropped: the calls that the log dropped before them.

    Raises:
        TimeoutError: some ranks have not made the call; the error names them.
    """
    calls = list(numbered(records, dropped.numbered))
    by_store = not meet("log_summary(show_straggler=True)", made=_made_on_world(calls, dropped))
    tables = tables_of(list(exchange(sent_calls(last_calls(calls), own_rank()), by_store).values()))
    differences = _differences(_collectives(calls), dropped, by_store)
    return Skew(replace(tables, info=replace(tables.info, notes=(*differences, *tables.info.notes)))), differences


def check(records: Sequence[Record], dropped: DroppedCalls) -> None:
    """Raise if the ranks' calls differ; see `CommsLogger.check`.

    Args:
        records: see `compare`.
        dropped: see `compare`.
    """
    calls = _collectives(numbered(records, dropped.numbered))
    by_store = not meet("check()", made=_made_on_world(calls, dropped))
    if not any(exchange(bool(records), by_store).values()):
        raise UsageError("check(): no rank has logged a call: turn the log on before, with configure(enabled=True)")
    differences = _differences(calls, dropped, by_store)
    if differences:
        raise MismatchError("the ranks did not make the same calls: " + "; ".join(differences))


def _collectives(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that torch issued as collectives, which must be equal on all ranks."""
    return [call for call in calls if is_collective(call[2].issued)]


def _made_on_world(calls: Iterable[Call], dropped: DroppedCalls) -> int | None:
    """Return the number of collectives this rank made on the world; None if one of them failed."""
    if store_of_world() is None:
        return 0
    world = describe_group(td.group.WORLD)
    made = [record for (name, ranks), _, record in calls if (name, ranks) == (world.name, world.ranks)]
    return None if any(record.failed for record in made) else dropped.numbered[world.name, world.ranks] + len(made)


def _differences(calls: Sequence[Call], dropped: DroppedCalls, by_store: bool) -> list[str]:
    """Return a text for the first call of each series that differs between ranks, `_MOST_DIFFERENCES` at most."""
    sent = exchange(digests(calls, dropped.numbered), by_store)
    chunks = chunks_to_compare(sent)
    if not chunks:
        return []
    compared = [call for call in calls if call[0] in chunks and call[1] // CHUNK == chunks[call[0]]]
    tables = tables_of(list(exchange(sent_calls(compared, own_rank()), by_store).values()))
    texts = [difference_text(difference) for difference in differences(job_of_trace(tables))]
    more = len(texts) - _MOST_DIFFERENCES
    return [*texts[:_MOST_DIFFERENCES], *([f"… and {more:,} more"] if more > 0 else [])]


def digests(calls: Iterable[Call], dropped: Mapping[Series, int]) -> Digests:
    """Return the digests of a rank's calls, which it sends first.

    Args:
        calls: with their numbers.
        dropped: {series: number of calls that the log no longer has}.
    """
    texts: dict[Series, list[str]] = defaultdict(list)
    for series, _, record in calls:
        texts[series].append(_agreed(record))
    digests_of: dict[Series, tuple[int, int, Mapping[int, bytes]]] = {}
    for series, of_calls in texts.items():
        first = dropped.get(series, 0)
        end = first + len(of_calls)
        whole = range(-(-first // CHUNK), -(-end // CHUNK))
        digests_of[series] = (first, end, {chunk: _digest(of_calls, chunk * CHUNK - first) for chunk in whole})
    return digests_of


def _digest(texts: Sequence[str], begin: int) -> bytes:
    return hashlib.blake2b("\n".join(texts[begin : begin + CHUNK]).encode(), digest_size=8).digest()


def _agreed(record: Record) -> str:
    """Return the part of a call that all ranks must agree on; objects and all_to_all parts may differ in size."""
    parties = record.issued.parties
    has_same_size = record.op != "all_to_all" and not record.is_object
    size, root = record.bytes if has_same_size else "", parties.root if parties is not None else None
    return f"{record.op} {size} {record.dtype} {record.reduction} {root}"


def chunks_to_compare(sent: Mapping[int, Digests]) -> dict[Series, int]:
    """Return {series: first chunk with differing digests}, equal on every rank.

    Args:
        sent: {rank: its digests}.
    """
    chunks = {}
    for series in sorted({series for by_series in sent.values() for series in by_series}):
        of_ranks = [sent[rank].get(series, (0, 0, {})) for rank in series[1] if rank in sent]
        begin = max(-(-first // CHUNK) for first, _, _ in of_ranks)
        end = max(-(-last // CHUNK) for _, last, _ in of_ranks)
        for chunk in range(begin, end):
            if len({by_chunk.get(chunk) for _, _, by_chunk in of_ranks}) > 1:
                chunks[series] = chunk
                break
    return chunks
