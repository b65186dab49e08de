"""`HangReport` states why a job hangs, as a sentence and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import polars as pl

from dsexplore._internal.analysis.hangs.blame import Blame, blame
from dsexplore._internal.analysis.hangs.call_text import call_line
from dsexplore._internal.analysis.hangs.hang_text import end_note, verdict
from dsexplore._internal.analysis.hangs.mismatches import Field, Mismatch, mismatches
from dsexplore._internal.analysis.hangs.rank_calls import JobCalls
from dsexplore._internal.analysis.hangs.rank_places import RankPlace
from dsexplore._internal.analysis.hangs.wavefront import Wavefront
from dsexplore._internal.display import Result

Reason = Literal[
    "none",
    "did not come",
    "raised",
    "ended",
    "stopped",
    "killed",
    "outside a collective",
    "other collective",
    "other size",
    "other dtype",
    "other root",
    "other reduction",
    "other group order",
    "messages in a circle",
    "other peer",
    "device",
    "unknown",
]
"""The reason of a hang:

* ``none``: nothing hangs;
* ``did not come``: others wait for the culprits, and the evidence shows no more;
* ``raised``, ``ended``, ``stopped``, ``killed``: others wait for the culprits, which raised an exception, ended their
  program or its recorded block, were stopped (by SIGSTOP or a debugger), or were killed by a signal;
* ``outside a collective``: others wait for the culprits, which run other code at a known line; or no rank is in a
  recorded call, and the culprits are in ``new_group``, at a store or in other code;
* ``other collective``: the culprits called a different collective than the others, or one too many;
* ``other size``, ``other dtype``, ``other root``, ``other reduction``: the culprits called the same collective with a
  different size, dtype, root or reduction;
* ``other group order``: ranks called their groups in different orders, or created one with different members, and wait
  for each other;
