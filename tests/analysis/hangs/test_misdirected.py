"""Messages whose ends name different peers: who is odd, by what each line did before, and when nobody is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.analysis.hangs.test_reasons import report

BARRIER = {"op": "barrier", "source": "train.py:9", "message_bytes": 0}
OTHER_STACK = '  File "/job/loader.py", line 12, in fetch\n    time.sleep(9)\n'


def message(op: str, peer: int, **more: Any) -> dict[str, Any]:
    return {"op": op, "peer": peer, "source": f"train.py:{1 if op == 'send' else 2}", **more}


def waits(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "state": "scheduled"}


def calls(sent: Sequence[int], received: Sequence[int], third: Sequence[dict[str, Any]]) -> dict[int, Any]:
    """Return the calls of ranks 0, 1, 2: rank 0 sends to these, rank 1 receives from these; each waits in its last
    message."""
    of_first = [message("send", peer) for peer in sent]
    of_second = [message("recv", peer) for peer in received]
    return {
        0: [*of_first[:-1], waits(of_first[-1])],
        1: [*of_second[:-1], waits(of_second[-1])],
        2: list(third),
    }


@pytest.mark.parametrize(
    ("sent", "received", "odd", "line"),
    [((1, 1, 1), (0, 0, 2), 1, 2), ((1, 1, 2), (0, 0, 0), 0, 1)],
    ids=["a receive from a wrong peer", "a send to a wrong peer"],
)
@pytest.mark.parametrize("third", [[waits(BARRIER)], [BARRIER]], ids=["waits", "ended"])
def test_the_end_whose_peer_is_not_the_usual_one_is_odd(
    sent: Sequence[int], received: Sequence[int], odd: int, line: int, third: list[dict[str, Any]]
) -> None:
    ends = ("running", "running", "ended its block" if third == [BARRIER] else "running")
    found = report(calls(sent, received, third), ends=ends)
    assert (found.culprits, found.suspects, found.reason) == ((odd,), (), "other peer")
    assert found.sources == {odd: f"train.py:{line}"}
    assert f"rank 0 waits in send (train.py:1, group 0, rank 0 → {sent[-1]}" in found.verdict()
    assert f"rank 1 waits in recv (train.py:2, group 0, rank {received[-1]} → 1" in found.verdict()
    assert f"rank {sent[-1]} does not receive from rank 0" in found.verdict()
    assert f"rank {received[-1]} does not send to rank 1" in found.verdict()
    assert ("rank 2 waits elsewhere because of that" in found.verdict()) == (third != [BARRIER])


def test_of_a_first_message_nobody_is_accused() -> None:
    found = report(calls((1,), (2,), [BARRIER]), ends=("running", "running", "ended its block"))
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1), "other peer")
    assert found.sources == {0: "train.py:1", 1: "train.py:2"}
    assert "the evidence does not say which of them is wrong" in found.verdict()


def test_a_rank_that_has_not_come_to_its_send_is_what_the_others_wait_for() -> None:
    """Rank 1 gathers from each rank in turn, rank 2 is in code of its own, and rank 0 is ahead."""
    found = report(calls((1, 1), (0, 2), []), stacks={2: OTHER_STACK})
    assert (found.culprits, found.reason) == ((2,), "outside a collective")
    raised = report(calls((1,), (2,), []), ends=("running", "running", "raised ValueError (17) at data.py:5"))
    assert (raised.culprits, raised.reason) == ((2,), "raised")


def test_messages_of_different_sizes_are_not_taken_for_one() -> None:
    found = report({**calls((1,), (2,), [BARRIER]), 0: [waits(message("send", 1, message_bytes=64))]})
    assert found.reason != "other peer"


def test_a_loop_over_peers_has_no_usual_one() -> None:
    found = report(calls((1, 1, 1), (0, 2, 0, 2), []), stacks={2: OTHER_STACK})
    assert (found.culprits, found.reason) == ((2,), "outside a collective")
