"""The word for each reason, by what differs, and what is said of it: of calls that are written down.

Modules: ``analysis/hangs/hang_report.py``, ``analysis/hangs/hang_text.py``, ``analysis/hangs/call_text.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from dsexplore._internal.analysis.hangs.hang_report import REASONS, HangReport, report_of
from dsexplore._internal.analysis.hangs.rank_calls import RankEnd
from dsexplore._internal.analysis.hangs.trace_calls import job_of_trace
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables, TraceInfo
from tests.trace.conftest import build

Calls = Mapping[int, Sequence[dict[str, Any]]]


def report(calls: Calls, *, backend: str = "gloo", stacks: Mapping[int, str] | None = None, **info: Any) -> HangReport:
    """Return the report of calls of all ranks of one group, by rank; they have ended unless they say otherwise."""
    ranks = tuple(calls)
    plain = {"group": "0", "group_size": len(ranks), "state": "completed", "raw_op": "c10d::allreduce_"}
    rows = [{**plain, "rank": rank, **call} for rank, of_rank in calls.items() for call in of_rank]
    built = build(rows, ranks, **{"world_size": len(ranks), **info})
    groups = pl.DataFrame([("0", "", "", list(ranks), len(ranks), backend, "work")], schema=schema.GROUPS, orient="row")
    tables = Tables(events=built.events, modules=built.modules, groups=groups, info=built.info)
    return report_of(job_of_trace(tables, stacks))


FIRST = {"source": "train.py:1"}
WAITS = {"source": "train.py:7", "state": "scheduled"}


BARRIER = {"op": "barrier", "source": "train.py:9", "message_bytes": 0}


@pytest.mark.parametrize(
    ("odd", "reason", "said"),
    [
        (BARRIER, "other collective", "rank 2 waits in barrier (train.py:9"),
        ({"message_bytes": 2048}, "other size", "rank 2 waits in all_reduce (train.py:7, group 0, 2 KiB)"),
        ({"dtype": "float64", "message_bytes": 2048}, "other dtype", "(float32 for ranks 0, 1; float64 for rank 2)"),
        ({"dtype": "float16", "message_bytes": 512}, "other dtype", "(float32 for ranks 0, 1; float16 for rank 2)"),
    ],
)
def test_the_word_is_what_differs_and_both_sides_are_said(odd: dict[str, Any], reason: str, said: str) -> None:
    found = report({0: [FIRST, WAITS], 1: [FIRST, WAITS], 2: [FIRST, {**WAITS, **odd}]})
    assert (found.culprits, found.reason) == ((2,), reason)
    assert said in found.verdict()
    assert "ranks 0, 1 wait in all_reduce (train.py:7, group 0, 1 KiB)" in found.verdict()
    assert found.verdict().endswith("rank 2 is the odd one")


def test_the_sides_are_those_that_parted_and_not_where_ranks_wait_later() -> None:
    """Gloo let rank 1 pass with another dtype; all wait behind it."""
    odd = {**FIRST, "source": "train.py:5", "dtype": "float64", "message_bytes": 2048}
    same = {**FIRST, "source": "train.py:5"}
    found = report({0: [same, WAITS], 1: [odd, {**WAITS, "op": "barrier"}], 2: [same, WAITS]})
    assert (found.culprits, found.reason, found.sources) == ((1,), "other dtype", {1: "train.py:5"})
    assert found.verdict().startswith("rank 1 called all_reduce (train.py:5, group 0, 2 KiB); ranks 0, 2 called ")


def test_objects_may_differ_in_size() -> None:
    objects = [{**WAITS, "is_object": True, "message_bytes": size} for size in (100, 200, 300)]
    found = report({rank: [FIRST, one] for rank, one in enumerate(objects)})
    assert (found.mismatches.height, found.reason) == (0, "unknown")


def test_a_size_that_is_not_known_differs_from_none() -> None:
    unknown = {**WAITS, "message_bytes": 0, "dtype": "", "shape": []}
    found = report({0: [FIRST, WAITS], 1: [FIRST, unknown]})
    assert (found.mismatches.height, found.reason) == (0, "unknown")


def test_a_ring_of_sends_is_drawn() -> None:
    calls = {rank: [FIRST, {**WAITS, "op": "send", "peer": (rank + 1) % 4}] for rank in range(4)}
    found = report(calls)
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1, 2, 3), "messages in a circle")
    assert "; each sends first: 0→1→2→3→0; the evidence does not say" in found.verdict()
    back = report({rank: [FIRST, {**WAITS, "op": "recv", "peer": (rank - 1) % 4}] for rank in range(4)})
    assert "; each receives first: 0→3→2→1→0; " in back.verdict()


@pytest.mark.parametrize(
    ("received", "reason", "said"),
    [
        ({}, "messages in a circle", "these differ by tag, which the recorder does not keep, or by order"),
        ({"message_bytes": 64}, "other size", "these differ by size (1 KiB sent, 64 B received)"),
        ({"dtype": "float64"}, "other dtype", "these differ by dtype (float32 sent, float64 received)"),
    ],
)
def test_a_send_and_a_receive_that_wait_for_each_other_are_not_one_message(
    received: dict[str, Any], reason: str, said: str
) -> None:
    calls = {0: [FIRST, {**WAITS, "op": "send", "peer": 1}], 1: [FIRST, {**WAITS, "op": "recv", "peer": 0, **received}]}
    found = report(calls)
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1), reason)
    assert f"they wait for each other's message, and {said}" in found.verdict()
    assert report(calls, backend="nccl").reason == "unknown"  # which has no tags, and begins both on the device


@pytest.mark.parametrize(
    ("end", "reason", "line"),
    [
        ("raised ValueError (bad sample 17) at data.py:5", "raised", "data.py:5"),
        ("raised KeyError (look at home) at data.py:6", "raised", "data.py:6"),
        ("ended with exit code 3 at data.py:7", "ended", "data.py:7"),
        ("ended its block", "ended", "train.py:1"),
        ("was interrupted at data.py:8", "ended", "data.py:8"),
    ],
)
def test_how_the_missing_rank_ended_and_where_is_said(end: str, reason: str, line: str) -> None:
    found = report({0: [FIRST, WAITS], 1: [FIRST, WAITS], 2: [FIRST]}, ends=("running", "running", end))
    assert (found.culprits, found.reason, found.sources) == ((2,), reason, {2: line})
    assert found.verdict().startswith(
        f"rank 2 {end}: ranks 0, 1 wait for it in all_reduce (train.py:7, group 0, 1 KiB)"
    )


def test_a_rank_that_was_ended_by_its_launcher_has_said_nothing_of_its_program() -> None:
    notes = ("saved while its block ran: the process was ended by SIGTERM",)
    found = report({0: [FIRST, WAITS], 1: [FIRST]}, ends=("running", "running"), notes=notes)
    assert (found.culprits, found.reason) == ((1,), "did not come")
    assert found.verdict().startswith("rank 1 did not come: ")


def test_an_exception_is_the_reason_though_a_call_of_the_rank_is_in_flight() -> None:
    ends = ("raised RuntimeError (Connection closed by peer) at train.py:7", "raised ValueError (17) at data.py:5")
    failed, running = {**WAITS, "state": "failed"}, {**FIRST, "state": "scheduled", "group": "1"}
    found = report({0: [FIRST, failed], 1: [FIRST, running]}, ends=ends)
    assert (found.culprits, found.reason, found.sources) == ((1,), "raised", {1: "data.py:5"})
    assert found.notes == ("rank 0 raised RuntimeError (Connection closed by peer) at train.py:7",)


def test_a_rank_that_runs_elsewhere_is_outside_a_collective() -> None:
    stack = (
        '  File "/job/loader.py", line 12, in fetch\n    time.sleep(9)\n  File "/job/train.py", line 3, in <module>\n'
    )
    found = report({0: [FIRST, WAITS], 1: [FIRST]}, stacks={1: stack})
    assert (found.culprits, found.reason, found.sources) == ((1,), "outside a collective", {1: "loader.py:12"})
    assert found.verdict().endswith("rank 1 was at loader.py:12")


def barriers(rank: int, lines: str, waits: bool = False) -> list[dict[str, Any]]:
    """Barriers of a rank, at lines of one digit each; it waits in the last one, if in any."""
    calls = [{"op": "barrier", "message_bytes": 0, "source": f"train.py:{line}"} for line in lines]
    return [*calls[:-1], {**calls[-1], "state": "scheduled" if waits else "completed"}]


def test_ranks_that_pair_up_barriers_of_two_lines_parted_in_the_first_of_them() -> None:
    calls = {0: barriers(0, "777778777", True), 1: barriers(1, "777778777", True), 2: barriers(2, "77787778")}
    found = report(calls)
    assert (found.culprits, found.reason) == ((2,), "did not come")
    assert "they parted in collective 4 of group 0: ranks 0, 1 at train.py:7, rank 2 at train.py:8" in found.verdict()
    sides = found.mismatches.select("field", "number", "ranks", "source", "is_harmful").rows()
    assert sides == [("line", 4, [0, 1], "train.py:7", False), ("line", 4, [2], "train.py:8", False)]


@pytest.mark.parametrize(
    ("first", "second"),
    [("7777", "888"), ("7979", "898"), ("1777", "188")],
    ids=["another line for the root", "another root each time", "behind a common one"],
)
def test_ranks_that_always_call_from_lines_of_their_own_have_not_parted(first: str, second: str) -> None:
    found = report({0: barriers(0, first, True), 1: barriers(1, second)})
    assert (found.culprits, found.mismatches.height) == ((1,), 0)
    assert "parted" not in found.verdict()


def test_nothing_that_hangs_has_a_line_from_which_ranks_parted() -> None:
    found = report({0: barriers(0, "778"), 1: barriers(1, "787")})
    assert (found.reason, found.mismatches.height) == ("none", 0)


def test_each_reason_is_of_the_list() -> None:
    assert len(set(REASONS)) == 17
    assert RankEnd.of("") is None
    assert RankEnd.of("running") is None
    assert TraceInfo().ends == ()


def test_a_rank_that_was_killed_in_a_call_is_the_reason_though_it_had_come() -> None:
    ends = ("running", "raised RuntimeError (Connection closed by peer) at train.py:7", "was killed by SIGKILL")
    found = report({0: [FIRST, WAITS], 1: [FIRST, {**WAITS, "state": "failed"}], 2: [FIRST, WAITS]}, ends=ends)
    assert (found.culprits, found.reason, found.sources) == ((2,), "killed", {2: "train.py:7"})
    assert found.verdict().startswith("rank 2 was killed by SIGKILL: ranks 0, 1 wait for it in all_reduce (train.py:7")
    assert "elsewhere" not in found.verdict()


PARTS = {"op": "all_to_all", "source": "train.py:5", "message_bytes": 24, "send_splits": [2, 2, 2]}
ABORTED = ("was killed by SIGABRT", "raised RuntimeError (Connection closed by peer) at train.py:7", "running")


def all_to_all(sent: Mapping[int, Sequence[int]], received: Mapping[int, Sequence[int]], ends: Any) -> HangReport:
    """Return the calls of three ranks: an all_to_all, of two elements for each rank unless given, and an all_reduce."""
    even, rows = [2, 2, 2], {}
    for rank in range(3):
        splits = {"send_splits": list(sent.get(rank, even)), "recv_splits": list(received.get(rank, even))}
        size = 4 * max(map(sum, splits.values()))
        rows[rank] = [FIRST, {**PARTS, **splits, "message_bytes": size}, WAITS]
    return report({**rows, 0: rows[0][:2]} if ends is ABORTED else rows, ends=ends)


def test_a_rank_that_its_backend_aborts_in_an_all_to_all_is_not_to_blame_for_a_part_of_another_size() -> None:
    found = all_to_all({1: [4, 2, 2]}, {}, ABORTED)
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1), "other size")
    assert found.sources == {0: "train.py:5", 1: "train.py:5"}
    assert "(rank 1 sends 4 elements to rank 0, which expects 2); the evidence does not say" in found.verdict()


@pytest.mark.parametrize("sent", [{1: [4, 2, 3]}, {1: [0, 2, 9]}])
def test_a_rank_of_which_all_parts_differ_is_the_odd_one(sent: Mapping[int, Sequence[int]]) -> None:
    found = all_to_all(sent, {}, ABORTED)
    assert (found.culprits, found.reason, found.sources) == ((1,), "other size", {1: "train.py:5"})


def test_a_rank_that_is_aborted_after_an_all_to_all_whose_parts_fit_is_to_blame() -> None:
    found = all_to_all({1: [4, 2, 2]}, {0: [2, 4, 2]}, ABORTED)
    assert (found.culprits, found.reason) == ((0,), "killed")


def test_parts_that_differ_and_that_all_ranks_got_through_are_not_the_reason() -> None:
    found = all_to_all({1: [4, 2, 2]}, {}, ("running", "running", "running"))
    assert found.reason != "other size"


def test_a_call_of_a_killed_rank_has_ended_where_it_has_on_another() -> None:
    """Its process was gone before the file of its calls said so."""
    ends = ("running", "running", "was killed by SIGKILL")
    found = report({0: [FIRST, WAITS], 1: [FIRST, WAITS], 2: [{**FIRST, "state": "scheduled"}]}, ends=ends)
    assert (found.culprits, found.reason) == ((2,), "killed")
    assert "ranks 0, 1 wait for it in all_reduce (train.py:7" in found.verdict()


def test_most_ranks_that_are_in_code_of_their_own_are_not_one_that_called_too_much() -> None:
    stack = '  File "/job/loader.py", line 12, in fetch\n    lock.acquire()\n'
    calls: Calls = {0: [FIRST, {**WAITS, **BARRIER}], 1: [FIRST], 2: [FIRST]}
    found = report(calls, stacks={1: stack, 2: stack})
    assert (found.culprits, found.reason, found.sources[1]) == ((1, 2), "outside a collective", "loader.py:12")
    ended = report(calls, ends=("running", "ended its block", "ended its block"))
    assert (ended.culprits, ended.reason) == ((0,), "other collective")


def test_a_group_that_one_rank_makes_of_other_ranks_is_said() -> None:
    rows = {rank: [FIRST, {**WAITS, "group": "1@1" if rank == 1 else "1"}] for rank in range(3)}
    plain = {"group": "0", "group_size": 3, "state": "completed", "raw_op": "c10d::allreduce_"}
    built = build([{**plain, "rank": rank, **call} for rank, calls in rows.items() for call in calls], (0, 1, 2))
    members = {"0": [0, 1, 2], "1": [0, 1, 2], "1@1": [0, 1]}
    groups = [(name, "", "", ranks, len(ranks), "gloo", "work") for name, ranks in members.items()]
    info = replace(built.info, world_size=3)
    found = report_of(
        job_of_trace(replace(built, groups=pl.DataFrame(groups, schema=schema.GROUPS, orient="row"), info=info))
    )
    assert (found.culprits, found.reason) == ((1,), "other group order")
    assert "ranks 0, 2 made it of ranks 0–2, rank 1 made it of ranks 0, 1" in found.verdict()


@pytest.mark.parametrize(
    ("sizes", "end", "reason"),
    [
        ((32, 4096), "was killed by SIGABRT", "other size"),
        ((32, 32), "was killed by SIGABRT", "none"),
        ((32, 4096), "ended its block", "none"),
    ],
)
def test_a_rank_that_gloo_aborted_for_a_message_s_size_is_one_of_both_ends(
    sizes: tuple[int, int], end: str, reason: str
) -> None:
    sent = {"op": "send", "peer": 1, "message_bytes": sizes[0], "source": "train.py:3"}
    received = {"op": "recv", "peer": 0, "message_bytes": sizes[1], "source": "train.py:5", "state": "scheduled"}
    found = report({0: [FIRST, sent], 1: [FIRST, received], 2: [FIRST]}, ends=("ended its block", end, "running"))
    assert (found.reason, found.suspects) == (reason, (0, 1) if reason == "other size" else ())
    if reason == "other size":
        assert found.sources == {0: "train.py:3", 1: "train.py:5"}
        assert (
            "the ends of one message differ by size (32 B sent, 4 KiB received); rank 1 was killed" in found.verdict()
        )


def test_stages_of_a_pipeline_are_judged_by_stages_that_play_their_part() -> None:
    """Only the first stage receives twice at the end of its schedule."""
    to, back, sent_back = ({"op": op, "peer": peer} for op, peer in (("send", 1), ("recv", 1), ("send", 0)))
    first = [to, to, back, to, back, back, {**back, **WAITS}]
    forward = [{"op": "recv", "peer": 0}, {"op": "send", "peer": 2}]
    middle = [*forward, *forward, {"op": "recv", "peer": 2}, sent_back, *forward]
    middle = [*middle, *[{"op": "recv", "peer": 2}, sent_back] * 2, {"op": "recv", "peer": 0, **WAITS}]
    last = [{"op": op, "peer": 1} for op in ("recv", "send") * 3]
    found = report({0: first, 1: middle, 2: last}, ends=("running", "running", "ended its block"))
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1), "messages in a circle")
    assert found.verdict().startswith(
        "ranks 0, 1 wait in recv (train.py:7, group 0, 1 KiB); each receives first: 0→1→0"
    )
