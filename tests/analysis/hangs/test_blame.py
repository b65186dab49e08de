"""Who is blamed, in hangs of our own making and in random ones.

Modules: ``analysis/hangs/blame.py``, ``analysis/hangs/hang_evidence.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsexplore
from dsexplore._internal.analysis.hangs.dump_calls import job_of_dumps
from dsexplore._internal.analysis.hangs.hang_report import HangReport, report_of
from dsexplore._internal.analysis.hangs.rank_calls import JobCalls, RankEnd
from dsexplore._internal.trace.importers.dumps import Dumps
from dsexplore._internal.trace.importers.recorder_dump import dump_of
from tests.analysis.hangs.hangs import HANGS, Hang
from tests.analysis.hangs.programs import STOP, Collective, Group, Recv, Send, Step, dumps, run, write


def report(hang: Hang, folder: Path) -> HangReport:
    found = dumps(
        run(hang.program, hang.size),
        hang.groups,
        keep=hang.keep,
        only_active=hang.only_active,
        empty=hang.empty,
        lost=hang.lost,
    )
    return dsexplore.explain_hang(write(found, folder))


def job_of(dump_of_rank: dict[int, dict[str, Any]]) -> JobCalls:
    """Return the calls of a job whose ranks' flight recorders hold this, see `dumps`."""
    return job_of_dumps(
        Dumps(tuple(dump_of(Path(f"_dump_{rank}"), content, rank) for rank, content in dump_of_rank.items()))
    )


@pytest.mark.parametrize("name", HANGS)
def test_the_guilty_rank_and_line_are_named_and_no_other(name: str, tmp_path: Path) -> None:
    hang = HANGS[name]
    found = report(hang, tmp_path / "dumps")
    assert (found.culprits, found.suspects, found.reason) == (hang.culprits, hang.suspects, hang.reason)
    lines = hang.line if isinstance(hang.line, tuple) else (hang.line,) * len(hang.culprits)
    of_culprits = [line for rank, line in found.sources.items() if rank in found.culprits]
    assert of_culprits == [f"/job/train.py:{line}" if line else "" for line in lines]
    assert found.culprits or found.sources.keys() <= set(found.suspects)


def _with_fitting_output(call: Collective) -> Collective:
    """Return a call whose output has room for the inputs of all ranks if its op gathers into one tensor."""
    return replace(call, received=call.elements * len(call.group.ranks)) if call.op == "_all_gather_base" else call


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, list[Group], list[Collective], int, int]:
    """Ranks, random groups of them, a program that all run in one order, and one rank with the call before which it
    stops although others still need it."""
    size = draw(st.integers(2, 9))
    members = st.lists(st.integers(0, size - 1), min_size=2, max_size=size, unique=True).map(sorted)
    groups = [
        Group(str(i), tuple(ranks), f"g{i}") for i, ranks in enumerate(draw(st.lists(members, min_size=1, max_size=6)))
    ]
    calls = st.builds(
        Collective,
        group=st.sampled_from(groups),
        op=st.sampled_from(["all_reduce", "_all_gather_base", "barrier", "broadcast"]),
        elements=st.integers(1, 3),
        blocking=st.booleans(),
    ).map(_with_fitting_output)
    program = draw(st.lists(calls, min_size=1, max_size=25))
    culprit = draw(st.sampled_from(program[-1].group.ranks))
    own = [i for i, call in enumerate(program) if culprit in call.group.ranks]
    return size, groups, program, culprit, draw(st.sampled_from(own))


@given(jobs(), st.sampled_from(["whole", "active", "cut", "empty", "lost"]))
@settings(max_examples=150, deadline=None)
def test_one_rank_that_stops_is_blamed_whatever_the_groups(job: Any, kept: str) -> None:
    size, groups, calls, culprit, stop = job

    def program(rank: int) -> Iterator[Step]:
        for i, call in enumerate(calls):
            if rank == culprit and i == stop:
                yield STOP
            if rank in call.group.ranks:
                yield call

    left = dumps(
        run(program, size),
        groups,
        keep=3 if kept == "cut" else None,
        only_active=kept == "active",
        empty=(culprit,) if kept == "empty" else (),
        lost=(culprit,) if kept == "lost" else (),
    )
    assert report_of(job_of(left)).culprits == (culprit,)


