"""Dispatch and combine of DeepEP: what is sent where, what it waits for, laws, and what cannot be."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsexplore import UsageError
from dsexplore.cost import Cluster, deepep_time

H100 = Cluster.load("dgx-h100")
OPS = ("dispatch", "combine")


def seconds(op: Any = "dispatch", tokens: int = 4096, hardware: Cluster = H100, **changed: Any) -> float:
    layer = {"hidden": 7168, "experts": 256, "top_k": 8, "world_size": 8} | changed
    return deepep_time(op, tokens, hardware=hardware, **layer).expected


def rate(cluster: Cluster, which: str) -> float:
    link = cluster.node if which == "node" else cluster.network
    assert link is not None
    return link.bandwidth * link.achievable


@pytest.mark.parametrize(("nodes", "most"), [(1, None), (2, None), (4, None), (8, 4)])
def test_a_token_goes_once_to_each_node_and_rank_that_has_some_of_its_experts(nodes: int, most: int | None) -> None:
    """Counted by drawing the experts of tokens; the times are of that many bytes over the slowest way."""
    experts, top_k, ranks = 256, 8, 8 * nodes
    draw = random.Random(nodes)
    reached_ranks = reached_nodes = 0
    for _ in range(4000):
        near = draw.sample(range(nodes), min(nodes, most or nodes))
        of_near = [expert for expert in range(experts) if expert * nodes // experts in near]
        chosen = draw.sample(of_near, top_k)
        reached_ranks += len({expert * ranks // experts for expert in chosen})
        reached_nodes += len({expert * nodes // experts for expert in chosen})
    more = 1 << 17
    options: dict[str, Any] = {"world_size": ranks, "nodes_per_token": most, "multiprocessors": 1000}
    bytes_per_token = 7168 * (1 + 4 / 128)
    slope = (seconds(tokens=2 * more, **options) - seconds(tokens=more, **options)) / more
    over_nvlink = bytes_per_token * reached_ranks / 4000 * 7 / 8 / (rate(H100, "node") * 0.85)
    over_network = bytes_per_token * reached_nodes / 4000 * (nodes - 1) / nodes / (rate(H100, "network") * 0.96)
    assert slope == pytest.approx(max(over_nvlink, over_network), rel=0.03)


def test_low_latency_kernels_send_a_token_once_for_each_expert() -> None:
    for nodes, link, part in ((1, "node", 0.72 * 8 / 7), (4, "network", 0.96 * 4 / 3)):
        options: dict[str, Any] = {"low_latency": True, "world_size": 8 * nodes}
        slope = (seconds(tokens=512, **options) - seconds(tokens=256, **options)) / 256
        assert slope == pytest.approx(8 * (7168 * (1 + 4 / 128) + 16) / (rate(H100, link) * part))


def test_few_tokens_are_faster_by_low_latency_kernels_and_many_by_normal_ones() -> None:
    for op in OPS:
        few, many = ([seconds(op, tokens, low_latency=low) for low in (True, False)] for tokens in (8, 8192))
        assert few[0] < few[1]
        assert many[0] > many[1]


def test_few_multiprocessors_and_few_experts_hold_tokens_up() -> None:
    times = [seconds(multiprocessors=count) for count in (4, 8, 16, 64, 128)]
    assert times[0] > 1.8 * times[1] > 3 * times[2]
    assert times[3] == times[4]
    one_each, many = (seconds(tokens=1024, experts=experts, top_k=2, low_latency=True) for experts in (8, 128))
    assert one_each > 2 * many


def test_bytes_of_a_token_are_a_choice_and_the_busiest_rank_has_more() -> None:
    assert seconds(token_bytes=2 * 7168) > seconds() > seconds(token_bytes=7168 / 2)
    for low in (True, False):
        assert seconds(low_latency=low) < seconds(low_latency=low, imbalance=2.0) < 2 * seconds(low_latency=low)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["dgx-a100", "dgx-h100", "hgx-h200", "b200", "gb200-nvl72", "gcp-a3-mega"]),
    st.sampled_from(OPS),
    st.booleans(),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["node", "network"]),
    st.integers(1, 1 << 17),
    st.sampled_from([1.01, 1.3, 2.0, 10.0]),
)
def test_better_links_never_hurt_and_more_tokens_never_help(
    name: str, op: Any, low: bool, nodes: int, link: str, tokens: int, factor: float
) -> None:
    cluster = Cluster.load(name)
    options: dict[str, Any] = {"low_latency": low, "world_size": 4 * nodes, "ranks_per_node": 4}
    now = getattr(cluster, link)
    for changed in ({"bandwidth": now.bandwidth * factor}, {"latency": now.latency / factor}):
        better = replace(cluster, **{link: replace(now, **changed)})
        assert seconds(op, tokens, better, **options) <= seconds(op, tokens, cluster, **options)
    rising = [seconds(op, count, cluster, **options) for count in (tokens, tokens + 1, int(tokens * factor) + 1)]
    assert all(before <= after for before, after in itertools.pairwise(rising))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"op": "gather"}, "op='gather' is not known: give 'dispatch' or 'combine'"),
        ({"tokens": 0}, "tokens=0 cannot be: give a whole number, 1 or more"),
        ({"experts": 8, "top_k": 9}, "top_k=9 of 8 experts"),
        ({"experts": 100}, "100 experts do not divide into 8 ranks"),
        ({"world_size": 16, "ranks_per_node": 3}, "16 ranks do not divide into nodes of 3"),
        ({"world_size": 16, "ranks_per_node": 16}, "ranks_per_node=16: the node has 8 ranks"),
        ({"world_size": 64, "top_k": 40, "nodes_per_token": 1}, "nodes_per_token=1 leaves 32 experts"),
        ({"imbalance": 0.5}, "imbalance=0.5 cannot be: give a finite number, 1 or more"),
        ({"token_bytes": float("nan")}, "token_bytes=nan cannot be"),
        ({"hardware": Cluster.load("8xl40s")}, "8xl40s has no switch"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        seconds(**changed)
