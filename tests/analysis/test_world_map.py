"""Which ranks the recorded ones talk to, inside a node and between nodes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore import Trace
from dsexplore._internal.analysis.link_flows import BETWEEN, INSIDE
from dsexplore._internal.errors import UsageError

MIB = 1 << 20


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Rank 0 of 16 with tp inside a node of 8 and dp across two: one all_reduce of 1 MiB each, in each of two steps."""
    with dsexplore.simulate(mesh="dp=2,tp=8") as mesh, dsexplore.commtrace() as trace:
        for _ in range(2):
            for axis in ("tp", "dp"):
                dist.all_reduce(torch.ones(MIB // 4), group=mesh[axis].get_group())
            trace.step()
    return trace


def test_bytes_are_per_step_and_shared_among_the_group(trace: Trace) -> None:
    world = trace.world_map()
    assert (world.world_size, world.nodes, world.steps) == (16, 2, 2)
    assert world.to_each("tp").tolist() == [0] + [2 * MIB * 7 / 8 / 7] * 7 + [0] * 8
    assert world.to_each("dp").nonzero()[0].tolist() == [8]
    assert world.to_each().sum() == 2 * MIB * 7 / 8 + MIB


def test_links_are_told_apart_by_level(trace: Trace) -> None:
    assert trace.world_map().to_frame().rows() == [
        (0, "dp", BETWEEN, 1, MIB, 1),
        (0, "tp", INSIDE, 7, 2 * MIB * 7 // 8, 1),
    ]
    of_four = trace.world_map(ranks_per_node=4).to_frame().filter(axis="tp")
    assert dict(of_four.select("level", "peers").iter_rows()) == {INSIDE: 3, BETWEEN: 4}
    assert of_four["wire_bytes"].sum() == 2 * MIB * 7 // 8


def test_a_rank_selects_what_it_takes_part_in(trace: Trace) -> None:
    world = trace.world_map()
    assert world.talks_to(8).events["axis"].unique().to_list() == ["dp"]
    assert len(world.talks_to(1)) == 2
    assert len(world.talks_to(1, "dp")) == 0
    assert len(world.talks_to(15)) == 0


def test_messages_go_to_their_peer() -> None:
    with dsexplore.simulate(4, rank=1), dsexplore.commtrace() as trace:
        dist.send(torch.ones(256), 3)
    world = trace.world_map(2)
    assert world.to_each().tolist() == [0, 0, 0, 1024]
    assert len(world.talks_to(3)) == 1
    assert len(world.talks_to(2)) == 0


def test_the_world_is_as_large_as_its_groups_say() -> None:
    """After a world was closed, a recording only knows the size of the largest group that it saw."""
    with dsexplore.commtrace() as trace, dsexplore.simulate(8, rank=4):
        dist.all_reduce(torch.ones(256), group=dist.new_group([4, 5]))
    assert trace.world_map().to_each().tolist() == [0, 0, 0, 0, 0, 1024]


def test_what_cannot_be_is_refused(trace: Trace) -> None:
    with pytest.raises(UsageError, match="ranks on each node"):
        trace.world_map(0)
    with pytest.raises(UsageError, match="axes are tp, dp"):
        trace.world_map().to_each("pt")
    with pytest.raises(UsageError, match="ranks are 0 to 15"):
        trace.world_map().talks_to(16)