* ``messages in a circle``: ranks wait for each other's messages;
* ``other peer``: the culprits send to, or receive from, a different rank than the one that waits for their message;
* ``device``: all ranks called the collective, and the devices of the culprits do not begin or end it;
* ``unknown``: the evidence does not show the reason.
"""
REASONS: tuple[Reason, ...] = get_args(Reason)
"""All reasons, in the order above."""

_OF_FIELD: dict[Field, Reason] = {
    "op": "other collective",
    "size": "other size",
    "dtype": "other dtype",
    "root": "other root",
    "reduction": "other reduction",
}
_HOW: tuple[Literal["killed", "raised", "stopped", "ended"], ...] = ("killed", "raised", "stopped", "ended")
"""Ends of ranks; the first one that a culprit has is the reason."""


def reason_of(job: JobCalls, front: Wavefront, blamed: Blame) -> Reason:
    """Return the reason of a hang.

    Args:
        job: the evidence of all ranks.
        front: the waiting ranks of the job.
        blamed: the ranks to blame, and the rule that found them.
    """
    if blamed.kind == "none":
        return "none"
    if blamed.kind in ("missing", "behind", "no_evidence", "elsewhere"):
        return _missing_reason(job, blamed)
    if blamed.kind == "extra":
        return "other collective"
    if blamed.kind == "mismatch" and blamed.mismatch is not None:
        return _OF_FIELD.get(blamed.mismatch.field, "unknown")
    if blamed.kind == "unmet":
        return _message_reason(blamed)
    if blamed.kind == "misdirected":
        return "other peer"
    if blamed.kind in ("circle", "unlike_groups"):
        return _circle_reason(front, blamed)
    return "device" if blamed.kind in ("device", "overtaken") and blamed.culprits else "unknown"


def _missing_reason(job: JobCalls, blamed: Blame) -> Reason:
    accused = [job.ranks[rank] for rank in blamed.culprits]
    ends = {calls.end.how for calls in accused if calls.end is not None}
    for how in _HOW:
        if how in ends:
            return how
    if blamed.kind == "elsewhere":
        return "outside a collective"
    is_elsewhere = any(calls.stack and not calls.pending for calls in accused)
    return "outside a collective" if is_elsewhere else "did not come"


def _message_reason(blamed: Blame) -> Reason:
    first, second = blamed.instances[0].calls.values()
    if first.dtype != second.dtype and first.dtype and second.dtype:
        return "other dtype"
    have_sizes = first.message_bytes and second.message_bytes
    return "other size" if have_sizes and first.message_bytes != second.message_bytes else "messages in a circle"


def _circle_reason(front: Wavefront, blamed: Blame) -> Reason:
    involved = (
        blamed.suspects or {rank for instance in blamed.instances for rank in instance.calls} & front.heads.keys()
    )
    are_messages = {front.heads[rank][0].is_message for rank in involved if rank in front.heads}
    if are_messages == {True}:
        return "messages in a circle"
    return "other group order" if are_messages == {False} else "other collective"


WAITING_COLUMNS: dict[str, pl.DataType] = {
    "rank": pl.Int32(),
    "op": pl.String(),
    "group": pl.String(),  # mesh axis or description of the group, or else its name
    "ranks": pl.List(pl.Int32()),  # members of the group
    "number": pl.Int64(),  # sequence number of a collective in its group; for a message, the recorder's count
    "message_bytes": pl.Int64(),  # null if the size is unknown
    "dtype": pl.String(),
    "state": pl.String(),  # scheduled, started or failed
    "source": pl.String(),  # "file:line" of the call; "" if it is unknown
    "waits_for": pl.List(pl.Int32()),  # ranks that have not come, or that made a different call
    "since": pl.Int64(),  # nanoseconds since the Unix epoch at which the call was issued; null if it is unknown
}
"""Columns of `HangReport.waiting`."""
MISMATCHES: dict[str, pl.DataType] = {
    "group": pl.String(),
    "number": pl.Int64(),
    "field": pl.String(),  # what differs: op, size, root, dtype or reduction; line: only the line of the call
    "ranks": pl.List(pl.Int32()),  # ranks that made this call
    "op": pl.String(),
    "message_bytes": pl.Int64(),
    "dtype": pl.String(),
    "source": pl.String(),
    "is_harmful": pl.Boolean(),  # false if all ranks completed it, and their later calls agree
    "root": pl.Int32(),  # the rank that sends to all or receives from all; null if there is none, or it is unknown
}
"""Columns of `HangReport.mismatches`."""


@dataclass(frozen=True, eq=False)
class HangReport(Result):
    """The ranks that cause a hang, the ranks that wait and for whom, and where the ranks of each group diverged."""

    _INTERNAL = frozenset({"conclusion"})

    culprits: tuple[int, ...]
    """The ranks that cause the hang; empty if the evidence does not show them."""
    conclusion: str
    """The text of `verdict`."""
    waiting: pl.DataFrame
    """One row per waiting rank, with its call and the ranks that it waits for; columns: `WAITING_COLUMNS`."""
    mismatches: pl.DataFrame
    """The first collective of each group that its ranks called differently, one row per side; columns: `MISMATCHES`."""
    reason: Reason
    """The reason of the hang, one of `analysis.hangs.hang_report.Reason`; ``none`` if nothing hangs."""
    suspects: tuple[int, ...] = ()
    """Without culprits, the ranks among which the cause is. With culprits, ranks without a record that may have come
    or not."""
    sources: Mapping[int, str] = field(default_factory=dict)
    """{culprit: ``file:line`` where it raised, or is outside a collective; otherwise of its diverging or last call}.

    Without culprits, it has those of the suspects."""
    stacks: Mapping[int, str] = field(default_factory=dict)
    """{rank: its stack when it was ended, innermost call first}."""
    world_size: int = 0
    notes: tuple[str, ...] = ()
    """Limits of the evidence: files that could not be read, ranks without a file, …"""

    def __str__(self) -> str:
        return self.conclusion

    def __repr__(self) -> str:
        return f"<HangReport: {self.conclusion}>"

    def verdict(self) -> str:
        """Return the cause of the hang."""
        return self.conclusion

    def lines(self) -> list[str]:
        """Return the verdict, then the limits of the evidence."""
        return [self.conclusion, *self.notes]

    def to_frame(self) -> pl.DataFrame:
        """Return `waiting`, one row per waiting rank."""
        return self.waiting

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain data that can be written as JSON."""
        return {
            "culprits": list(self.culprits),
            "verdict": self.conclusion,
            "reason": self.reason,
            "suspects": list(self.suspects),
            "sources": {str(rank): source for rank, source in self.sources.items()},
            "world_size": self.world_size,
            "waiting": self.waiting.to_dicts(),
            "mismatches": self.mismatches.to_dicts(),
            "stacks": {str(rank): stack for rank, stack in self.stacks.items()},
            "notes": list(self.notes),
        }


