"""The next call that a rank would have made, had it gone on as before: a program repeats its steps.

The calls before a place are looked for everywhere else, on the same rank and on others, as many of them as are
found; what followed there, most often, was to be expected here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

from dsexplore._internal.analysis.hangs.rank_calls import JobCalls, RankCall

Place = tuple[int, int]
"""A rank, and the place of a call in its text."""

_LONGEST = 64
"""Calls before a place that are compared at most."""


class ExpectedCalls:
    """The calls of all ranks as strings, one character per distinct call, to search sequences of calls fast."""

    def __init__(self, job: JobCalls) -> None:
        self._job = job

    def deviating(self, calls: Iterable[RankCall], begins: Mapping[int, int] | None = None) -> set[int]:
        """Return the ranks that made a call other than the expected one.

        Args:
            calls: one call per rank, at which the ranks diverge; where another rank was expected to make such a call,
                it is no evidence.
            begins: {rank: position to check from}; for ranks that are not in it only the given call is checked.
        """
        judged = list(calls)
        voters = self._members(judged)
        places = {(call.rank, self._places[call.rank][call.position]) for call in judged}
        unheard = self._messages_without_another(places)
        odd_ranks = set()
        for call in judged:
            first = (begins or {}).get(call.rank, call.position)
            looked_at = [at for position, at in self._places[call.rank].items() if first <= position <= call.position]
            if any(self._is_unexpected(call.rank, at, places, unheard, voters) for at in looked_at):
                odd_ranks.add(call.rank)
        return odd_ranks

    def unheard_of(self, calls: Iterable[RankCall]) -> set[int]:
        """Return the ranks whose call no rank makes in other groups of the kind; empty if that is so of all `calls`."""
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
        """Return the ranks that are in a group of the kind of each of these calls: the others cannot make such calls.

        Example: ranks 0 and 2 wait in a barrier of all ranks, rank 1 in one of the pair (0, 1). That rank 2 called what
            rank 0 did is no evidence against rank 1.
        """
        return set(self._texts).intersection(*(self._ranks_of_kind[call.kind] for call in calls))

    @cached_property
    def _ranks_of_kind(self) -> dict[str, set[int]]:
        ranks: dict[str, set[int]] = defaultdict(set)
        for calls_of_rank in self._job.ranks.values():
            for kind, group in {(call.kind, call.group) for call in calls_of_rank.calls}:
                ranks[kind].update(group.ranks)
        return ranks

    def _is_unexpected(self, rank: int, at: int, judged: set[Place], unheard: set[Place], voters: set[int]) -> bool:
        if (rank, at) in unheard:
            return False
        text = self._texts[rank]
        if text[at] in self._message_codes:
            voters = {voter for voter in voters if self._messages_of[voter] == self._messages_of[rank]}
        others, also_judged = judged | {(rank, at)}, unheard | {(rank, at)}
        voters = voters | {rank}
        votes = self._votes(text, at, others, voters) or self._votes(text, at, also_judged, voters)
        return bool(votes) and votes[text[at]] < max(votes.values())

    def _messages_without_another(self, judged: set[Place]) -> set[Place]:
        """Return the places of messages whose like occurs nowhere else in the job.

        For such a message, neither the calls of other ranks nor earlier steps tell whether one end called it by mistake
        or the other end left it out.
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
        """{rank: its messages by peer}: the first stage of a pipeline does not call what the middle ones do."""
        return {
            rank: {f"{call.op}{call.peer_ahead}" for call in calls_of_rank.calls if call.is_message}
            for rank, calls_of_rank in self._job.ranks.items()
        }

    @cached_property
    def _codes(self) -> dict[tuple[str, ...], str]:
        return {}

    def _code(self, call: RankCall) -> str:
        return self._codes.setdefault(call.token, chr(0x100 + len(self._codes)))

    @cached_property
    def _texts(self) -> dict[int, str]:
        """{rank: one character per call, after one for the start of the program if that is known}."""
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
