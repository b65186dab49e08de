"""Collective times: exact at measured points, monotone everywhere, different for one node and several."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore import UsageError
from dsexplore._internal.cost.collectives import uncertainty
from dsexplore._internal.cost.collectives.collective_curve import ascending, curve, launch_seconds
from dsexplore._internal.cost.collectives.collective_mechanism import GroupShape, family, mechanism_time
from dsexplore._internal.cost.collectives.interpolation import interpolated
from dsexplore._internal.cost.collectives.uncertainty import LAUNCHED_BY_ONE, MEASURED, NETWORK, PCIE, Uncertainty
from dsexplore._internal.trace.collectives import OPS
from dsexplore.cost import Cluster, collective_time, known_clusters

SIZED = tuple(op for op in OPS if op != "barrier")
PARTS = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
GPU_CLUSTERS = [name for name in known_clusters() if name != "gloo-local"]
clusters = st.sampled_from(known_clusters())
gpu_clusters = st.sampled_from(GPU_CLUSTERS)
ERRORS = [value for value in vars(uncertainty).values() if isinstance(value, Uncertainty)]
ops = st.sampled_from(SIZED)
sizes = st.integers(0, 1 << 36)


def bare(name: str) -> Cluster:
    """Return a cluster without measured tables: the mechanism alone."""
    return replace(Cluster.load(name), measured=(), like="")


@settings(max_examples=150, deadline=None)
@given(clusters, ops, sizes, sizes, st.integers(2, 8))
def test_more_bytes_never_take_less(name: str, op: str, one: int, other: int, ranks: int) -> None:
    small, large = sorted((one, other))
    less, more = (collective_time(op, size, ranks, hardware=name) for size in (small, large))
    assert less.low <= more.low
    assert less.expected <= more.expected
    assert less.high <= more.high
    assert 0 < less.low <= less.expected <= less.high


@settings(max_examples=150, deadline=None)
@given(
    gpu_clusters,
    ops,
    st.integers(1, 1 << 28),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
)
def test_more_nodes_never_cost_less(
    name: str, op: str, size: int, one: int, other: int, per_node: int, is_per_rank: bool
) -> None:
    fewer, more = sorted((one, other))
    if fewer * per_node < 2:
        return
    times = []
    for nodes in (fewer, more):
        ranks = nodes * per_node
        message_bytes = size * (ranks if is_per_rank and op in PARTS else 1)
        times.append(collective_time(op, message_bytes, ranks, per_node, name))
    tolerance = 1 + 1e-9
    assert times[0].expected <= times[1].expected * tolerance
    assert times[0].low <= times[1].low * tolerance
    assert times[0].high <= times[1].high * tolerance


@pytest.mark.parametrize("name", known_clusters())
def test_a_measured_point_is_predicted_as_it_was_measured(name: str) -> None:
    cluster = Cluster.load(name)
    errors = []
    for table in cluster.measured:
        for size, seconds in zip(table.message_bytes, table.seconds, strict=True):
            ranks = table.nodes * table.ranks_per_node
            found = collective_time(table.op, size, ranks, table.ranks_per_node, cluster)
            errors.append(abs(found.expected / seconds - 1))
    assert sum(error < 0.05 for error in errors) >= 0.75 * len(errors)  # the others fell with bytes, or with nodes


def test_between_measured_points_it_is_straight_in_the_logarithms() -> None:
    assert interpolated([1, 4], [10, 40], 2) == pytest.approx(20)
    assert interpolated([1, 4], [10, 40], 8) == 40
    low, middle, high = (collective_time("all_reduce", size << 26, 8).expected for size in (2, 3, 4))
    assert low < middle < high


def test_a_mesh_axis_over_nodes_costs_other_than_one_inside() -> None:
    inside = collective_time("all_gather", 256 << 20, 8, ranks_per_node=8)
    across = collective_time("all_gather", 256 << 20, 8, ranks_per_node=1)
    assert across.expected > 5 * inside.expected  # 450 GB/s against 50
    assert not inside.overlaps(across)
    assert across.expected < 256 * 2**20 * 7 / 8 / 50e9 * 1.5


def test_sums_in_the_switch_begin_with_six_ranks() -> None:
    cluster = bare("dgx-h100")
    assert family(cluster, "all_reduce", GroupShape(1, 5)) == "all_reduce ring"
    assert family(cluster, "all_reduce", GroupShape(1, 6)) == "all_reduce in the switch"
    size = 1 << 30
    ring, switch = (mechanism_time(cluster, "all_reduce", size, GroupShape(1, ranks)) for ranks in (5, 8))
    assert switch < ring
    without = replace(cluster, reduction=None)
    assert mechanism_time(without, "all_reduce", size, GroupShape(1, 8)) > 1.2 * switch


def test_short_messages_cost_the_steps_of_the_ring() -> None:
    cluster = bare("dgx-h100")
    four, eight = (collective_time("all_gather", 512, ranks, hardware=cluster).expected for ranks in (4, 8))
    assert eight - four == pytest.approx(4 * cluster.node.latency, rel=0.01)


def test_large_messages_cost_their_bytes() -> None:
    seconds = collective_time("reduce_scatter", 1 << 36, 8, hardware=bare("dgx-h100")).expected
    assert (1 << 36) * 7 / 8 / seconds == pytest.approx(450e9 * 0.811, rel=0.02)


def test_a_full_mesh_has_the_bandwidth_of_all_its_links() -> None:
    two, eight = (collective_time("all_gather", 1 << 34, n, hardware=bare("mi300x")).expected for n in (2, 8))
    assert two / eight == pytest.approx(7 * (1 / 2) / (7 / 8), rel=0.05)


@pytest.mark.parametrize("op", PARTS)
def test_nodes_whose_gpus_send_through_the_cpu_do_so_on_many_nodes_too(op: str) -> None:
    one, two, four = (collective_time(op, (2 << 20) * ranks, ranks, 8, "8xl40s").expected for ranks in (8, 16, 32))
    assert two > 1.8 * one
    assert four > 1.5 * two


def test_two_nodes_reduce_faster_than_a_ring_between_them_could() -> None:
    size = 1 << 34
    seconds = collective_time("all_reduce", size, 16, hardware=bare("dgx-h100")).expected
    assert size * 2 * 15 / 16 / seconds > 8 * 48.5e9  # each node sends the sum once, not twice


def test_nothing_is_sent_alone() -> None:
    assert collective_time("all_reduce", 1 << 30, 1).high == 0


def test_a_barrier_costs_a_short_all_reduce() -> None:
    barrier = collective_time("barrier", 0, 64)
    assert barrier.expected == pytest.approx(collective_time("all_reduce", 4, 64).expected, rel=0.2)


def test_the_range_is_wider_where_less_is_known() -> None:
    cluster = Cluster.load("dgx-h100")
    assert curve(cluster, "all_reduce", GroupShape(1, 8)).at(1 << 26).why == MEASURED.why
    assert curve(cluster, "all_to_all", GroupShape(4, 8)).at(1 << 26).why == NETWORK.why
    known, guessed = (
        collective_time("all_reduce", 1 << 26, 8, hardware=which) for which in (cluster, Cluster.load("8xl40s"))
    )
    assert known.high / known.low < guessed.high / guessed.low


def test_what_others_measured_over_pcie_says_little_of_a_machine() -> None:
    """L40S of one server pass messages ten times slower than such servers can; what was measured on one's own holds."""
    others = Cluster.load("8xl40s")
    assert curve(others, "all_gather", GroupShape(1, 4)).at(1 << 20).why == PCIE.why
    assert curve(replace(others, name="mine"), "all_gather", GroupShape(1, 4)).at(1 << 20).why == MEASURED.why


