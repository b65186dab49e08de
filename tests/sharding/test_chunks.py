"""Which rank holds what, against torch's own arithmetic and against what must always be true."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from dsexplore._internal.sharding.chunks import Cut, borders, held_ranges, nested_borders, part_size, ranges_text
from dsexplore._internal.sharding.plan import sharding
from dsexplore._internal.torch_internals.names import torch_at_least

EXAMPLES = settings(max_examples=80)


def everywhere(plan):
    return itertools.product(*(range(size) for size in plan.mesh.values()))


def test_worked_examples_of_the_docstring():
    assert [held_ranges(10, [Cut(4)], [i]) for i in range(4)] == [[(0, 3)], [(3, 6)], [(6, 9)], [(9, 10)]]
    assert [held_ranges(8, [Cut(2, pieces=2)], [i]) for i in range(2)] == [[(0, 2), (4, 6)], [(2, 4), (6, 8)]]
    assert borders(10, Cut(8)) == {5}


def as_torch_cuts(plan):
    """Leave out what torch 2.9 cuts otherwise: a strided shard whose parts are not all of one size."""
    assume(torch_at_least("2.10") or not any(isinstance(each, _StridedShard) for each in plan.placements))
    return plan


@EXAMPLES
@given(data=st.data())
def test_every_rank_holds_what_torch_gives_it(data, any_plan, by_torch, by_ranges):
    plan = as_torch_cuts(data.draw(any_plan))
    (tensor,) = sharding(plan.shape, plan.placements, plan.mesh).tensors
    for at in everywhere(plan):
        expected = by_torch(plan, at)
        assert torch.equal(by_ranges(plan.shape, tensor.ranges(at)), expected)
        assert tensor.local_shape(at) == tuple(expected.shape)


@EXAMPLES
@given(data=st.data())
def test_shapes_and_offsets_are_those_of_torchs_util(data, any_plan):
    plan = as_torch_cuts(data.draw(any_plan))
    (tensor,) = sharding(plan.shape, plan.placements, plan.mesh).tensors
    for at in everywhere(plan):
        shape, offset = _compute_local_shape_and_global_offset(
            plan.shape, tuple(plan.mesh.values()), list(at), plan.placements
        )
        assert tensor.local_shape(at) == tuple(shape)
        for dim, ranges in enumerate(tensor.ranges(at)):
            assert not ranges or ranges[0][0] == offset[dim]


@EXAMPLES
@given(data=st.data())
def test_shards_tile_the_tensor_and_each_element_has_its_copies(data, any_plan, by_ranges):
    plan = data.draw(any_plan)
    (tensor,) = sharding(plan.shape, plan.placements, plan.mesh).tensors
    held = Counter()
    for at in everywhere(plan):
        held.update(by_ranges(plan.shape, tensor.ranges(at)).flatten().tolist())
    whole = [p for p in plan.placements if not isinstance(p, (Shard, _StridedShard))]
    times = math.prod(n for p, n in zip(plan.placements, plan.mesh.values(), strict=True) if p in whole)
    assert held == dict.fromkeys(range(math.prod(plan.shape)), times)
    replicated = [n for p, n in zip(plan.placements, plan.mesh.values(), strict=True) if isinstance(p, Replicate)]
    assert tensor.copies == math.prod(replicated)


@EXAMPLES
@given(data=st.data())
def test_folded_tables_say_what_the_rank_by_rank_table_says(data, any_plan):
    plans = data.draw(st.lists(any_plan, min_size=1, max_size=3))
    mesh = plans[0].mesh
    same = [plan for plan in plans if plan.mesh.keys() == mesh.keys()]
    shown = sharding(
        {f"t{i}": (plan.shape, plan.placements) for i, plan in enumerate(same)}, mesh=mesh, dtype="float16"
    )
    rows = shown.to_frame().rows(named=True)
    per_rank = Counter()
    for row in rows:
        per_rank[row["rank"]] += row["bytes"]
    memory = shown.memory(optimizer=0).rows(named=True)
    assert sum(row["ranks"] for row in memory) == math.prod(mesh.values())
    folded = Counter({row["parameters"]: row["ranks"] for row in memory})
    assert folded == Counter(per_rank[rank] for rank in range(math.prod(mesh.values())))
    assert all(per_rank[row["first_rank"]] == row["parameters"] for row in memory)
    for row in shown.by_tensor().rows(named=True):
        sizes = [each["bytes"] for each in rows if each["tensor"] == row["tensor"]]
        assert (row["local_bytes"], row["smallest_bytes"]) == (max(sizes), min(sizes))
        assert row["worst_rank"] == sizes.index(max(sizes))
        assert row["empty_ranks"] == (sizes.count(0))


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 9))
def test_between_borders_the_size_is_constant(size, parts, pieces):
    cut = Cut(parts, pieces)
    sizes = [int(part_size(size, cut, at)) for at in range(parts)]
    changes = {at for at in range(1, parts) if sizes[at] != sizes[at - 1]}
    assert changes <= borders(size, cut)
    assert len(borders(size, cut)) <= 4
    assert sum(sizes) == size


def test_nested_borders_count_for_every_coordinate_of_the_outer_axis():
    # 10 in 4 parts: 3, 3, 3, 1; a 1 in 2 parts leaves the second coordinate empty, a 3 does not.
    assert nested_borders(10, [Cut(4), Cut(2)]) == [{3}, {1}]


def test_hundred_million_ranks_cost_no_more_than_sixteen():
    shown = sharding((128256, 16384), "_S(0, 8), S(0)", "dp=16777216,tp=8", dtype=torch.bfloat16)
    (row,) = shown.by_tensor().rows(named=True)
    assert row["local_bytes"] == 16384 * 2
    assert row["empty_ranks"] == 16777216 * 8 - 128256
    assert [r["ranks"] for r in shown.memory().rows(named=True)] == [128256, 16777216 * 8 - 128256]


@pytest.mark.parametrize(
    ("ranges", "text"),
    [([], "–"), ([(0, 2)], "0:2"), ([(i, i + 1) for i in range(0, 12, 2)], "0:1, 2:3, 4:5, 6:7, … (6 ranges)")],
)
def test_ranges_as_text(ranges, text):
    assert ranges_text(ranges) == text


def test_as_many_ranges_as_are_written_end_without_a_number():
    four = [(i, i + 1) for i in range(0, 8, 2)]
    assert ranges_text(four) == "0:1, 2:3, 4:5, 6:7"
    assert ranges_text(four, most=3) == "0:1, 2:3, 4:5, … (4 ranges)"
