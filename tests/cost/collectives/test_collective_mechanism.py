"""The mechanism of each op in closed form, on a cluster whose numbers are easy to add up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from dsexplore._internal.cost.cluster import Link, Reduction
from dsexplore._internal.cost.collectives.collective_mechanism import (
    GroupShape,
    _tree_of_nodes,
    family,
    mechanism_time,
    rank_bandwidth,
)
from dsexplore._internal.cost.collectives.host_ranks import work
from dsexplore.cost import Cluster

MIB = 1 << 20
NODE = Link(bandwidth=200e9, achievable=0.5, latency=1e-6, short_bandwidth=50e9, ramp=0.0)
NETWORK = Link(bandwidth=20e9, achievable=0.5, latency=10e-6, short_bandwidth=5e9, ramp=0.0)
STARTS = 4e-6
ONE, TWO, FOUR = GroupShape(1, 8), GroupShape(2, 8), GroupShape(4, 8)


def cluster(topology: str = "switch", reduction: Reduction | None = None, ramp: float = 0.0) -> Cluster:
    """8 ranks on a node with 100 GB/s, 10 GB/s of network for each."""
    base = Cluster.load("dgx-h100")
    links = {"node": replace(NODE, ramp=ramp), "network": replace(NETWORK, ramp=ramp)}
    return replace(
        base, topology=topology, reduction=reduction, collective_overhead=STARTS, measured=(), like="", **links
    )


@pytest.mark.parametrize(
    ("op", "steps", "factor"),
    [("all_reduce", 14, 1.75), ("all_gather", 7, 0.875), ("reduce_scatter", 7, 0.875), ("broadcast", 7, 1.0)],
)
def test_a_ring_in_a_node(op: str, steps: int, factor: float) -> None:
    found = mechanism_time(cluster(), op, 256 * MIB, ONE)
    assert found == pytest.approx(STARTS + steps * 1e-6 + 256 * MIB * factor / 100e9)


def test_two_ranks_reach_less_of_a_switch_and_a_mesh_has_a_link_to_each() -> None:
    assert rank_bandwidth(cluster(), 2) == pytest.approx(90e9)
    assert rank_bandwidth(cluster(), 3) == pytest.approx(100e9)
    assert rank_bandwidth(cluster("mesh"), 2) == pytest.approx(100e9)
    assert rank_bandwidth(cluster("mesh"), 8) == pytest.approx(700e9)


def test_all_ranks_of_a_mesh_need_two_steps() -> None:
    found = mechanism_time(cluster("mesh"), "all_reduce", 256 * MIB, ONE)
    assert found == pytest.approx(STARTS + 2e-6 + 256 * MIB * 1.75 / 700e9)
    part = mechanism_time(cluster("mesh"), "all_reduce", 256 * MIB, GroupShape(1, 4))
    assert part == pytest.approx(STARTS + 6e-6 + 256 * MIB * 1.5 / 300e9)


def test_a_ramp_is_felt_half_by_short_messages() -> None:
    ramped = cluster(ramp=1e-3)
    large, small = 32 * MIB, 1 << 10
    assert mechanism_time(ramped, "all_gather", large, ONE) == pytest.approx(
        STARTS + 7e-6 + min(large * 0.875 / 100e9 + 1e-3, large * 0.875 / 50e9 + 0.5e-3)
    )
    assert mechanism_time(ramped, "all_gather", small, ONE) == pytest.approx(
        STARTS + 7e-6 + small * 0.875 / 50e9 + 0.5e-3 * math.pow(small / (32 << 20), 0.36)
    )


def test_a_switch_that_adds_moves_the_bytes_once() -> None:
    reduction = Reduction(bandwidth=150e9, smallest_group=6, ramp=0.0)
    with_switch = cluster(reduction=reduction)
    assert mechanism_time(with_switch, "all_reduce", 256 * MIB, ONE) == pytest.approx(
        STARTS + 14e-6 + 256 * MIB / 150e9
    )
    for few in (GroupShape(1, 5), GroupShape(1, 2)):
        assert mechanism_time(with_switch, "all_reduce", 256 * MIB, few) == mechanism_time(
            cluster(), "all_reduce", 256 * MIB, few
        )
    assert mechanism_time(with_switch, "all_gather", MIB, ONE) == mechanism_time(cluster(), "all_gather", MIB, ONE)


def test_a_ring_over_nodes_is_as_fast_as_the_network() -> None:
    found = mechanism_time(cluster(), "all_gather", 256 * MIB, TWO)
    assert found == pytest.approx(STARTS + 14e-6 + 10e-6 + 256 * MIB * 15 / 16 / 80e9)
    alone = mechanism_time(cluster(), "all_gather", 256 * MIB, GroupShape(4, 1))
    assert alone == pytest.approx(STARTS + 3 * 10e-6 + 256 * MIB * 0.75 / 10e9)


def test_a_tree_over_nodes_has_as_many_steps_as_levels() -> None:
    short = mechanism_time(cluster(), "all_reduce", 8, FOUR)
    assert short == pytest.approx(STARTS + 2 * (7e-6 + 2 * 10e-6), rel=1e-3)
    assert mechanism_time(cluster(), "all_reduce", 8, GroupShape(5, 8)) - short == pytest.approx(2 * 10e-6, rel=1e-3)


def test_two_nodes_exchange_all_of_a_message_at_once() -> None:
    reduction = Reduction(bandwidth=150e9, smallest_group=6, ramp=0.0)
    with_switch = cluster(reduction=reduction)
    two = mechanism_time(with_switch, "all_reduce", 256 * MIB, TWO)
    assert two == pytest.approx(STARTS + 2 * (7e-6 + 10e-6) + 256 * MIB / 80e9)
    without = mechanism_time(cluster(), "all_reduce", 256 * MIB, TWO)
    assert without == pytest.approx(STARTS + 2 * (7e-6 + 10e-6) + 256 * MIB / 50e9)


def test_an_exchange_between_all() -> None:
    start = STARTS + 2.1e-6 + 6 * 0.3e-6
    assert mechanism_time(cluster(), "all_to_all", 256 * MIB, ONE) == pytest.approx(start + 256 * MIB * 0.875 / 100e9)
    start += 8 * 0.3e-6 + 10e-6
    away = 256 * MIB / 2 / (10e9 * 0.75)
    assert mechanism_time(cluster(), "all_to_all", 256 * MIB, TWO) == pytest.approx(start + away)


def test_a_message() -> None:
    two, far = GroupShape(1, 2), GroupShape(2, 1)
    start = STARTS + 2.1e-6
    assert mechanism_time(cluster(), "send", MIB, two) == pytest.approx(start + MIB / 85e9)
    large = 1024 * MIB
    assert mechanism_time(cluster(), "send", large, two) == pytest.approx(start + large / 90e9)
    assert mechanism_time(cluster(), "recv", large, far) == pytest.approx(start + 10e-6 + large / 10e9)


def test_a_barrier_is_a_short_all_reduce() -> None:
    assert mechanism_time(cluster(), "barrier", 0, ONE) == mechanism_time(cluster(), "all_reduce", 4, ONE)


def test_relatives() -> None:
    with_switch = cluster(reduction=Reduction(bandwidth=150e9, smallest_group=6, ramp=0.0))
    assert family(with_switch, "all_gather", ONE) == family(with_switch, "reduce_scatter", ONE) == "gather ring"
    assert family(with_switch, "all_gather", TWO) == "network gather ring"
    assert family(with_switch, "broadcast", ONE) == family(with_switch, "reduce", ONE) == "chain"
    assert family(with_switch, "all_to_all", ONE) == family(with_switch, "scatter", ONE) == "pairwise"
    assert family(with_switch, "send", TWO) == family(with_switch, "recv", TWO) == "network message"
    assert family(with_switch, "all_reduce", ONE) == "all_reduce in the switch"
    assert family(with_switch, "all_reduce", GroupShape(1, 4)) == "all_reduce ring"
    assert family(with_switch, "all_reduce", TWO) == "network all_reduce ring"
    assert family(cluster(), "all_reduce", ONE) == "all_reduce ring"


@pytest.mark.parametrize(
    ("op", "two", "four"),
    [
        ("all_reduce", (2, 2), (6, 6)),
        ("reduce_scatter", (3, 3.28), (7, 8.56)),
        ("all_gather", (1.25, 1.8), (3.75, 4.6)),
        ("all_to_all", (1, 1), (1.8, 3)),
        ("broadcast", (0.5, 1), (1, 3)),
        ("reduce", (2, 1.5), (4, 3.75)),
        ("gather", (1, 0.9), (1, 1.15)),
        ("scatter", (1, 0.5), (1, 0.75)),
        ("send", (1, 2), (1, 4)),
    ],
)
def test_work_of_ranks_that_share_a_machine(op: str, two: tuple[float, float], four: tuple[float, float]) -> None:
    assert tuple(work(op, 2)) == pytest.approx(two)
    assert tuple(work(op, 4)) == pytest.approx(four)


def test_ranks_of_a_machine_without_measured_times() -> None:
    base = Cluster.load("gloo-local")
    link = replace(base.node, latency=10e-6, bandwidth=2e9, achievable=0.5, short_bandwidth=4e9)
    machine = replace(base, node=link, collective_overhead=5e-6, measured=())
    four = GroupShape(1, 4)
    assert mechanism_time(machine, "scatter", 1024, four) == pytest.approx(15e-6 + 768 / 4e9)
    assert mechanism_time(machine, "scatter", 1 << 30, four) == pytest.approx(15e-6 + 0.75 * (1 << 30) / 1e9)
    middle = 8 * MIB / 0.75  # moves 8 MiB, half way between 1 and 64 MiB in the logarithms
    assert mechanism_time(machine, "scatter", middle, four) == pytest.approx(15e-6 + 8 * MIB / 2e9)


def test_a_cube_mesh_has_two_links_to_one_gpu_four_to_three_and_all_six_to_seven() -> None:
    whole = 200e9 * 0.5
    found = [rank_bandwidth(cluster(topology="cube"), ranks) for ranks in (2, 4, 8)]
    assert found == pytest.approx([whole / 3, whole * 2 / 3, whole])


def test_each_level_of_a_tree_of_nodes_adds_half_the_ramp_of_two() -> None:
    """Two nodes have the file's ramp, eight have twice that: 32 MiB is the size for which files state it."""
    flat, ramped = cluster(), cluster(ramp=100e-6)
    added = [
        list(_tree_of_nodes(ramped, 32 * MIB, group))[1] - list(_tree_of_nodes(flat, 32 * MIB, group))[1]
        for group in (TWO, GroupShape(8, 8))
    ]
    assert added == pytest.approx([100e-6, 200e-6])


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"])
def test_between_pods_there_is_less_bandwidth(op: str) -> None:
    """Two nodes of eight are a pod here: inside it nothing changes, beyond it each byte takes twice as long."""
    open_network = cluster()
    shared = replace(open_network, network=replace(NETWORK, pod=16, oversubscription=2.0))
    size = 1 << 32
    assert mechanism_time(shared, op, size, TWO) == mechanism_time(open_network, op, size, TWO)
    slower = mechanism_time(shared, op, size, FOUR) / mechanism_time(open_network, op, size, FOUR)
    assert slower == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_a_step_of_a_ring_over_nodes_takes_a_least_time(op: str) -> None:
    """Of 16 ranks, each passes a sixteenth on: below 1 MiB a step takes less in proportion."""
    slow = replace(cluster(), network=replace(NETWORK, ring_step=1.0))
    for size, seconds in ((8 * MIB, 7.5), (16 * MIB, 15.0), (64 * MIB, 15.0)):
        assert mechanism_time(slow, op, size, TWO) == pytest.approx(seconds)
    for size, group in ((1 << 44, TWO), (16 * MIB, ONE)):  # where bytes take longer, and inside a node
        assert mechanism_time(slow, op, size, group) == mechanism_time(cluster(), op, size, group)