def report_of(job: JobCalls) -> HangReport:
    """Return the report on the evidence of a job."""
    front = Wavefront(job)
    parted = mismatches(job)
    blamed = blame(job, front, parted)
    return HangReport(
        culprits=blamed.culprits,
        conclusion=verdict(job, front, blamed, parted),
        waiting=_waiting(front, parted),
        mismatches=pl.DataFrame(
            [row for mismatch in parted for row in _sides(mismatch)], schema=MISMATCHES, orient="row"
        ),
        reason=reason_of(job, front, blamed),
        suspects=blamed.suspects,
        sources=_sources(job, front, blamed),
        stacks={rank: calls.stack for rank, calls in job.ranks.items() if calls.stack},
        world_size=job.world_size,
        notes=(*job.notes, *end_note(job, blamed)),
    )


def _waiting(front: Wavefront, parted: Sequence[Mismatch]) -> pl.DataFrame:
    """Return one row per waiting rank; columns: `WAITING_COLUMNS`."""
    sides = {(mismatch.instance.id, rank): ranks for mismatch in parted for ranks in mismatch.classes for rank in ranks}
    rows = []
    for rank, calls in sorted(front.heads.items()):
        call = calls[0]
        instance = front.job.instance_of(call)
        awaited = front.waits_for[rank] or instance.calls.keys() - sides.get((instance.id, rank), instance.calls.keys())
        rows.append(
            (
                *(rank, call.op, call.label, list(call.group.ranks), call.number, call.message_bytes, call.dtype),
                *(call.state, call.source, sorted(awaited), call.created),
            )
        )
    return pl.DataFrame(rows, schema=WAITING_COLUMNS, orient="row")


def _sides(mismatch: Mismatch) -> list[tuple[Any, ...]]:
    """Return one row per side of a mismatch, in the order of `MISMATCHES`."""
    rows = []
    for ranks in mismatch.classes:
        call = mismatch.instance.calls[ranks[0]]
        identity = (call.label, mismatch.instance.id.number, mismatch.field, list(ranks))
        rows.append((*identity, call.op, call.message_bytes, call.dtype, call.source, mismatch.is_harmful, call.root))
    return rows


def _sources(job: JobCalls, front: Wavefront, blamed: Blame) -> dict[int, str]:
    if blamed.culprits:
        return {rank: _line(job, front, blamed, rank) for rank in blamed.culprits}
    return {rank: line for rank in blamed.suspects if (line := _line(job, front, blamed, rank))}


def _line(job: JobCalls, front: Wavefront, blamed: Blame, rank: int) -> str:
    """Return the line of a culprit or suspect: ``"train.py:5"``; empty if it is unknown."""
    calls = job.ranks[rank]
    parted = blamed.mismatch.instance.calls.get(rank) if blamed.mismatch is not None else None
    if parted is not None and blamed.kind == "mismatch":
        return call_line(parted.source)
    if calls.end is not None and calls.end.line:
        return calls.end.line
    if calls.stack and not calls.pending:
        return RankPlace.of(calls.stack).line
    call = parted
    if call is None and rank in front.heads:
        call = front.heads[rank][0]
    if call is None and calls.calls:
        call = calls.calls[-1]
    if call is None:
        return calls.earlier.last_line if calls.earlier is not None else ""
    return call_line(call.source)
