"""Laws that hold whatever the numbers: a slower link never helps, more memory never hurts, the same is refused alike.

Modules: ``cost/collectives``, ``cost/step/prediction.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore import UsageError
from dsexplore._internal.cost.cluster import Link
from dsexplore._internal.cost.collectives.measured_points import measured_on
from dsexplore._internal.hardware import CLUSTERS
from dsexplore._internal.trace.collectives import OPS
from dsexplore._internal.trace.trace import Trace
from dsexplore.cost import Cluster, collective_time, known_clusters

TOLERANCE = 1 + 1e-9
clusters = st.sampled_from(known_clusters())
ops = st.sampled_from([op for op in OPS if op != "barrier"])
links = st.sampled_from(["node", "network"])
better = st.sampled_from([("bandwidth", 1), ("achievable", 1), ("short_bandwidth", 1), ("latency", -1), ("ramp", -1)])
factors = st.sampled_from([1.01, 1.3, 2.0, 10.0])


def improved(cluster: Cluster, which: str, key: str, factor: float) -> Cluster:
    """Return the cluster with one number of a link times a factor, and its measured times; itself without the link."""
    link: Link | None = getattr(cluster, which)
    if link is None:
        return cluster
    value = getattr(link, key) * factor
    return replace(cluster, **{which: replace(link, **{key: min(1.0, value) if key == "achievable" else value})})


@settings(max_examples=150, deadline=None)
@given(
    clusters,
    ops,
    st.floats(3, 35),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([1, 2, 3, 4, 16]),
    links,
    better,
    factors,
)
def test_a_better_link_never_makes_a_collective_slower(
    name: str, op: str, power: float, per_node: int, nodes: int, link: str, better: tuple[str, int], factor: float
) -> None:
    cluster = Cluster.load(name)
    ranks = per_node * (nodes if cluster.network is not None else 1)
    if ranks < 2:
        return
    key, sign = better
    before, after = (
        collective_time(op, 2.0**power, ranks, per_node, one)
        for one in (cluster, improved(cluster, link, key, factor**sign))
    )
    for end in ("low", "expected", "high"):
        assert getattr(after, end) <= getattr(before, end) * TOLERANCE


@settings(max_examples=100, deadline=None)
@given(
    clusters,
    ops,
    st.floats(3, 35),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([2, 3, 16]),
    st.sampled_from([{"rails": 8}, {"pod": 16}, {"rails": 8, "pod": 16}]),
    st.booleans(),
    st.floats(1, 8),
    factors,
)
def test_more_oversubscription_never_makes_a_collective_faster(
    name: str,
    op: str,
    power: float,
    per_node: int,
    nodes: int,
    fabric: dict[str, int],
    aligned: bool,
    less: float,
    factor: float,
) -> None:
    cluster = Cluster.load(name)
    if cluster.network is None:
        return
    times = [
        collective_time(
            op,
            2.0**power,
            per_node * nodes,
            per_node,
            replace(cluster, network=replace(cluster.network, oversubscription=oversubscription, **fabric)),
            aligned=aligned,
        )
        for oversubscription in (1.0, less, less * factor)
    ]
    for before, after in itertools.pairwise(times):
        for end in ("low", "expected", "high"):
            assert getattr(after, end) >= getattr(before, end) / TOLERANCE


@pytest.mark.parametrize("name", ["dgx-h100", "gcp-a3-mega"])
def test_times_copied_from_this_package_are_of_the_links_they_were_measured_on(name: str, tmp_path: Any) -> None:
    copy = tmp_path / "mine.toml"
    copy.write_text(CLUSTERS.path(name).read_text(encoding="utf-8"), encoding="utf-8")
    shipped, mine = Cluster.load(name), Cluster.load(copy)
    assert {measured_on(mine, table).name for table in mine.measured} == {name}
    assert all(measured_on(shipped, table) is shipped for table in shipped.measured)
    own = replace(mine.measured[0], seconds=tuple(2 * time for time in mine.measured[0].seconds))
    assert measured_on(mine, own) is mine
    slow = improved(mine, "network", "bandwidth", 0.25)
    for size in (1 << 30, 1 << 33):
        times = [collective_time("all_reduce", size, 16, 8, one).expected for one in (shipped, mine, slow)]
        assert times[0] == pytest.approx(times[1])
        assert 2.5 < times[2] / times[1] < 4.1  # less than four: the nodes themselves limited it before


@pytest.fixture(scope="module")
def programs(traced_llama: Callable[..., Trace], traced_layers: Callable[..., Trace]) -> list[Trace]:
    """Tensor parallelism with FSDP over nodes, and FSDP whose gathers hide behind layers."""
    return [traced_llama("dp=16,tp=2"), traced_layers(3, dp=32)]


@settings(max_examples=40, deadline=None)
@given(clusters.filter(lambda name: name != "gloo-local"), st.data())
def test_a_better_network_never_makes_a_step_longer(programs: list[Trace], name: str, data: st.DataObject) -> None:
    cluster, program = Cluster.load(name), data.draw(st.sampled_from(programs))
    key, sign = data.draw(better)
    after = improved(cluster, data.draw(links), key, data.draw(factors) ** sign)
    assert program.predict(after).expected_step <= program.predict(cluster).expected_step * TOLERANCE


@settings(max_examples=40, deadline=None)
@given(clusters.filter(lambda name: name != "gloo-local"), st.floats(0.5, 3.0), st.floats(0.5, 3.0))
def test_more_memory_never_turns_a_verdict_for_the_worse(
    programs: list[Trace], name: str, one: float, other: float
) -> None:
    cluster, order = Cluster.load(name), ("does not fit", "fits barely", "fits")
    least = programs[0].predict(cluster).memory.least
    verdicts = [
        order.index(programs[0].predict(replace(cluster, memory=replace(cluster.memory, size=least * part))).memory.fit)
        for part in sorted((one, other))
    ]
    assert verdicts == sorted(verdicts)


@settings(max_examples=100, deadline=None)
@given(clusters, ops, st.integers(-2, 200), st.one_of(st.none(), st.integers(-1, 80)), st.integers(-2, 8))
def test_the_same_question_has_the_same_answer_or_the_same_refusal(
    name: str, op: str, ranks: int, per_node: int | None, size: int
) -> None:
    def answer(hardware: Any) -> object:
        try:
            return collective_time(op, size, ranks, per_node, hardware)
        except UsageError as error:
            return str(error)

    assert answer(name) == answer(name.upper()) == answer(Cluster.load(name)) == answer(CLUSTERS.path(name))


def test_weak_scaling_on_racks_is_in_order_and_groups_are_not_cut(traced_layers: Callable[..., Trace]) -> None:
    """The same layers and rows per rank: 64 ranks are in one rack, 128, 256 and 512 in twos, fours and eights of 64."""
    traces = {ranks: traced_layers(3, dp=ranks) for ranks in (64, 128, 256, 512)}
    exposed = []
    for ranks, trace in traces.items():
        by_launcher, by_default = (trace.predict("gb200-nvl72", ranks_per_node=number) for number in (4, None))
        assert by_launcher.exposed == by_default.exposed
        assert by_launcher.step == by_default.step
        assert by_launcher.ranks_per_domain == (72 if ranks == 64 else 64)
        exposed.append(by_launcher.exposed.expected)
    assert exposed == sorted(exposed)
    assert exposed[1] > 1.5 * exposed[0]


def test_weak_scaling_of_thousands_is_in_order_and_pods_cost_beyond_their_ranks(
    traced_layers: Callable[..., Trace],
) -> None:
    """The same layers and rows per rank on 512 to 8,192 ranks, on an open network, and with pods of 2,048."""
    cluster = Cluster.load("dgx-h100")
    assert cluster.network is not None
    pods = replace(cluster, network=replace(cluster.network, pod=2048, oversubscription=7.0))
    traces = [traced_layers(3, width=8192, dp=ranks) for ranks in (512, 1024, 2048, 4096, 8192)]
    by_network = [[trace.predict(one).expected_step for trace in traces] for one in (cluster, pods)]
    for steps in by_network:
        assert steps == sorted(steps)
    free, limited = by_network
    assert limited[:3] == free[:3]
    assert all(ours > theirs for ours, theirs in zip(limited[3:], free[3:], strict=True))
