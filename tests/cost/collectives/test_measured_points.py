"""What measured times of one collective say about another."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dsexplore._internal.cost.cluster import Measured
from dsexplore._internal.cost.collectives.collective_mechanism import GroupShape, mechanism_time
from dsexplore._internal.cost.collectives.measured_points import contradictions, evidence
from dsexplore._internal.cost.collectives.uncertainty import (
    HOST,
    MEASURED,
    MEASURED_NETWORK,
    MECHANISM,
    NETWORK,
    RELATED,
    SHARED,
    SHARED_RELATED,
    uncertainty_of,
)
from dsexplore._internal.hardware import CLUSTERS
from dsexplore.cost import Cluster, collective_time, known_clusters

SIZES = (1 << 10, 1 << 20, 1 << 30)


def measured(name: str, *groups: tuple[str, int, int], factor: float = 4.0) -> Cluster:
    """Return a cluster on which some collectives were measured to take so many times what the mechanism says."""
    bare = replace(Cluster.load(name), measured=(), like="")
    tables = [
        Measured(
            *(op, nodes, ranks, SIZES),
            tuple(factor * mechanism_time(bare, op, size, GroupShape(nodes, ranks)) for size in SIZES),
            *("a test", "2026-11-23"),
        )
        for op, nodes, ranks in groups
    ]
    return replace(bare, measured=tuple(tables))


def factors(cluster: Cluster, op: str, group: GroupShape) -> set[float]:
    """Return, by what, the mechanism is multiplied, inside of what was measured and above."""
    found = evidence(cluster, op, group)
    assert found is not None
    return {round(found.factor(size), 9) for size in (*SIZES, 5000, 1 << 34)}


def test_near_relatives_count_whole_and_far_ones_by_the_root() -> None:
    cluster = measured("dgx-h100", ("all_gather", 1, 8))
    assert factors(cluster, "all_gather", GroupShape(1, 8)) == {4.0}
    assert factors(cluster, "reduce_scatter", GroupShape(1, 8)) == {4.0}
    assert factors(cluster, "all_gather", GroupShape(1, 6)) == {4.0}
    for far in (("all_gather", GroupShape(1, 4)), ("reduce_scatter", GroupShape(1, 2))):
        assert factors(cluster, *far) == {2.0}


def test_what_large_messages_say_fades_towards_short_ones() -> None:
    cluster = measured("dgx-h100", ("all_gather", 1, 8))
    found = evidence(cluster, "all_gather", GroupShape(1, 8))
    assert found is not None
    assert found.factor(SIZES[0] / 8) == pytest.approx(2.0)
    assert found.factor(SIZES[0] / 64) == pytest.approx(math.sqrt(2.0))
    host = evidence(measured("gloo-local", ("all_gather", 1, 4)), "all_gather", GroupShape(1, 4))
    assert host is not None
    assert not host.fades  # its costs of steps were found from all that was measured


def test_two_tables_of_one_group_count_by_their_mean() -> None:
    """A mean in the logarithms, where both were measured; elsewhere the one that was."""
    cluster = measured("dgx-h100", ("all_gather", 1, 8))
    other = measured("dgx-h100", ("all_gather", 1, 8), factor=16.0).measured[0]
    upper = replace(other, message_bytes=other.message_bytes[1:], seconds=other.seconds[1:])
    found = evidence(replace(cluster, measured=(*cluster.measured, upper)), "all_gather", GroupShape(1, 8))
    assert found is not None
    assert [round(found.factor(size), 6) for size in SIZES] == [4.0, 8.0, 8.0]
    assert found.reach == (SIZES[0], SIZES[-1])


def test_strangers_do_not_count() -> None:
    cluster = measured("dgx-h100", ("all_gather", 1, 8))
    for op, group in (
        ("all_to_all", GroupShape(1, 8)),
        ("all_gather", GroupShape(2, 8)),
        ("all_reduce", GroupShape(1, 8)),
    ):
        assert evidence(cluster, op, group) is None


def test_the_nearest_counts() -> None:
    one = measured("dgx-h100", ("all_gather", 1, 8))
    cluster = replace(one, measured=one.measured + measured("dgx-h100", ("all_gather", 1, 2), factor=9.0).measured)
    assert factors(cluster, "all_gather", GroupShape(1, 8)) == {4.0}
    assert factors(cluster, "all_gather", GroupShape(1, 2)) == {9.0}
    assert factors(cluster, "reduce_scatter", GroupShape(1, 2)) == {9.0}
    assert factors(cluster, "all_gather", GroupShape(1, 3)) == {9.0}
    assert factors(cluster, "all_gather", GroupShape(1, 5)) == {4.0}


def test_a_cluster_that_is_like_another_takes_its_tables_but_for_its_own() -> None:
    like = Cluster.load("gb200-nvl72")
    found = evidence(like, "all_gather", GroupShape(1, 8))
    assert found is not None
    assert found.distance == 0.5
    own = replace(like, measured=measured("gb200-nvl72", ("all_gather", 1, 8)).measured)
    assert factors(own, "all_gather", GroupShape(1, 8)) == {4.0}


def test_each_kind_of_evidence_has_its_uncertainty() -> None:
    cluster = measured("dgx-h100", ("all_gather", 1, 8), ("all_gather", 2, 8))

    def error(op: str, group: GroupShape, size: float) -> object:
        return uncertainty_of(cluster, group, evidence(cluster, op, group), size)

    assert error("all_gather", GroupShape(1, 8), SIZES[0] / 4) == MEASURED
    assert error("all_gather", GroupShape(1, 8), SIZES[-1] * 4) == MEASURED
    assert error("all_gather", GroupShape(1, 8), SIZES[0] / 5) == RELATED
    assert error("all_gather", GroupShape(1, 8), SIZES[-1] * 5) == RELATED
    assert error("reduce_scatter", GroupShape(1, 4), SIZES[1]) == RELATED
    assert error("reduce_scatter", GroupShape(1, 4), SIZES[-1] * 5) == MECHANISM
    assert error("send", GroupShape(1, 2), SIZES[1]) == MECHANISM
    assert error("all_gather", GroupShape(2, 8), SIZES[1]) == MEASURED_NETWORK
    assert error("reduce_scatter", GroupShape(2, 8), SIZES[1]) == MEASURED_NETWORK
    assert error("all_gather", GroupShape(8, 8), SIZES[1]) == NETWORK
    assert error("send", GroupShape(2, 1), SIZES[1]) == NETWORK


def test_processes_of_a_machine_have_uncertainties_of_their_own() -> None:
    cluster = measured("gloo-local", ("all_gather", 1, 4))

    def error(op: str, ranks: int, size: float) -> object:
        group = GroupShape(1, ranks)
        return uncertainty_of(cluster, group, evidence(cluster, op, group), size)

    assert error("all_gather", 4, SIZES[1]) == SHARED
    assert error("all_gather", 4, SIZES[-1] * 5) == SHARED_RELATED
    assert error("send", 4, SIZES[1]) == SHARED_RELATED
    assert error("send", 2, SIZES[1]) == HOST
    bare = replace(cluster, measured=())
    assert evidence(bare, "send", GroupShape(1, 4)) is None
    assert uncertainty_of(bare, GroupShape(1, 4), None, SIZES[1]) == HOST


@pytest.mark.parametrize("ranks", [2, 8])
def test_times_of_another_number_of_processes_count(ranks: int) -> None:
    cluster = measured("gloo-local", ("all_gather", 1, 4), factor=3.0)
    found = evidence(cluster, "all_gather", GroupShape(1, ranks))
    assert found is not None
    assert found.factor(1 << 20) == pytest.approx(3.0, rel=0.15)
    assert found.distance == pytest.approx(1 + 1 / 3)


def slow_pair(op: str, nodes: int = 2) -> Cluster:
    """Return a cluster on which a collective of so many nodes was measured to take a second, whatever its bytes."""
    bare = replace(Cluster.load("dgx-h100"), measured=(), like="")
    sizes = tuple(1 << power for power in range(6, 31))
    return replace(bare, measured=(Measured(op, nodes, 8, sizes, (1.0,) * len(sizes), "a test", "2026-11-23"),))


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "all_to_all"])
def test_more_nodes_cost_at_least_what_fewer_were_measured_to(op: str) -> None:
    cluster = slow_pair(op)
    parts = op != "all_reduce"
    for nodes in (2, 3, 4, 5, 8, 64):
        size = (1 << 20) * (nodes if parts else 1)
        found = collective_time(op, size, nodes * 8, hardware=cluster)
        assert found.expected >= 0.95
    assert collective_time(op, 1 << 20, 8, hardware=cluster).expected < 0.01


@pytest.mark.parametrize(("op", "factor"), [("all_reduce", 1), ("all_gather", 3)])
def test_between_two_numbers_of_nodes_it_is_straight_in_the_logarithms(op: str, factor: int) -> None:
    cluster = Cluster.load("dgx-h100")
    per_node = 1 << 20
    two, three, four = (
        collective_time(op, per_node * (nodes if factor > 1 else 1), nodes * 8, hardware=cluster).expected
        for nodes in (2, 3, 4)
    )
    share = math.log(3 / 2) / math.log(4 / 2)
    assert three == pytest.approx(two * (four / two) ** share, rel=0.01)


@pytest.mark.parametrize("name", known_clusters())
def test_no_cluster_of_the_package_contradicts_its_own_times(name: str) -> None:
    assert contradictions(Cluster.load(name)) == ()


@pytest.mark.parametrize(
    ("link", "stated", "name"), [("node", "450 GB/s", "dgx-h100"), ("network", "25 GB/s", "gcp-a3-mega")]
)
def test_a_bandwidth_changed_beside_measured_times_is_said(tmp_path: Path, link: str, stated: str, name: str) -> None:
    """A copy of a file in which somebody states another link, but leaves what was measured on the old one."""
    text = CLUSTERS.path(name).read_text(encoding="utf-8")
    before, after = text.split(f"[{link}]", 1)
    changed = tmp_path / "mine.toml"
    changed.write_text(f"{before}[{link}]{after.replace(stated, '100 GB/s', 1)}", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match=rf"mine states 100 GB/s .* of its {link}, but .*{name}"):
        collective_time("all_reduce", 1 << 26, 16, hardware=changed)
    without = tmp_path / "without.toml"
    without.write_text(re.split(r"\n\[\[measured\]\]", changed.read_text(encoding="utf-8"))[0], encoding="utf-8")
    assert contradictions(Cluster.load(without)) == ()


def test_times_that_the_stated_bandwidth_does_not_allow_are_said() -> None:
    for factor, words in ((4.0, "4.0 times as long as"), (0.25, "4.0 times less than"), (1.0, "")):
        cluster = replace(measured("dgx-h100", ("all_gather", 2, 8), factor=factor), name="mine")
        said = contradictions(cluster)
        assert bool(said) == bool(words)
        assert words in "".join(said)
