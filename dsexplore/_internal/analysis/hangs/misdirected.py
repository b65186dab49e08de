"""Finds messages whose two ends name different peers: a rank sends to a different rank than the one that waits for it.

Gloo's sends end when the receive is called, so both ranks wait. The ranks that they name are not the cause.

Worked example: in each step rank 0 sends to rank 1, which receives from rank 0. In step 4 rank 1 receives from rank 2.
Rank 0 waits in its send, rank 1 in its receive, and rank 2, which never sends to rank 1, in the barrier that follows.
Rank 1 received from rank 0 at this line before, so rank 1 names a wrong peer now.

Without earlier messages, rank 2 may have omitted a send, or rank 1 may name a wrong rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsexplore._internal.analysis.hangs.rank_calls import Instance, JobCalls, RankCall

_USUAL = 2
"""Fewest earlier messages with one peer that make another peer unusual; a loop over peers has one with each."""


class Misdirected(NamedTuple):
    """A send and a receive that would be one message if they named each other."""

    sent: RankCall
    received: RankCall
    culprit: int | None
    """The rank whose peer differs from that of earlier calls at this line; None if earlier calls do not show it."""


def misdirected(job: JobCalls, heads: Iterable[RankCall]) -> Misdirected | None:
    """Return the first send and receive that miss each other; None if there are none, or something else explains them.

    Args:
        job: the evidence of all ranks.
        heads: the calls in which ranks wait.
    """
    alone = [call for call in heads if call.pair is not None and _is_alone(job.instance_of(call), call)]
    pairs = [(sent, received) for sent in alone for received in alone if _could_be_a_message(sent, received)]
    for sent, received in pairs:
        unusual = [call for call in (received, sent) if _has_left_usual_peer(job, call)]
        if len(unusual) == 1:
            return Misdirected(sent, received, culprit=unusual[0].rank)
    for sent, received in pairs:
        third = next(iter({*_ends(sent), *_ends(received)} - {sent.rank, received.rank}))
        if _is_first(job, sent) and _is_first(job, received) and _has_gone_on(job, third):
            return Misdirected(sent, received, culprit=None)
    return None


def _ends(call: RankCall) -> Iterator[int]:
    yield from call.pair or ()


def _is_alone(instance: Instance, call: RankCall) -> bool:
    """Return True if a message has one end only, and all calls of both its ranks are known."""
    return instance.calls.keys() == {call.rank} and bool(instance.absent) and not instance.id.part


def _could_be_a_message(sent: RankCall, received: RankCall) -> bool:
    """Return True if two calls of one group would be a message if one of them named another peer."""
    if sent.op != "send" or received.op != "recv" or sent.group != received.group or sent.rank == received.rank:
        return False
    names = len({*_ends(sent), *_ends(received)})
    return names == 3 and (sent.dtype, sent.message_bytes) == (received.dtype, received.message_bytes)


def _peer(call: RankCall) -> int:
    return next(end for end in _ends(call) if end != call.rank)


def _earlier_calls(job: JobCalls, call: RankCall) -> list[RankCall]:
    """Return the messages of a rank before a call, by the same op at the same line in the same group."""
    place = (call.op, call.source, call.group)
    before = [earlier for earlier in job.ranks[call.rank].calls if earlier.position < call.position]
    return [
        earlier
        for earlier in before
        if earlier.pair is not None and (earlier.op, earlier.source, earlier.group) == place
    ]


def _has_left_usual_peer(job: JobCalls, call: RankCall) -> bool:
    peers = [_peer(earlier) for earlier in _earlier_calls(job, call)]
    return len(peers) >= _USUAL and len(set(peers)) == 1 and peers[0] != _peer(call)


def _is_first(job: JobCalls, call: RankCall) -> bool:
    return not _earlier_calls(job, call)


def _has_gone_on(job: JobCalls, rank: int) -> bool:
    """Return True if a rank waits in another call, or has ended its program, so that it is not stuck elsewhere."""
    calls = job.ranks.get(rank)
    if calls is None or not calls.has_evidence:
        return False
    return calls.end.how == "ended" if calls.end is not None else bool(calls.pending)
