"""Predicts the next call of a rank from earlier steps, as a program repeats its steps.

The longest run of calls before a place that also occurs elsewhere, on the same rank or on others, is searched. The call
that most often followed it there is the expected one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

from dsexplore._internal.analysis.hangs.rank_calls import Instance, JobCalls, RankCall

Place = tuple[int, int]
"""(rank, index of a call in its text)."""

_LONGEST = 64
"""Maximum number of calls before a place that are compared."""


class ExpectedCalls:
    """The calls of all ranks as strings, one character per distinct call, to search sequences of calls fast."""

    def __init__(self, job: JobCalls) -> None:
        self._job = job

    def deviating(self, calls: Iterable[RankCall], begins: Mapping[int, int] | None = None) -> set[int]:
        """Return the ranks that made a call other than the expected one.

        Args:
            calls: one call per rank, at which the ranks diverge; these calls are no evidence for each other.
            begins: {rank: position of the first call to check}. For other ranks, and for None, only their call in
                ``calls`` is checked.
        """
        judged = list(calls)
        voters = self._members(judged)
        places = {(call.rank, self._places[call.rank][call.position]) for call in judged}
        unique = self._unique_messages(places)
        unexpected = set()
        for call in judged:
            first = (begins or {}).get(call.rank, call.position)
            checked = [at for position, at in self._places[call.rank].items() if first <= position <= call.position]
            if any(self._is_unexpected(call.rank, at, places, unique, voters) for at in checked):
                unexpected.add(call.rank)
        return unexpected

    def unheard_of(self, calls: Iterable[RankCall]) -> set[int]:
        """Return the ranks whose call no rank makes in other groups of the kind; empty if that holds for all calls."""
        judged = list(calls)
        elsewhere = {
            call.token
            for rank, calls_of_rank in self._job.ranks.items()
            if rank not in judged[0].group.ranks
            for call in calls_of_rank.calls
        }
        unheard = {call.rank for call in judged if call.token not in elsewhere}
        return unheard if len(unheard) < len(judged) else set()

    def is_expected(self, rank: int, call: RankCall) -> bool:
        """Return True if `call`, made by another rank, is the most likely next call of `rank`."""
        text = self._texts.get(rank, "")
        place = (call.rank, self._places[call.rank][call.position])
        votes = self._votes(text, len(text), {place, (rank, len(text))}, self._members([call]) | {rank})
        return bool(votes) and votes[self._code(call)] == max(votes.values())

    def _members(self, calls: Iterable[RankCall]) -> set[int]:
        """Return the ranks that could make all these calls, as they are in groups of the kinds of all of them.

        Example: ranks 0 and 2 wait in a barrier of all ranks, rank 1 in one of the pair (0, 1). Rank 2 is not in such a
        pair, so its calls are no evidence against rank 1.
        """
        return set(self._texts).intersection(*(self._ranks_of_kind[call.kind] for call in calls))

    @cached_property
    def _ranks_of_kind(self) -> dict[str, set[int]]:
        """{kind of groups: the ranks in such groups}."""
        ranks: dict[str, set[int]] = defaultdict(set)
        for calls_of_rank in self._job.ranks.values():
            for kind, group in {(call.kind, call.group) for call in calls_of_rank.calls}:
                ranks[kind].update(group.ranks)
        return ranks

    def _is_unexpected(self, rank: int, at: int, judged: set[Place], unique: set[Place], voters: set[int]) -> bool:
        """Return True if a call is not the expected one.

        Args:
            rank: the rank of the call.
            at: index of the call in the rank's text.
            judged: all places that are judged. They do not vote, unless there is no other vote.
            unique: the places among them that never count as unexpected, and never vote.
            voters: the ranks whose calls vote, besides `rank`.
        """
        if (rank, at) in unique:
            return False
        text = self._texts[rank]
        if text[at] in self._message_codes:
            voters = {voter for voter in voters if self._messages_of[voter] == self._messages_of[rank]}
        voters = voters | {rank}
        votes = self._votes(text, at, judged | {(rank, at)}, voters)
        votes = votes or self._votes(text, at, unique | {(rank, at)}, voters)
        return bool(votes) and votes[text[at]] < max(votes.values())

    def _unique_messages(self, judged: set[Place]) -> set[Place]:
        """Return the places of messages that occur nowhere else in the job.

        For such a message, neither other ranks nor earlier steps show whether one end called it by mistake, or the
        other end omitted it.
        """
        codes = Counter(self._texts[rank][at] for rank, at in judged)
        alone = {
            code
            for code in self._message_codes & codes.keys()
            if sum(text.count(code) for text in self._texts.values()) == codes[code]
        }
        return {(rank, at) for rank, at in judged if self._texts[rank][at] in alone}

    def _votes(self, text: str, at: int, excluded: set[Place], voters: set[int]) -> Counter[str]:
        """Count which calls of `voters` follow the longest run of calls before `at` that also occurs elsewhere."""
        for length in sorted({min(_LONGEST, at), 32, 16, 8, 4, 2, 1}, reverse=True):
            if 0 < length <= at:
                votes = self._following(text[at - length : at], excluded, voters)
                if votes:
                    return votes
        return Counter()

    def _following(self, run: str, excluded: set[Place], voters: set[int]) -> Counter[str]:
        """Count the calls of `voters` that follow a run of calls, outside of `excluded` places."""
        votes: Counter[str] = Counter()
        for rank in voters:
            text = self._texts[rank]
            position = text.find(run)
            while position >= 0:
                follower = position + len(run)
                if follower < len(text) and (rank, follower) not in excluded:
                    votes[text[follower]] += 1
                position = text.find(run, position + 1)
        return votes

    @cached_property
    def _message_codes(self) -> set[str]:
        calls = (call for calls_of_rank in self._job.ranks.values() for call in calls_of_rank.calls if call.is_message)
        return set(map(self._code, calls))

    @cached_property
    def _messages_of(self) -> dict[int, set[str]]:
        """{rank: kinds of its messages by peer}; the first stage of a pipeline has others than the middle ones."""
        return {
            rank: {f"{call.op}{call.peer_ahead}" for call in calls_of_rank.calls if call.is_message}
            for rank, calls_of_rank in self._job.ranks.items()
        }

    @cached_property
    def _codes(self) -> dict[tuple[str, ...], str]:
        """{token of a call: its character}, which `_code` extends."""
        return {}

    def _code(self, call: RankCall) -> str:
        """Return the character that stands for a call."""
        return self._codes.setdefault(call.token, chr(0x100 + len(self._codes)))

    @cached_property
    def _texts(self) -> dict[int, str]:
        """{rank: one character per call}, which begins with \\x01 if the first call of the program is known."""
        return {
            rank: ("\x01" if calls_of_rank.is_whole else "") + "".join(map(self._code, calls_of_rank.calls))
            for rank, calls_of_rank in self._job.ranks.items()
            if calls_of_rank.has_evidence
        }

    @cached_property
    def _places(self) -> dict[int, dict[int, int]]:
        """{rank: {position of a call: its index in the rank's text}}."""
        return {
            rank: {call.position: at + calls_of_rank.is_whole for at, call in enumerate(calls_of_rank.calls)}
            for rank, calls_of_rank in self._job.ranks.items()
            if calls_of_rank.has_evidence
        }


def last_together(job: JobCalls, instance: Instance) -> dict[int, int]:
    """Return {rank: position after its last call in the same group before `instance`}; 0 if there is none."""
    before: dict[int, int] = {}
    for rank, call in instance.calls.items():
        in_group = (other for other in job.ranks[rank].calls if other.group == call.group and not other.is_message)
        earlier = [other.position for other in in_group]
        before[rank] = max((position for position in earlier if position < call.position), default=-1) + 1
    return before
