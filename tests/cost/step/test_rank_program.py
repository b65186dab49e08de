"""The kernels and collectives of one rank's step: how long each takes, and over which link."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.collectives.collective_duration import collective_time
from dsexplore._internal.cost.collectives.host_ranks import waiting_seconds
from dsexplore._internal.cost.kernels.compute import SPEEDS, slowest_of
from dsexplore._internal.cost.step.rank_program import Collective, Kernels, Options, programs

DGX = Cluster.load("dgx-h100")


def test_kernels_that_differ_in_their_shape_alone_have_times_of_their_own() -> None:
    with dsexplore.commtrace(world_size=1, fake=True, costs=True) as trace:
        a, b = torch.randn(8192, 8192), torch.randn(64, 8192)
        dist.barrier()
        a @ a
        dist.barrier()
        a @ b.T
    products = pl.col("kind") == "matmul"
    square, narrow = trace.tables.kernels.filter(products).iter_rows(named=True)
    like = {name: pl.lit(square[name]) for name in ("flops", "read_bytes", "written_bytes")}
    alike = trace.tables.kernels.with_columns(
        pl.when(products).then(value).otherwise(pl.col(name)).alias(name) for name, value in like.items()
    )
    program = programs(replace(trace.tables, kernels=alike), DGX, Options())[0]
    times = {item.shape: item.seconds for item in program.items if isinstance(item, Kernels) and item.shape}
    assert times[tuple(narrow["shape"])] > times[tuple(square["shape"])]


def test_a_message_goes_over_the_link_between_its_two_ends() -> None:
    """Of four ranks, two to a node: only the neighbor of rank 0 is on its node, whatever the group's size."""
    with dsexplore.commtrace(world_size=4, ranks_per_node=2, fake=True, costs=True) as trace:
        tensor = torch.ones(1 << 20) * 2
        for peer in (1, 2, 3):
            dist.send(tensor, peer)
        with pytest.warns(RuntimeWarning, match="recv without a source"):
            dist.recv(tensor)
        dist.all_reduce(tensor)
    program = programs(trace.tables, DGX, Options(ranks_per_node=2))[0]
    sent = [item for item in program.items if isinstance(item, Collective)]
    assert [(item.peer, item.link) for item in sent] == [
        (1, "node"),
        (2, "network"),
        (3, "network"),
        (None, "network"),
        (None, "network"),
    ]
    assert sent[0].seconds < sent[1].seconds == sent[2].seconds == sent[3].seconds


def test_groups_with_other_places_on_each_node_leave_their_rails() -> None:
    """Sixteen ranks on two nodes: an axis of stride eight keeps to its rail, neighbors across the nodes do not."""
    with dsexplore.commtrace(world_size=16, fake=True, costs=True) as trace:
        tensor = torch.ones(1 << 24) * 2
        for ranks in ([0, 8], [0, 9], [0, 1, 8, 9], [0, 1, 8, 10], list(range(16))):
            dist.all_reduce(tensor, group=dist.new_group(ranks))
        for peer in (8, 15):
            dist.send(tensor, peer)
    assert DGX.network is not None
    railed = replace(DGX, network=replace(DGX.network, rails=8, oversubscription=4.0))
    open_network, rails = (
        [item.seconds[1] for item in programs(trace.tables, one, Options())[0].items if isinstance(item, Collective)]
        for one in (DGX, railed)
    )
    pairs = zip(open_network, rails, strict=True)
    assert [ours > 1.5 * free for free, ours in pairs] == [False, True, False, True, False, False, True]


def _products(world_size: int, *, sends: bool) -> list[tuple[float, float, float]]:
    """Seconds of the one product of a rank, in a world where something is sent besides, or nothing."""
    with dsexplore.commtrace(world_size=world_size, fake=True, costs=True) as trace:
        tensor = torch.randn(4096, 4096)
        tensor @ tensor
        if sends:
            dist.all_reduce(tensor)
    program = programs(trace.tables, DGX, Options())[0]
    assert any("the slowest" in note for note in program.notes) == (sends and world_size > 1)
    return [item.seconds for item in program.items if isinstance(item, Kernels) and item.kind == "matmul"]


def test_ranks_that_wait_for_each_other_compute_as_fast_as_the_slowest() -> None:
    (alone,), (few,), (many,) = (_products(ranks, sends=True) for ranks in (1, 8, 1024))
    for ranks, seconds in ((8, few), (1024, many)):
        factors = [ours / one for ours, one in zip(seconds, alone, strict=True)]
        assert factors == pytest.approx([slowest_of(ranks, DGX, speed) for speed in SPEEDS])
    assert few[0] == many[0]
    assert few[1] < many[1]


def test_ranks_that_send_nothing_wait_for_nobody() -> None:
    assert _products(1024, sends=False) == _products(1, sends=False)


@pytest.mark.parametrize(("ranks", "processors"), [(4, 2), (4, 4), (2, 4), (4, None)])
def test_ranks_that_share_processors_compute_while_others_wait(ranks: int, processors: int | None) -> None:
    with dsexplore.commtrace(world_size=ranks, fake=True, costs=True, hardware="cpu") as trace:
        dist.all_reduce(torch.ones(1 << 20))
    machine = replace(Cluster.load("gloo-local"), processors=processors)
    program = programs(trace.tables, machine, Options())[0]
    (found,) = (item for item in program.items if isinstance(item, Collective))
    alone = collective_time("all_reduce", 4 << 20, ranks, hardware=machine)
    shares = processors is not None and ranks > processors
    waiting = waiting_seconds(machine, "all_reduce", ranks) if shares else 0.0
    assert found.seconds == pytest.approx([alone.low - waiting, alone.expected - waiting, alone.high - waiting])
    assert any("share 2 processors" in note for note in program.notes) == shares
