"""Hangs of 16 ranks as jobs have them: shards, replicas, tensor parallel ranks, experts and pipelines, on devices.

Modules: ``analysis/hangs/``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from dsexplore._internal.analysis.hangs.dump_calls import job_of_dumps
from dsexplore._internal.analysis.hangs.hang_report import HangReport, report_of
from dsexplore._internal.trace.importers.dumps import Dumps
from dsexplore._internal.trace.importers.recorder_dump import dump_of
from tests.analysis.hangs.on_devices import Message, Op, Program, Rest, come_to_rest, recorded
from tests.analysis.hangs.programs import Group

RANKS = range(16)
Job = tuple[list[Program], list[Group]]


def grid(*axes: tuple[str, int]) -> tuple[dict[str, dict[int, Group]], list[Group]]:
    """Return by axis and rank the group of ranks along the axis; and all groups, the one of all ranks first."""
    everyone = Group("0", tuple(RANKS), "default_pg")
    groups = [everyone]
    found: dict[str, dict[int, Group]] = {"all": dict.fromkeys(RANKS, everyone)}
    step = 16
    for axis, size in axes:
        step //= size
        found[axis] = {}
        for rank in RANKS:
            first = rank - rank // step % size * step
            ranks = tuple(range(first, first + size * step, step))
            known = next((group for group in groups if (group.ranks, group.desc) == (ranks, f"mesh_{axis}")), None)
            found[axis][rank] = known or Group(str(len(groups)), ranks, f"mesh_{axis}")
            if known is None:
                groups.append(found[axis][rank])
    return found, groups


def job_of(
    axes: tuple[tuple[str, int], ...], train: Callable[[Program, dict[str, Group], int], None], steps: int = 3
) -> Job:
    """Return a job of some steps, after each of which all ranks reduce a loss and wait for their devices.

    Args:
        train: adds the rest of a step to a rank's program, given its groups by axis, and the rank.
    """
    groups, every = grid(*axes)
    programs = []
    for rank in RANKS:
        program, own = Program(), {axis: of_rank[rank] for axis, of_rank in groups.items()}
        for _ in range(steps):
            train(program, own, rank)
            program.call(own["all"], elements=1)
            program.sync()
        programs.append(program)
    return programs, every


def sharded(*axes: tuple[str, int]) -> Job:
    """FSDP2 on the last axis, and replicas along the first of two."""

    def train(program: Program, own: dict[str, Group], rank: int) -> None:
        shard = own[axes[-1][0]]
        gathers = [
            program.call(shard, "_all_gather_base", 9, received=9 * len(shard.ranks), waits=False) for _ in "abcd"
        ]
        for gather in gathers:
            program.wait(gather)
        reduced = []
        for layer in range(4):
            program.wait(program.call(shard, "_all_gather_base", 9, received=9 * len(shard.ranks), waits=False))
            elements = (9 + layer) * len(shard.ranks)
            call = program.call(shard, "_reduce_scatter_base", elements, received=9 + layer, waits=False)
            if len(axes) > 1:
                program.wait(call)
                call = program.call(own[axes[0][0]], elements=9 + layer, waits=False)
            reduced.append(call)
        for call in reduced:
            program.wait(call)

    return job_of(axes, train)


def tensor_parallel(replicas: int) -> Job:
    def train(program: Program, own: dict[str, Group], rank: int) -> None:
        reduced = []
        for layer in range(6):
            program.call(own["tp"], elements=512)
            if layer > 2:
                reduced.append(program.call(own["dp"], elements=4096 + layer, waits=False))
        for call in reduced:
            program.wait(call)

    return job_of((("dp", replicas), ("tp", 16 // replicas)), train)


def experts() -> Job:
    def train(program: Program, own: dict[str, Group], rank: int) -> None:
        for layer in range(6):
            program.call(own["ep"], "all_to_all", 500 + rank + layer, received=510 - rank)
        program.call(own["dp"], elements=99)

    return job_of((("dp", 4), ("ep", 4)), train)


def pipeline(stages: int) -> Job:
    """Return the calls of one forward, one backward; tensor parallel pairs."""

    def train(program: Program, own: dict[str, Group], rank: int) -> None:
        line = own["pp"]
        stage = line.ranks.index(rank)
        after = line.ranks[stage + 1] if stage + 1 < stages else None
        before = line.ranks[stage - 1] if stage else None
        one_step(program, line, own["tp"], min(stages - stage - 1, 4), before, after)
        program.call(own["dp"], "_reduce_scatter_base", 96, received=96 * stages // 8)

    return job_of((("pp", stages), ("dp", 8 // stages), ("tp", 2)), train, steps=2)


def one_step(program: Program, line: Group, pair: Group, warm_up: int, before: int | None, after: int | None) -> None:
    def send_and_receive(*wanted: tuple[str, int | None]) -> None:
        messages: list[Message] = [(way, peer) for way, peer in wanted if peer is not None]
        if messages:
            program.together(line, *messages)

    def compute() -> None:
        program.call(pair, elements=512)
        program.call(pair, elements=512)

    for _ in range(warm_up):
        send_and_receive(("recv", before))
        compute()
        send_and_receive(("send", after))
    if warm_up < 4:
        send_and_receive(("recv", before))
    for left in range(4 - warm_up, 0, -1):
        compute()
        send_and_receive(("send", after), ("recv", after))
        compute()
        send_and_receive(("send", before), ("recv", before if left > 1 else None))
    for _ in range(warm_up):
        send_and_receive(("recv", after))
        compute()
        send_and_receive(("send", before))


JOBS: dict[str, Callable[[], Job]] = {
    "FSDP": lambda: sharded(("dp", 16)),
    "HSDP 2×8": lambda: sharded(("replicas", 2), ("shards", 8)),
    "HSDP 4×4": lambda: sharded(("replicas", 4), ("shards", 4)),
    "TP 4": lambda: tensor_parallel(4),
    "TP 8": lambda: tensor_parallel(2),
    "experts": experts,
    "two stages": lambda: pipeline(2),
    "four stages": lambda: pipeline(4),
}
DUMPS: dict[str, dict[str, Any]] = {
    "whole": {},
    "timed": {"with_times": True},
    "active": {"only_active": True},
    "the last 60": {"keep": 60},
}


def pairwise(jobs: Iterable[str], cases: Iterable[str], dumps: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each job with each case, and in turn one of the ways to dump."""
    ways = list(dumps)
    for (at_job, job), (at_case, case) in product(enumerate(jobs), enumerate(cases)):
        yield job, case, ways[(at_job + at_case) % len(ways)]


