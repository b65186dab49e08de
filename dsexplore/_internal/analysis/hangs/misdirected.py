"""Messages whose two ends name different peers: one rank sends to another than the one that waits for it.

Gloo's sends end when the other end is there, so both wait: the sender for a rank that does not receive from it, and the
rank that should have got the message for one that sends it nothing. The rank that they wait for has done its part.

Worked example: in each step rank 0 sends to rank 1, which receives from rank 0. In step 4 rank 1 receives from rank 2.
Rank 0 waits in its send, rank 1 in its receive, and rank 2, which never sent to it, in the barrier behind. Rank 1
received from rank 0 at this line before, so rank 1 is the odd one.

Without earlier messages, that rank 2 left out a send explains the same as that rank 1 names a wrong rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dsexplore._internal.analysis.hangs.rank_calls import Instance, JobCalls, RankCall

_USUAL = 2
"""Earlier messages with one peer from which on another peer is odd: a loop over peers has one with each in a round."""


class Misdirected(NamedTuple):
    """Two calls that would be one message, if both ends named each other."""

    sent: RankCall
    received: RankCall
    odd: int | None
    """The rank whose peer is another than before at this line; None where earlier messages do not say."""


def misdirected(job: JobCalls, heads: Iterable[RankCall]) -> Misdirected | None:
    """Return the first send and receive that miss each other; None if there are none, or something else explains them.

    Args:
        job: the evidence of all ranks.
        heads: the calls in which ranks wait.
    """
    alone = [call for call in heads if call.pair is not None and _is_alone(job.instance_of(call), call)]
    pairs = [(sent, received) for sent in alone for received in alone if _could_be_a_message(sent, received)]
    for sent, received in pairs:
        odd = [call for call in (received, sent) if _has_left_usual_peer(job, call)]
        if len(odd) == 1:
            return Misdirected(sent, received, odd[0].rank)
    for sent, received in pairs:
        third = next(iter({*_ends(sent), *_ends(received)} - {sent.rank, received.rank}))
        if _is_first(job, sent) and _is_first(job, received) and _has_gone_on(job, third):
            return Misdirected(sent, received, None)
    return None


def _ends(call: RankCall) -> Iterator[int]:
    yield from call.pair or ()


def _is_alone(instance: Instance, call: RankCall) -> bool:
    """Return True if a message has one end, though all calls of both its ranks are known."""
    return instance.calls.keys() == {call.rank} and bool(instance.absent) and not instance.id.part


def _could_be_a_message(sent: RankCall, received: RankCall) -> bool:
    """Return True if two calls of one group could be a message, but name another peer at one of the ends."""
    if sent.op != "send" or received.op != "recv" or sent.group != received.group or sent.rank == received.rank:
        return False
    names = len({*_ends(sent), *_ends(received)})
    return names == 3 and (sent.dtype, sent.message_bytes) == (received.dtype, received.message_bytes)


def _peer(call: RankCall) -> int:
    return next(end for end in _ends(call) if end != call.rank)


def _earlier_calls(job: JobCalls, call: RankCall) -> list[RankCall]:
    """Return the calls that a rank made at the same line before."""
    same = (
        earlier
        for earlier in job.ranks[call.rank].calls
        if earlier.position < call.position and earlier.pair is not None
    )
    return [
        earlier for earlier in same if (earlier.op, earlier.source, earlier.group) == (call.op, call.source, call.group)
    ]


def _has_left_usual_peer(job: JobCalls, call: RankCall) -> bool:
    peers = [_peer(earlier) for earlier in _earlier_calls(job, call)]
    return len(peers) >= _USUAL and len(set(peers)) == 1 and peers[0] != _peer(call)


def _is_first(job: JobCalls, call: RankCall) -> bool:
    return not _earlier_calls(job, call)


def _has_gone_on(job: JobCalls, rank: int) -> bool:
    """Return True if a rank is in a later call, or past its program: nothing but the message itself held it up."""
    calls = job.ranks.get(rank)
    if calls is None or not calls.has_evidence:
        return False
    return calls.end.how == "ended" if calls.end is not None else bool(calls.pending)
