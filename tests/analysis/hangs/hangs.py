"""Hangs of our own making: each a program, with the rank that is to blame and the line that it is to blame for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tests.analysis.hangs.programs import STOP, Batch, Collective, Group, Program, Recv, Send, Step

WORLD4 = Group("0", (0, 1, 2, 3), "default_pg")
TP = (Group("1", (0, 1), "mesh_tp"), Group("2", (2, 3), "mesh_tp"))
DP = (Group("3", (0, 2), "mesh_dp"), Group("4", (1, 3), "mesh_dp"))
ALL4 = (WORLD4, *TP, *DP)

PAIR = Group("0", (0, 1), "default_pg")
OTHER = Group("1", (0, 1), "mesh_tp")
THIRD = Group("2", (0, 1), "mesh_ep")


@dataclass(frozen=True)
class Hang:
    """A program that hangs, and why."""

    program: Program
    culprits: tuple[int, ...]
    line: int | tuple[int, ...]
    """The line of each culprit: of its differing call, or of its last one; 0 if it is unknown."""
    size: int = 4
    groups: tuple[Group, ...] = ALL4
    lost: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    only_active: bool = False
    keep: int | None = None
    suspects: tuple[int, ...] = ()
    reason: str = field(default="did not come")


def of(rank: int, groups: tuple[Group, ...]) -> Group:
    """Return the group of a rank."""
    return next(group for group in groups if rank in group.ranks)


def step(rank: int) -> Iterator[Step]:
    """Yield the calls of one training step: two in the tensor-parallel group, a reduction over data-parallel ranks."""
    yield Collective(of(rank, TP), "_all_gather_base", 512, line=10)
    yield Collective(of(rank, TP), "all_reduce", 512, line=11)
    yield Collective(of(rank, DP), "all_reduce", 4096, line=12)


def steps(rank: int, count: int) -> Iterator[Step]:
    for _ in range(count):
        yield from step(rank)


def slow_loader(rank: int) -> Iterator[Step]:
    yield from steps(rank, 3)
    if rank == 2:
        yield STOP
    yield from steps(rank, 3)


def early_exit(rank: int) -> Iterator[Step]:
    yield from steps(rank, 2 if rank == 1 else 4)


def early_at_the_end(rank: int) -> Iterator[Step]:
    """Rank 1 has fewer batches, and waits for the others where the program ends."""
    yield from steps(rank, 2 if rank == 1 else 4)
    yield Collective(WORLD4, "barrier", 0, line=20)


def skipped(rank: int) -> Iterator[Step]:
    for i in range(6):
        for call in step(rank):
            if not (rank == 3 and i == 4 and call.line == 11):  # type: ignore[union-attr]
                yield call


def skipped_in_the_world(rank: int) -> Iterator[Step]:
    for i in range(5):
        yield Collective(WORLD4, "all_reduce", 100, line=1)
        if not (rank == 2 and i == 3):
            yield Collective(WORLD4, "broadcast", 7, line=2)
        yield Collective(WORLD4, "all_reduce", 200, line=3)


def divergent_branch(rank: int) -> Iterator[Step]:
    for _ in range(17):
        yield Collective(WORLD4, "all_reduce", 64, line=1)
    if rank == 1:
        yield Collective(WORLD4, "_all_gather_base", 1024, line=2)
    else:
        yield Collective(WORLD4, "all_reduce", 4096, line=3)


def wrong_dtype(rank: int) -> Iterator[Step]:
    yield from steps(rank, 2)
    yield Collective(WORLD4, "all_reduce", 32, line=5, dtype="Half" if rank == 0 else "Float")
    yield from steps(rank, 2)


def wrong_size(rank: int) -> Iterator[Step]:
    yield from steps(rank, 2)
    yield Collective(WORLD4, "all_reduce", 33 if rank == 3 else 32, line=6)
    yield from steps(rank, 2)


def two_groups(rank: int) -> Iterator[Step]:
    """Six good steps, then rank 1 takes the second group first."""
    for i in range(7):
        calls = [Collective(PAIR, "all_reduce", 10, line=1), Collective(OTHER, "all_reduce", 20, line=2)]
        yield from reversed(calls) if rank == 1 and i == 6 else calls


def three_groups(rank: int) -> Iterator[Step]:
    order = [Collective(group, "all_reduce", 10, line=i) for i, group in enumerate((PAIR, OTHER, THIRD), 1)]
    for _ in range(4):
        yield from order
    yield order[0]
    yield from [order[2], order[1]] if rank == 0 else [order[1], order[2]]


RING = (Group("0", (0, 1), "a"), Group("1", (1, 2), "b"), Group("2", (0, 2), "c"))


def ring_of_groups(rank: int) -> Iterator[Step]:
    """Three groups in a circle: each rank shares one with each other; in the last step rank 2 takes its last first,
    and rank 1 does too, so that each waits for the next."""
    mine = [group for group in RING if rank in group.ranks]
    for i in range(5):
        calls = [Collective(group, "all_reduce", 5, line=int(group.name) + 1) for group in mine]
        if i == 4 and rank in (1, 2):
            calls.reverse()
        yield from calls


def lone_extra(rank: int) -> Iterator[Step]:
    yield from steps(rank, 4)
    if rank == 0:
        yield Collective(WORLD4, "all_reduce", 1, line=30)


def logging_on_one_rank(rank: int) -> Iterator[Step]:
    """Rank 0 reduces a loss for its log, which nobody else does; then all go on."""
    for i in range(6):
        yield from step(rank)
        if rank == 0 and i == 3:
            yield Collective(WORLD4, "all_reduce", 1, line=31)
        yield Collective(WORLD4, "barrier", 0, line=21)


def two_stopped(rank: int) -> Iterator[Step]:
    yield from steps(rank, 2)
    if rank in (1, 2):
        yield STOP
    yield from steps(rank, 2)


def two_stopped_in_two_groups(rank: int) -> Iterator[Step]:
    """Ranks 1 and 2 stop before a reduction over data-parallel ranks, each in a group of its own."""
    yield from steps(rank, 2)
    for call in step(rank):
        if rank in (1, 2) and isinstance(call, Collective) and call.line == 12:
            yield STOP
        yield call


def stopped_before_its_pair(rank: int) -> Iterator[Step]:
    """Rank 3 stops in a step; rank 2 waits for it in their pair, and rank 0 for rank 2 in the next group."""
    yield from steps(rank, 2)
    for call in step(rank):
        if rank == 3 and isinstance(call, Collective) and call.line == 11:
            yield STOP
        yield call


def stopped_behind_another(rank: int) -> Iterator[Step]:
    """Rank 1 stops in a step, so no reduction over data-parallel ranks ends; rank 2 stops too, after it issued its
    own, where rank 3 goes on to the next step."""
    for i in range(3):
        for call in step(rank):
            if rank == 1 and i == 1 and isinstance(call, Collective) and call.line == 11:
                yield STOP
            is_reduction = isinstance(call, Collective) and call.line == 12
            yield replace(call, blocking=False) if is_reduction else call
        if rank == 2 and i == 1:
            yield STOP


STAGES = Group("5", (0, 1, 2, 3), "mesh_pp")


def pipeline(rank: int) -> Iterator[Step]:
    """Activations down four stages; stage 2 stops before its third micro-batch."""
    for i in range(5):
        if rank == 2 and i == 3:
            yield STOP
        if rank > 0:
            yield Recv(STAGES, rank - 1, line=40)
        if rank < 3:
            yield Send(STAGES, rank + 1, line=41)


def batched_pipeline(rank: int) -> Iterator[Step]:
    """Yield the same calls with sends and receives in one coalesced call, round a ring."""
    for i in range(6):
        if rank == 3 and i == 4:
            yield STOP
        yield Batch((Send(STAGES, (rank + 1) % 4, line=42), Recv(STAGES, (rank - 1) % 4, line=43)))
        yield Collective(WORLD4, "all_reduce", 2, line=44)


def fewer_microbatches(rank: int) -> Iterator[Step]:
    """Rank 1 expects one message more than rank 0 sends."""
    for _ in range(3):
        if rank == 0:
            yield Send(PAIR, 1, line=50)
        else:
            yield Recv(PAIR, 0, line=51)
    if rank == 1:
        yield Recv(PAIR, 0, line=51)


def asynchronous(rank: int) -> Iterator[Step]:
    """Reductions overlap with what follows; rank 3 stops while its own are in flight."""
    for i in range(4):
        yield Collective(of(rank, TP), "all_reduce", 512, line=11)
        if rank == 3 and i == 2:
            yield STOP
        yield Collective(of(rank, DP), "all_reduce", 4096, line=12, blocking=False)


PP = (Group("6", (0, 2), "mesh_pp"), Group("7", (1, 3), "mesh_pp"))


def prefetching_pipeline(rank: int) -> Iterator[Step]:
    """Two stages of two tensor-parallel ranks; the second posts its next receive before it computes. Rank 3 stops
    there, with that receive in flight, for which the first stage waits for gradients."""
    group, peer = of(rank, PP), (rank + 2) % 4
    if rank >= 2:
        yield Recv(group, peer, line=70, blocking=False)
    for i in range(4):
        if rank < 2:
            yield Send(group, peer, line=71)
            yield Collective(of(rank, TP), "all_reduce", 512, line=72)
            yield Recv(group, peer, line=73)
        else:
            yield Recv(group, peer, line=74, blocking=False)
            if rank == 3 and i == 2:
                yield STOP
            yield Collective(of(rank, TP), "all_reduce", 512, line=75)
            yield Send(group, peer, line=76)


WORLD3, FIRST_PAIR = Group("0", (0, 1, 2), "default_pg"), Group("1", (0, 1), "undefined")


def barrier_of_a_pair(rank: int) -> Iterator[Step]:
    """Rank 1 calls a barrier of a pair, rank 0 does not. Rank 2, which is not in the pair, cannot say who is wrong."""
    yield Collective(WORLD3, "all_reduce", 3, line=1)
    if rank == 1:
        yield Collective(FIRST_PAIR, "barrier", 0, line=2)
    yield Collective(WORLD3, "barrier", 0, line=3)


def undecided(rank: int) -> Iterator[Step]:
    """Two ranks, two groups, in the first step already: nobody can say who is wrong."""
    calls = [Collective(PAIR, "all_reduce", 10, line=1), Collective(OTHER, "all_reduce", 20, line=2)]
    yield from calls if rank == 0 else reversed(calls)


def uneven_gathers_first(rank: int) -> Iterator[Step]:
    """Gathers of different parts, which is allowed, before rank 1 leaves."""
    for _ in range(3):
        yield Collective(WORLD4, "all_gather", 10 + rank, line=60, received=46)
    if rank == 1:
        yield STOP
    yield Collective(WORLD4, "all_reduce", 5, line=61)


HANGS = {
    "a slow data loader": Hang(slow_loader, (2,), 12),
    "a slow data loader, empty dump": Hang(slow_loader, (2,), 0, empty=(2,)),
    "a slow data loader, no dump": Hang(slow_loader, (2,), 0, lost=(2,)),
    "a slow data loader, only what is active": Hang(slow_loader, (2,), 0, only_active=True),
    "a slow data loader, the first calls lost": Hang(slow_loader, (2,), 12, keep=5),
    "early exit": Hang(early_exit, (1,), 12),
    "fewer batches on one rank": Hang(early_at_the_end, (1,), 20, reason="other group order"),
    "a collective skipped": Hang(skipped, (3,), 10, reason="other collective"),
    "a collective skipped in the world": Hang(skipped_in_the_world, (2,), 3, reason="other collective"),
    "a divergent branch": Hang(divergent_branch, (1,), 2, reason="other collective"),
    "another dtype": Hang(wrong_dtype, (0,), 5, reason="other dtype"),
    "another size": Hang(wrong_size, (3,), 6, reason="other size"),
    "deadlock over two groups": Hang(two_groups, (1,), 2, 2, (PAIR, OTHER), reason="other group order"),
    "deadlock over three groups": Hang(three_groups, (0,), 3, 2, (PAIR, OTHER, THIRD), reason="other group order"),
    "deadlock round three groups": Hang(ring_of_groups, (1, 2), (2, 3), 3, RING, reason="other group order"),
    "an extra collective at the end": Hang(lone_extra, (0,), 30, reason="other collective"),
    "an extra collective on one rank": Hang(logging_on_one_rank, (0,), 31, reason="other collective"),
    "two ranks stopped": Hang(two_stopped, (1, 2), 12),
    "two ranks stopped, one left no record": Hang(two_stopped_in_two_groups, (1, 2), (11, 0), lost=(2,)),
    "two ranks stopped, one left an empty record": Hang(two_stopped_in_two_groups, (1, 2), (11, 0), empty=(2,)),
    "no record of a rank that waits": Hang(stopped_before_its_pair, (3,), 10, lost=(2,)),
    "two ranks stopped, one behind another": Hang(stopped_behind_another, (1, 2), (10, 12)),
    "a pipeline's stage stopped": Hang(pipeline, (2,), 41, groups=(STAGES,)),
    "a ring of coalesced messages": Hang(batched_pipeline, (3,), 44, groups=(WORLD4, STAGES)),
    "a ring of coalesced messages, cut": Hang(batched_pipeline, (3,), 44, groups=(WORLD4, STAGES), keep=4),
    "a pipeline that receives ahead": Hang(prefetching_pipeline, (3,), 74, groups=(*TP, *PP)),
    "a message too few": Hang(fewer_microbatches, (0,), 50, 2, (PAIR,)),
    "overlapped reductions": Hang(asynchronous, (3,), 11),
    "a barrier of a pair": Hang(
        barrier_of_a_pair, (), 0, 3, (WORLD3, FIRST_PAIR), suspects=(0, 1), reason="other group order"
    ),
    "uneven gathers": Hang(uneven_gathers_first, (1,), 60),
    "two ranks, no history": Hang(undecided, (), 0, 2, (PAIR, OTHER), suspects=(0, 1), reason="other group order"),
}
