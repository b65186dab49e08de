"""Ranks of one machine: what some measured ops say about the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsexplore._internal.cost.cluster import Measured
from dsexplore._internal.cost.collectives.host_ranks import measured_costs, waiting_seconds, work
from dsexplore.cost import Cluster, collective_time

OVERHEAD, LATENCY, UNIT = 30e-6, 70e-6, 1 / 2e9
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter", "send")
SIZES = tuple(512 << step for step in range(18))


def truth(op: str, size: float, ranks: int = 4) -> float:
    """Return the time on a machine that does just what the model says."""
    steps, moved = work(op, ranks)
    return OVERHEAD + steps * LATENCY + moved * size * UNIT


def machine(*ops: str, sizes: tuple[int, ...] = SIZES, ranks: int = 4) -> Cluster:
    """Return that machine, with measured times of some ops."""
    tables = (Measured(op, 1, ranks, sizes, tuple(truth(op, size, ranks) for size in sizes), "", "") for op in ops)
    return replace(Cluster.load("gloo-local"), measured=tuple(tables))


def test_costs_are_found_in_measured_times() -> None:
    cluster = machine("all_reduce", "gather", "broadcast")
    costs = measured_costs(cluster, cluster.measured)
    assert costs.overhead == pytest.approx(OVERHEAD, rel=0.1)
    assert costs.latency == pytest.approx(LATENCY, rel=0.05)
    assert [units[-1] for _, units in costs.units] == [pytest.approx(UNIT, rel=0.01)] * 3


@pytest.mark.parametrize("op", OPS)
def test_an_op_is_predicted_from_others(op: str) -> None:
    cluster = machine(*(other for other in OPS if other != op))
    for size in (*SIZES, 1 << 28):
        assert collective_time(op, size, 4, hardware=cluster).expected == pytest.approx(truth(op, size), rel=0.05)


def test_larger_messages_and_fewer_ranks_are_predicted() -> None:
    cluster = machine("all_reduce", "gather", sizes=SIZES[:14])
    for size in (1 << 24, 1 << 26):
        found = collective_time("all_reduce", size, 4, hardware=cluster).expected
        assert found == pytest.approx(truth("all_reduce", size), rel=0.2)
    for op in ("all_reduce", "broadcast"):
        found = collective_time(op, 1 << 20, 2, hardware=cluster).expected
        assert found == pytest.approx(truth(op, 1 << 20, 2), rel=0.1)


def test_one_op_moves_the_others_along() -> None:
    plain = Cluster.load("gloo-local")
    cluster = machine("all_reduce", sizes=(512, 1024))
    factor = truth("all_reduce", 512) / collective_time("all_reduce", 512, 4, hardware=plain).expected
    for op in OPS:
        guessed = collective_time(op, 512, 4, hardware=plain).expected
        assert collective_time(op, 512, 4, hardware=cluster).expected == pytest.approx(factor * guessed, rel=0.1)


def test_noise_does_not_make_steps_cheaper_than_nothing() -> None:
    cluster = machine("all_reduce", "gather")
    ring, star = cluster.measured
    upside_down = (replace(ring, seconds=star.seconds), replace(star, seconds=ring.seconds))
    costs = measured_costs(cluster, upside_down)
    assert costs.overhead > 0
    assert costs.latency > 0


def slow_steps(op: str, size: float) -> float:
    """Return the time on a machine whose four ranks share processors: the more steps an op has, the longer each
    takes."""
    steps, moved = work(op, 4)
    return steps**1.3 * LATENCY + moved * size * UNIT


def shared_machine(*ops: str, sizes: tuple[int, ...] = SIZES) -> Cluster:
    """Return that machine, with measured times of some ops."""
    tables = (Measured(op, 1, 4, sizes, tuple(slow_steps(op, size) for size in sizes), "", "") for op in ops)
    return replace(Cluster.load("gloo-local"), measured=tuple(tables))


@pytest.mark.parametrize("op", OPS)
def test_steps_take_all_the_time_where_more_of_them_take_longer_each(op: str) -> None:
    cluster = shared_machine(*(other for other in OPS if other != op))
    assert measured_costs(cluster, cluster.measured).overhead == 0
    assert collective_time(op, 512, 4, hardware=cluster).expected == pytest.approx(slow_steps(op, 512), rel=0.35)


def test_an_op_with_slow_steps_has_no_slow_bytes() -> None:
    short = shared_machine(*OPS, sizes=SIZES[:8])
    bytes_of_file = measured_costs(short, short.measured).byte_seconds(work("all_reduce", 4), 1 << 24)
    start = work("all_reduce", 4).steps ** 1.3 * LATENCY
    found = collective_time("all_reduce", 1 << 24, 4, hardware=short).expected
    assert found == pytest.approx(start + bytes_of_file, rel=0.05)


def test_all_ops_grow_with_ranks() -> None:
    for op in OPS:
        works = [work(op, ranks) for ranks in (2, 3, 4, 8, 64)]
        assert [w.moved for w in works] == sorted(w.moved for w in works)
        assert [w.steps for w in works] == sorted(w.steps for w in works)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_waits_as_long_as_a_collective_without_bytes_takes(ranks: int) -> None:
    measured = machine("all_reduce", "gather", "broadcast", ranks=ranks)
    for op in ("all_reduce", "all_gather"):
        expected = OVERHEAD + work(op, ranks).steps * LATENCY
        assert waiting_seconds(measured, op, ranks) == pytest.approx(expected, rel=0.1)
    unmeasured = Cluster.load("gloo-local")
    assert waiting_seconds(unmeasured, "gather", ranks) == pytest.approx(
        unmeasured.collective_overhead + unmeasured.node.latency
    )
