"""Hybrid sharding and the micro batch as choices, and laws that hold of all meshes whatever the numbers.

Modules: ``cost/meshes/compare_meshes.py``, ``cost/meshes/mesh_comparison.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dsexplore._internal.cost.cluster import Cluster
from dsexplore._internal.cost.meshes.compare_meshes import compare_meshes
from dsexplore._internal.cost.meshes.mesh_comparison import MeshComparison
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.hardware import CLUSTERS
from tests.cost.test_laws import TOLERANCE, better, factors, improved, links

RANKS, SAMPLES, WIDTH = 16, 256, 2048
AXES = ("replicate", "fsdp")
CHOICES = {"microbatch": (4, 16)}


def hybrid(mesh: DeviceMesh, microbatch: int) -> Callable[[], None]:
    """Three layers, sharded over ``fsdp`` and repeated over ``replicate``; gradients of a rank's samples accumulate."""
    if mesh["replicate"].size() == RANKS:
        raise ValueError("parameters are not repeated on all ranks")
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        for _ in range(SAMPLES // RANKS // microbatch):
            model(torch.randn(microbatch, 1024, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


Compare = Callable[..., MeshComparison]


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """Compare the same meshes on a cluster; they are traced once."""
    cache = tmp_path_factory.mktemp("hybrid")
    return lambda hardware="dgx-h100": compare_meshes(
        hybrid, RANKS, hardware, axes=AXES, choices=CHOICES, cache=cache, processes=1
    )


def name(fsdp: int, microbatch: int) -> str:
    return f"replicate={RANKS // fsdp},fsdp={fsdp},microbatch={microbatch}"


def sent(prediction: Prediction) -> dict[tuple[str, str], int]:
    return {(row["axis"], row["op"]): row["count"] for row in prediction.by_axis().iter_rows(named=True)}


@pytest.mark.processes
def test_hybrid_sharding_gathers_in_a_node_and_reduces_across_nodes(compare: Compare) -> None:
    compared = compare()
    assert {one.mesh for one in compared.ranking} == {name(fsdp, size) for fsdp in (2, 4, 8, 16) for size in (4, 16)}
    whole, hybrid = compared[name(16, 16)], compared[name(8, 16)]
    assert ("replicate", "all_reduce") not in sent(whole)
    assert sent(hybrid)["replicate", "all_reduce"] == 3
    assert sent(hybrid)["fsdp", "all_gather"] == sent(whole)["fsdp", "all_gather"]
    memory = [int(compared[name(fsdp, 16)].memory) for fsdp in (2, 4, 8, 16)]
    assert memory == sorted(memory, reverse=True)
    slow = compare(improved(compared.cluster, "network", "bandwidth", 0.02))
    assert slow[name(8, 16)].expected_step < slow[name(16, 16)].expected_step


@pytest.mark.processes
def test_a_smaller_micro_batch_needs_less_memory_and_sends_more(compare: Compare) -> None:
    compared = compare()
    for fsdp in (2, 4, 8, 16):
        small, large = (compared[name(fsdp, size)] for size in CHOICES["microbatch"])
        assert int(small.memory) < int(large.memory)
        gathers = [sent(one)["fsdp", "all_gather"] for one in (small, large)]
        assert gathers[0] > 2 * gathers[1]
        assert small.compute.expected == pytest.approx(large.compute.expected, rel=0.1)
        assert small.expected_step > large.expected_step


@pytest.mark.processes
@settings(max_examples=8, deadline=None)
@given(st.sampled_from(["dgx-h100", "aws-p4de", "gcp-a3-mega", "gb200-nvl72"]), links, better, factors)
def test_a_better_link_never_hurts_a_mesh_and_a_worse_one_never_helps(
    compare: Compare, hardware: str, link: str, better: tuple[str, int], factor: float
) -> None:
    cluster, (key, sign) = Cluster.load(hardware), better
    worse, same, best = (
        compare(one)
        for one in (
            improved(cluster, link, key, factor**-sign),
            cluster,
            improved(cluster, link, key, factor**sign),
        )
    )
    for slower, faster in ((worse, same), (same, best)):
        assert {one.mesh for one in slower.ranking} == {one.mesh for one in faster.ranking}
        for one in slower.ranking:
            assert faster[one.mesh].expected_step <= slower[one.mesh].expected_step * TOLERANCE
        assert faster.best.expected_step <= slower.best.expected_step * TOLERANCE


@pytest.mark.processes
@settings(max_examples=6, deadline=None)
@given(st.lists(st.floats(0.6, 3.0), min_size=2, max_size=2).map(sorted))
def test_more_memory_never_drops_a_mesh(compare: Compare, sizes: list[float]) -> None:
    cluster = Cluster.load("dgx-h100")
    least = min(int(one.prediction.memory) for one in compare().ranking if one.prediction is not None)
    less, more = (
        compare(replace(cluster, memory=replace(cluster.memory, size=least * size))).to_frame() for size in sizes
    )
    kept = [set(frame.filter(dropped="")["mesh"]) for frame in (less, more)]
    assert kept[0] <= kept[1]


@pytest.mark.processes
def test_the_same_question_has_the_same_ranking_and_the_same_refusals(compare: Compare, tmp_path: Path) -> None:
    copy = tmp_path / "again.toml"
    copy.write_text(CLUSTERS.path("dgx-h100").read_text(encoding="utf-8"), encoding="utf-8")
    frames = [compare(one).to_frame() for one in ("dgx-h100", "h100", Cluster.load("dgx-h100"), copy)]
    frames.append(
        compare_meshes(hybrid, RANKS, axes=AXES, choices=CHOICES, cache=tmp_path / "anew", processes=1).to_frame()
    )
    assert all(frame.equals(frames[0]) for frame in frames)
    refused = frames[0].filter(frames[0]["dropped"] != "")
    assert refused["mesh"].to_list() == [name(1, size) for size in (16, 4)]
    assert set(refused["dropped"]) == {"ValueError: parameters are not repeated on all ranks"}