def drawn(name: str, *more: object) -> tuple[random.Random, list[Program], list[Group]]:
    """Return what draws the places of a test, the same in each run of it, and the programs and groups of a job."""
    return random.Random(" ".join(map(str, (name, *more)))), *JOBS[name]()


def report(job: Rest, groups: Sequence[Group], **how: Any) -> HangReport:
    found = report_of_files(recorded(job, groups, **how))
    print(found.verdict())
    return found


def report_of_files(left: Mapping[int, Any]) -> HangReport:
    """Return the report of what each rank's file holds."""
    dumps = [dump_of(Path(f"dump_{rank}"), content, rank) for rank, content in left.items()]
    return report_of(job_of_dumps(Dumps(tuple(dumps))))


def late(program: Program, draw: random.Random) -> int:
    """Return an op that is issued, not in the first third."""
    return draw.choice([at for at in program.issued() if at > len(program.ops) // 3])


def late_call(program: Program, draw: random.Random) -> int:
    """Return a collective, not in the first third."""
    first = len(program.ops) // 3
    return draw.choice([at for at in program.issued() if at > first and program.ops[at].kind == "call"])


def assert_blamed_or_suspected(found: HangReport, rank: int) -> None:
    """Assert that a rank is the one culprit, or that there is none and the rank is a suspect."""
    assert found.culprits in ((), (rank,))
    assert found.culprits or rank in found.suspects


@pytest.mark.parametrize(("name", "left", "kept"), pairwise(JOBS, ("a dump", "an empty dump", "no dump"), DUMPS))
def test_a_rank_that_stops_is_named_and_no_other(name: str, left: str, kept: str) -> None:
    draw, programs, groups = drawn(name, left, kept)
    culprit = draw.choice(RANKS)
    job = come_to_rest(programs, {culprit: late(programs[culprit], draw)})
    gone = {"an empty dump": {"empty": [culprit]}, "no dump": {"lost": [culprit]}}.get(left, {})
    assert report(job, groups, **DUMPS[kept], **gone).culprits == (culprit,)


@pytest.mark.parametrize("kept", DUMPS)
@pytest.mark.parametrize("name", JOBS)
def test_of_two_ranks_that_stop_none_is_blamed_in_the_place_of_another(name: str, kept: str) -> None:
    draw, programs, groups = drawn(name, kept)
    culprits = {rank: late(programs[rank], draw) for rank in draw.sample(RANKS, 2)}
    found = report(come_to_rest(programs, culprits), groups, **DUMPS[kept])
    assert found.culprits
    assert set(found.culprits) <= set(culprits)


@pytest.mark.parametrize(
    ("name", "fault", "kept"), pairwise(JOBS, ("leaves one out", "calls one more", "another size"), DUMPS)
)
def test_a_rank_that_calls_otherwise_is_named_or_nobody(name: str, fault: str, kept: str) -> None:
    draw, programs, groups = drawn(name, fault, kept)
    culprit = draw.choice(RANKS)
    ops = programs[culprit].ops
    at = late_call(programs[culprit], draw)
    if fault == "leaves one out":
        ops[at] = Op("left out")
    elif fault == "calls one more":
        ops.insert(at, Op("call", ops[at].group, "broadcast", 7, 7))
    else:
        ops[at].elements += 3
    job = come_to_rest(programs)
    if job.hangs:
        found = report(job, groups, **DUMPS[kept])
        assert_blamed_or_suspected(found, culprit)
        assert found.culprits or kept != "whole" or name == "experts"


@pytest.mark.parametrize("with_status", [True, False])
@pytest.mark.parametrize("name", ["HSDP 4×4", "TP 4", "experts", "two stages", "four stages"])
def test_a_call_that_is_left_out_is_found_by_how_many_calls_the_ranks_alike_recorded(
    name: str, with_status: bool
) -> None:
    """It holds for dumps of active calls alone, which do not show earlier steps."""
    draw, programs, groups = drawn(name)
    culprit = draw.choice(RANKS)
    at = draw.choice([at for at in programs[culprit].issued()[-8:-2] if programs[culprit].ops[at].kind == "call"])
    programs[culprit].ops[at] = Op("left out")
    job = come_to_rest(programs)
    assert job.hangs
    found = report(job, groups, only_active=True, with_status=with_status)
    assert found.culprits == (culprit,)


def test_stages_of_a_pipeline_record_unlike_numbers_and_accuse_nobody_by_them() -> None:
    """Ranks 0 and 1 are a stage, ranks 2 and 3 another, that calls one more: which of ranks 0 and 1 is wrong, nobody
    says."""
    world, first, second = Group("0", (0, 1, 2, 3)), Group("1", (0, 1), "tp"), Group("2", (2, 3), "tp")
    programs = [Program() for _ in range(4)]
    for rank, program in enumerate(programs):
        for _ in range(3 if rank > 1 else 2):
            program.call(first if rank < 2 else second)
        program.call(world)
    programs[1].ops[0] = Op("left out")
    found = report(come_to_rest(programs), [world, first, second], only_active=True, with_status=False)
    assert (found.culprits, found.suspects) == ((), (0, 1))


@pytest.mark.parametrize("kept", DUMPS)
@pytest.mark.parametrize("name", JOBS)
def test_a_device_that_stops_is_named_where_the_recorder_took_times(name: str, kept: str) -> None:
    draw, programs, groups = drawn(name, kept)
    culprit = draw.choice(RANKS)
    found = report(come_to_rest(programs, devices={culprit: late(programs[culprit], draw)}), groups, **DUMPS[kept])
    assert_blamed_or_suspected(found, culprit)


@pytest.mark.parametrize("kept", DUMPS)
@pytest.mark.parametrize("name", JOBS)
def test_a_file_that_is_lost_does_not_hide_a_rank_that_stops(name: str, kept: str) -> None:
    """A rank without a file may have come, so it is not blamed if another one is missing."""
    draw, programs, groups = drawn(name, kept)
    culprit, other = draw.sample(RANKS, 2)
    job = come_to_rest(programs, {culprit: late(programs[culprit], draw)})
    found = report(job, groups, **DUMPS[kept], lost=[other])
    assert found.culprits == (culprit,)
    assert set(found.suspects) <= {other}
    assert not found.suspects or f"rank {other} left no record, which does not say whether it came" in found.verdict()


@pytest.mark.parametrize("kept", DUMPS)
@pytest.mark.parametrize("name", JOBS)
def test_of_two_ranks_that_stop_one_without_a_file_is_a_culprit_or_a_suspect(name: str, kept: str) -> None:
    draw, programs, groups = drawn(name, kept)
    first, second = draw.sample(RANKS, 2)
    at = late(programs[first], draw)
    job = come_to_rest(programs, {first: at, second: min(at, len(programs[second].ops))})
    found = report(job, groups, **DUMPS[kept], lost=[second])
    assert found.culprits
    assert set(found.culprits) <= {first, second}
    assert set(found.suspects) <= {second}


@pytest.mark.parametrize("only_active", [False, True])
@pytest.mark.parametrize("name", [name for name in JOBS if "stages" not in name])
def test_of_two_ranks_that_stop_at_one_place_both_are_named_though_the_file_of_one_is_empty(
    name: str, only_active: bool
) -> None:
    draw, programs, groups = drawn(name, only_active)
    first = draw.choice(RANKS)
    at = late(programs[first], draw)
    second = draw.choice([rank for rank in programs[first].ops[at].group.ranks if rank != first])
    job = come_to_rest(programs, {first: at, second: at})
    left = {**recorded(job, groups, only_active=only_active), second: None}
    assert report_of_files(left).culprits == tuple(sorted((first, second)))


@pytest.mark.parametrize("kept", DUMPS)
@pytest.mark.parametrize("name", JOBS)
def test_a_file_that_is_lost_is_not_taken_for_a_call_that_is_left_out(name: str, kept: str) -> None:
    draw, programs, groups = drawn(name, kept)
    culprit, other = draw.sample(RANKS, 2)
    programs[culprit].ops[late_call(programs[culprit], draw)] = Op("left out")
    job = come_to_rest(programs)
    if job.hangs:
        found = report(job, groups, **DUMPS[kept], lost=[other])
        assert_blamed_or_suspected(found, culprit)


@pytest.mark.parametrize("only_active", [False, True])
@pytest.mark.parametrize("name", JOBS)
def test_a_file_that_is_lost_does_not_hide_a_device_that_stops_where_times_were_taken(
    name: str, only_active: bool
) -> None:
    draw, programs, groups = drawn(name, only_active)
    culprit, other = draw.sample(RANKS, 2)
    job = come_to_rest(programs, devices={culprit: late(programs[culprit], draw)})
    found = report(job, groups, with_times=True, only_active=only_active, lost=[other])
    assert_blamed_or_suspected(found, culprit)


def in_one_group(*, killed: int | None = None, stuck: int | None = None, **how: Any) -> HangReport:
    """Sixteen ranks of FSDP of which one was killed, or the device of one has stalled, at one call of theirs; rank 3
    has left no file."""
    programs, groups = JOBS["FSDP"]()
    at = programs[0].issued()[15]
    stopped = dict.fromkeys([] if killed is None else [killed], at)
    devices = dict.fromkeys([] if stuck is None else [stuck], at)
    return report(come_to_rest(programs, stopped, devices), groups, lost=[3], **how)


def test_a_rank_that_was_killed_is_named_with_both_explanations_that_the_records_leave() -> None:
    found = in_one_group(killed=3)
    assert (found.culprits, found.reason) == ((3,), "did not come")
    assert found.verdict().startswith("rank 3 did not come, probably: ranks 0–2, 4–15 wait for it in ")
    assert found.verdict().endswith(
        "rank 3 left no record: it ended or stopped before that call, "
        "or only its file is lost, and the device of a waiting rank has stalled"
    )


def test_a_lost_file_beside_a_device_that_stands_still_is_the_same_record_and_the_sentence_allows_for_it() -> None:
    found = in_one_group(stuck=8)
    assert (found.verdict(), found.culprits) == (in_one_group(killed=3).verdict(), (3,))


def test_times_tell_a_rank_that_was_killed_from_a_device_that_stands_still() -> None:
    killed, stuck = in_one_group(killed=3, with_times=True), in_one_group(stuck=8, with_times=True)
    assert (killed.culprits, stuck.culprits) == ((3,), (8,))
    assert killed.verdict().endswith("rank 3 left no record, and the devices of all that wait have begun that call")
    assert stuck.reason == "device"
