"""Computes an order of the events of several simulated ranks, which have no clock but wait for one another.

Without waiting, all stages of a pipeline would seem to begin at once. `rounds` gives each event the earliest round in
which it can run:

- a rank issues one event per round, in program order;
- a collective runs in the round in which the last rank of its group that is in the trace has come to it;
- a receive runs after its send.

Worked example: rank 0 sends twice, rank 1 receives twice. The sends are in rounds 0 and 1, the receives in 1 and 2.

An event without a counterpart in the trace, such as a send to a rank that was not recorded, does not wait.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from dsexplore._internal.trace.tables import Tables

_Channel = tuple[int, int, str]
"""Sender, receiver and group of messages, which arrive in the order in which they are sent."""


@dataclass
class _Rank:
    """The rest of one rank's program."""

    rank: int
    rows: deque[int]
    """Rows of the events that have not run, in program order."""
    next_round: int = 0


@dataclass
class _World:
    """The ranks, and the messages and groups that they wait for."""

    ops: Sequence[str]
    groups: Sequence[str]
    """The ranks of each row's group as text, since processes may name one group differently."""
    peers: Sequence[int | None]
    batches: Sequence[int | None]
    ranks: dict[int, _Rank]
    members: dict[str, list[int]]
    """{group: its ranks in the trace}."""
    round_of: npt.NDArray[np.int64]
    sent: dict[_Channel, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    """The rounds of messages on their way."""
    to_come: dict[_Channel, int] = field(default_factory=lambda: defaultdict(int))
    """Number of messages that are still to be sent."""


def rounds(tables: Tables) -> npt.NDArray[np.int64]:
    """Return the earliest round in which each event can run, shape (events,); see the module's docstring.

    Ranks that wait for one another forever, as in a deadlock, continue as if there were nothing to wait for.
    """
    world = _world(tables)
    ready = deque(world.ranks.values())
    stuck = 0
    while ready:
        rank = ready.popleft()
        if not rank.rows:
            continue
        stuck = 0 if _run(world, rank) else stuck + 1
        ready.append(rank)
        if stuck > len(ready):
            _run_alone(world, min((other for other in ready if other.rows), key=lambda other: other.next_round))
            stuck = 0
    return world.round_of


def _world(tables: Tables) -> _World:
    """Return the world before its first round."""
    events = tables.events
    first_of_batch = pl.col("seq").min().over("rank", "batch")
    order = events.with_row_index("row").sort(
        "rank",
        pl.when(pl.col("batch").is_null()).then("seq").otherwise(first_of_batch),
        pl.col("op") == "recv",  # a batch sends before it waits for what it receives
        "seq",
    )
    ranks = {
        int(part["rank"][0]): _Rank(int(part["rank"][0]), deque(part["row"].to_list()))
        for part in order.partition_by("rank", maintain_order=True)
    }
    held = {group: list(of_group) for group, of_group in tables.groups.select("group", "ranks").iter_rows()}
    keys = {group: str(held.get(group, group)) for group in events["group"].unique()}
    members = {keys[group]: [rank for rank in held.get(group, ()) if rank in ranks] for group in keys}
    world = _World(
        ops=events["op"].to_list(),
        groups=[keys[group] for group in events["group"].to_list()],
        peers=events["peer"].to_list(),
        batches=events["batch"].to_list(),
        ranks=ranks,
        members=members,
        round_of=np.zeros(events.height, dtype=np.int64),
    )
    sends = events.filter((pl.col("op") == "send") & pl.col("peer").is_not_null())
    for sender, receiver, group in sends.select("rank", "peer", "group").iter_rows():
        world.to_come[sender, receiver, keys[group]] += 1
    return world


def _run(world: _World, rank: _Rank) -> bool:
    """Run the rank's next event, together with the others of its group; return False if it has to wait."""
    row = rank.rows[0]
    op, group, peer = world.ops[row], world.groups[row], world.peers[row]
    if op == "recv":
        return _receive(world, rank)
    if op == "send":
        if peer is not None:
            world.sent[rank.rank, peer, group].append(rank.next_round)
            world.to_come[rank.rank, peer, group] -= 1
        _run_alone(world, rank)
        return True
    together = [ready for member in world.members[group] if (ready := world.ranks[member]).rows] or [rank]
    if any(world.groups[ready.rows[0]] != group or world.ops[ready.rows[0]] in ("send", "recv") for ready in together):
        return False
    last = max(other.next_round for other in together)
    for other in together:
        other.next_round = last
        _run_alone(world, other)
    return True


def _receive(world: _World, rank: _Rank) -> bool:
    """Run the rank's next event, a receive; return False if its message has not been sent."""
    row = rank.rows[0]
    peer, group = world.peers[row], world.groups[row]
    channel = (peer if peer is not None else -1, rank.rank, group)
    if world.sent[channel]:
        rank.next_round = max(rank.next_round, world.sent[channel].popleft() + 1)
    elif world.to_come[channel]:
        return False
    _run_alone(world, rank)
    return True


def _run_alone(world: _World, rank: _Rank) -> None:
    """Run the rank's next event; the members of one coalesced call run in one round."""
    row = rank.rows.popleft()
    world.round_of[row] = rank.next_round
    batch = world.batches[row]
    if batch is None or not rank.rows or world.batches[rank.rows[0]] != batch:
        rank.next_round += 1