def test_a_tree_over_nodes_has_no_such_steps() -> None:
    slow = replace(cluster(), network=replace(NETWORK, ring_step=1.0))
    assert mechanism_time(slow, "all_reduce", 16 * MIB, TWO) < 1.0


RAILS = replace(NETWORK, rails=8, oversubscription=4.0)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "send"])
def test_ranks_of_one_rail_cross_no_spine_and_others_pay_its_oversubscription(op: str) -> None:
    open_network, size = cluster(), 1 << 32
    railed = replace(open_network, network=RAILS)
    for group in (TWO, GroupShape(4, 1)):
        same, crossing = (mechanism_time(railed, op, size, group._replace(aligned=one)) for one in (True, False))
        assert same == mechanism_time(open_network, op, size, group)
        assert 1 < crossing / same < 4.01
    alone = [mechanism_time(railed, op, size, GroupShape(4, 1, one)) for one in (True, False)]
    assert alone[1] / alone[0] == pytest.approx(4.0, rel=0.01)


def test_a_pairwise_exchange_pays_for_the_peers_on_other_rails() -> None:
    """Of eight ranks a node, seven are on other rails: what crosses takes 4 × 7/8 times as long as the adapter."""
    open_network, size = cluster(), 1 << 34
    railed = replace(open_network, network=RAILS)
    slower = mechanism_time(railed, "all_to_all", size, TWO) / mechanism_time(open_network, "all_to_all", size, TWO)
    assert slower == pytest.approx(3.5, rel=0.01)
    alone = GroupShape(4, 1)
    assert mechanism_time(railed, "all_to_all", size, alone) == mechanism_time(open_network, "all_to_all", size, alone)
    pods = replace(open_network, network=replace(RAILS, pod=16))
    beyond = mechanism_time(pods, "all_to_all", size, FOUR) / mechanism_time(open_network, "all_to_all", size, FOUR)
    assert beyond == pytest.approx(4.0, rel=0.01)
