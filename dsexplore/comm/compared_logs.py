"""The logs of all ranks compared. Every rank of the world must call each of these functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch.distributed as td

from dsexplore.capture.groups import describe_group, own_rank
from dsexplore.comm import differing_calls
from dsexplore.comm.differing_calls import GroupKey, Made
from dsexplore.comm.earlier_calls import Earlier
from dsexplore.comm.log_records import Record
from dsexplore.comm.meeting import exchange, meet, store_of_world
from dsexplore.comm.rank_logs import rank_log
from dsexplore.comm.straggler import StragglerReport, bounded, straggler_report
from dsexplore.errors import MismatchError, UsageError


def stragglers(records: Sequence[Record], earlier: Earlier) -> StragglerReport:
    """The straggler report: how long ranks waited for each other, and where their logs differ.

    Args:
        records: of this rank, without those out of their places.
        earlier: how many calls there were before them.

    Raises:
        TimeoutError: some ranks have not made the call; the error names them.
    """
    made = differing_calls.calls_made(records, earlier.compared)
    by_store = not meet("log_summary(show_straggler=True)", made=_made_on_world(made))
    logs = exchange(rank_log(records, own_rank(), earlier.matched), by_store)
    found = straggler_report(list(logs.values()))
    return replace(found, differences=(*_differences(made, by_store), *found.differences))


def check(records: Sequence[Record], earlier: Earlier) -> None:
    """Raise an error where the ranks' calls differ; see `CommsLogger.check`.

    Args:
        records: see `stragglers`.
        earlier: see `stragglers`.
    """
    made = differing_calls.calls_made(records, earlier.compared)
    by_store = not meet("check()", made=_made_on_world(made))
    if not any(exchange(bool(records), by_store).values()):
        raise UsageError("check(): no rank has logged a call: turn the log on before, with configure(enabled=True)")
    found = _differences(made, by_store)
    if found:
        raise MismatchError("the ranks did not make the same calls: " + "; ".join(bounded(found)))


def _made_on_world(made: Mapping[GroupKey, Made]) -> int | None:
    """How many collectives this rank has made on the world; None where one of them failed."""
    if store_of_world() is None:
        return 0
    world = describe_group(td.group.WORLD)
    on_world = made.get((world.name, world.ranks))
    if on_world is None:
        return 0
    return None if any(record.failed for record in on_world.records) else on_world.end


def _differences(made: Mapping[GroupKey, Made], by_store: bool) -> list[str]:
    """Texts on where the ranks' calls differ; see `differing_calls`."""
    chunks = differing_calls.chunks_to_compare(exchange(differing_calls.digests(made), by_store))
    if not chunks:
        return []
    return differing_calls.differences(chunks, exchange(differing_calls.calls_of_chunk(made, chunks), by_store))