def test_the_high_end_holds_the_time_in_which_one_process_launches_all_ranks() -> None:
    """Tables of nccl-tests -g 8 show 25 to 56 µs for short messages, where a process per GPU needs 15."""
    found = collective_time("all_gather", 512, 8)
    assert found.expected < 20e-6
    assert found.high == pytest.approx(56e-6)
    assert found.why == f"all_gather in one node {LAUNCHED_BY_ONE}"


@pytest.mark.parametrize("name", [name for name in known_clusters() if Cluster.load(name).network is not None])
@pytest.mark.parametrize("op", ["all_reduce", "all_to_all"])
def test_a_range_says_where_the_ranks_are_and_why_it_is_as_wide(name: str, op: str) -> None:
    """What is said is the source of the very error that the width comes from, or the launch."""
    for nodes, where in ((1, "in one "), (4, "between ")):
        for size in (1 << 10, 1 << 20, 1 << 29):
            cluster = Cluster.load(name)
            per_node = cluster.ranks_per_domain
            time = collective_time(op, size, nodes * per_node, per_node, cluster)
            assert time.why.startswith(f"{op} {where}{cluster.domain_kind}")
            errors = {error.above for error in ERRORS if time.why.endswith(error.why)}
            if time.why.endswith(LAUNCHED_BY_ONE):
                assert time.high >= launch_seconds(cluster, GroupShape(1, per_node)) * 0.99
            else:
                assert any(time.high / time.expected - 1 <= 1.3 * above for above in errors)
    one_machine = collective_time("all_gather", 512, 4, hardware="gloo-local")
    assert one_machine.high == pytest.approx(8 * one_machine.expected)


def test_pcie_has_a_range_for_paths_with_and_without_peer_access() -> None:
    found = collective_time("all_reduce", 256 << 20, 4, hardware="a100-pcie")
    for bus_bandwidth in (4.8e9, 25.3e9, 29.8e9):  # through memory, and with peer access: benchmarks/data
        assert (256 << 20) * 1.5 / bus_bandwidth in found


def test_what_falls_is_averaged() -> None:
    assert ascending([1.0, 4.0, 1.0, 8.0], [1.0] * 4) == pytest.approx((1.0, 2.0, 2.0, 8.0))
    assert ascending([8.0, 4.0, 2.0], [1.0] * 3) == pytest.approx((4.0, 4.0, 4.0))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40))
def test_what_is_made_to_ascend_ascends_and_keeps_its_mean(values: list[float]) -> None:
    found = ascending(values, [1.0] * len(values))
    assert all(a <= b * (1 + 1e-9) for a, b in pairwise(found))
    assert sum(map(math.log, found)) == pytest.approx(sum(map(math.log, values)), abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all_sum", 8, 8), "op 'all_sum' is not a collective: name one of all_reduce"),
        (("all_reduce", -1, 8), "message_bytes -1 is not a size"),
        (("all_reduce", float("nan"), 8), "message_bytes nan is not a size"),
        (("all_reduce", 8, 0), "world_size 0 is not a number of ranks"),
        (("all_reduce", 8, 16, 9), "ranks_per_node 9 does not fit dgx-h100: give a number from 1 to 8"),
        (("all_reduce", 8, 16, 0), "ranks_per_node 0 does not fit"),
        (("all_reduce", 8, 65, None, "gloo-local"), "one node of 64 ranks, without a network"),
    ],
)
def test_what_cannot_be_predicted_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collective_time(*arguments)