def test_a_rank_that_died_is_blamed_though_a_call_of_its_own_has_not_ended() -> None:
    """Rank 1 issued a call that rank 2 comes to later: where nothing says that it died, both wait for each other."""
    world, pair = Group("0", (0, 1, 2), "world"), Group("1", (1, 2), "pair")
    all_wait = Collective(group=world, op="all_reduce")
    of_pair = Collective(group=pair, op="all_reduce", blocking=False)

    def program(rank: int) -> Iterator[Step]:
        if rank == 1:
            yield of_pair
            yield STOP
        yield all_wait
        if rank == 2:
            yield of_pair

    left = dumps(run(program, 3), [world, pair])
    job = job_of(left)
    died = replace(job.ranks[1], end=RankEnd("killed", "was killed by SIGKILL"))
    found = report_of(replace(job, ranks={**job.ranks, 1: died}))
    assert (found.culprits, found.reason) == ((1,), "killed")
    assert found.verdict().startswith("rank 1 was killed by SIGKILL: ranks 0, 2 wait for it in all_reduce")


def test_a_rank_that_its_backend_aborts_in_a_mismatch_is_not_the_reason() -> None:
    """Rank 1 sends more than the others receive; gloo aborts rank 0, which gets it."""
    world = Group("0", (0, 1, 2), "world")

    def program(rank: int) -> Iterator[Step]:
        yield Collective(world, line=1)
        yield Collective(world, "all_to_all", 7 if rank == 1 else 6, line=2, received=6)
        yield STOP if rank == 0 else Collective(world, line=3)

    left = dumps(run(program, 3), [world])
    job = job_of(left)
    *ended, last = job.ranks[0].calls
    calls = (*ended, last._replace(state="started"))
    died = replace(job.ranks[0], calls=calls, end=RankEnd("killed", "was killed by SIGABRT"))
    found = report_of(replace(job, ranks={**job.ranks, 0: died}))
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1, 2), "other size")


def waits_for_a_message(sent: int) -> HangReport:
    """Return the waits for a message of four ranks that reduce in five steps, in the last of which rank 1 waits for a
    message of rank 0 that it does not send; in that many steps before, it did."""
    world = Group("0", (0, 1, 2, 3), "world")

    def program(rank: int) -> Iterator[Step]:
        for step in range(5):
            yield Collective(world, line=1)
            if rank == 1 and step >= 4 - sent:
                yield Recv(world, 0, line=2)
            if rank == 0 and 4 - sent <= step < 4:
                yield Send(world, 1, line=3)
        yield Collective(world, "barrier", 0, line=4)

    left = dumps(run(program, 4), [world])
    return report_of(job_of(left))


def test_of_the_first_message_of_its_kind_nobody_knows_which_end_is_wrong() -> None:
    found = waits_for_a_message(sent=0)
    assert (found.culprits, found.suspects, found.reason) == ((), (0, 1), "other collective")
    assert "rank 1 waits in recv (train.py:2" in found.verdict()
    assert found.verdict().endswith("the evidence does not say which of them is wrong")


def test_a_rank_that_sent_in_earlier_steps_is_the_odd_one_where_it_does_not() -> None:
    found = waits_for_a_message(sent=2)
    assert (found.culprits, found.reason) == ((0,), "other collective")


@pytest.mark.parametrize(
    ("kept", "blocking"),
    [({}, True), ({}, False), ({"keep": 1}, True), ({"keep": 2}, False), ({"only_active": True}, False)],
    ids=str,
)
def test_a_rank_whose_call_has_ended_on_the_others_is_the_one_that_is_behind(
    kept: dict[str, Any], blocking: bool
) -> None:
    world = Group("0", (0, 1, 2, 3), "default_pg")

    def program(rank: int) -> Iterator[Step]:
        for _ in range(5):
            yield Collective(world, line=7, blocking=blocking or rank != 2)
        yield STOP

    said = report_of(job_of(dumps(run(program, 4, stuck=(2, 4)), [world], **kept)))
    assert said.culprits == (2,)
    assert said.reason == "device"
    assert "ended on ranks 0, 1, 3" in said.verdict()
    assert "collective 4 of group default" in said.verdict()


def test_a_broadcast_that_has_ended_at_its_root_accuses_nobody_who_waits_in_it() -> None:
    world = Group("0", (0, 1, 2), "default_pg")

    def program(rank: int) -> Iterator[Step]:
        yield Collective(world, op="broadcast")
        yield STOP if rank == 0 else Collective(world)

    found = report_of(job_of(dumps(run(program, 3, stuck=(1, 1)), [world])))
    assert 1 not in found.culprits
