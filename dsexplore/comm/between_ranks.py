"""The logs of all ranks compared. Every rank of the world must call each of these functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsexplore.capture.groups import own_rank
from dsexplore.comm import compare
from dsexplore.comm.earlier_calls import Earlier
from dsexplore.comm.meeting import exchange, meet
from dsexplore.comm.rank_logs import rank_log
from dsexplore.comm.records import Record
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
    meet("log_summary(show_straggler=True)")
    logs = exchange(rank_log(records, own_rank(), earlier.matched))
    found = straggler_report(list(logs.values()))
    return replace(found, differences=(*_differences(records, earlier), *found.differences))


def check(records: Sequence[Record], earlier: Earlier) -> None:
    """Raise an error where the ranks' calls differ; see `CommsLogger.check`.

    Args:
        records: see `stragglers`.
        earlier: see `stragglers`.
    """
    meet("check()")
    if not any(exchange(bool(records)).values()):
        raise UsageError("check(): no rank has logged a call: turn the log on before, with configure(enabled=True)")
    found = _differences(records, earlier)
    if found:
        raise MismatchError("the ranks did not make the same calls: " + "; ".join(bounded(found)))


def _differences(records: Sequence[Record], earlier: Earlier) -> list[str]:
    """Texts on where the ranks' calls differ; see `compare`."""
    made = compare.calls_made(records, earlier.compared)
    chunks = compare.chunks_to_compare(exchange(compare.digests(made)))
    if not chunks:
        return []
    return compare.differences(chunks, exchange(compare.calls_of_chunk(made, chunks)))
