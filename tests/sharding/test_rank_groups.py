"""Groups of equal ranks: their text, their numbers, and which blocks they come from."""

from __future__ import annotations

import numpy as np
import pytest

import dsexplore
from dsexplore._internal.mesh import Mesh
from dsexplore._internal.sharding.rank_groups import blocks_of, group_blocks


def shapes(shape, placements, mesh):
    shown = dsexplore.sharding(shape, placements, mesh)
    return shown, shown.shapes(shown.tensors[0])


def test_groups_come_largest_first_with_all_their_ranks():
    shown, groups = shapes((10, 6), "S(0), S(1)", "dp=4,tp=2")
    assert [(group.value, group.count, group.ranks, group.first) for group in groups] == [
        ((3, 3), 6, "0–5", (0, 0)),
        ((1, 3), 2, "6–7", (3, 0)),
    ]
    assert [group.numbers(shown.mesh) for group in groups] == [[0, 1, 2, 3, 4, 5], [6, 7]]


def test_a_single_group_is_all_ranks_and_one_rank_is_a_number():
    assert [group.ranks for group in shapes((8,), "S(0)", "dp=4")[1]] == ["all"]
    assert [group.ranks for group in shapes((8,), "S(0)", "dp=1")[1]] == ["0"]


def test_a_tensor_without_dims_is_alike_on_all_ranks():
    ((only,),) = [shapes((), "R, R", "dp=2,tp=2")[1]]
    assert (only.value, only.count, only.ranks) == ((), 4, "all")


def test_of_very_many_ranks_coordinates_are_written():
    _, groups = shapes((8193, 3), "S(0), S(1)", "dp=8194,tp=2")
    assert [(group.value, group.count, group.ranks) for group in groups] == [
        ((1, 2), 8193, "dp 0–8192, tp 0"),
        ((1, 1), 8193, "dp 0–8192, tp 1"),
        ((0, 2), 1, "16386"),
        ((0, 1), 1, "16387"),
    ]


@pytest.mark.parametrize(("ranks", "text"), [(4096, "0–4095"), (4097, "dp 0–4096")])
def test_up_to_4096_ranks_are_counted_out(ranks, text):
    assert shapes((ranks,), "S(0)", f"dp={ranks + 1}")[1][0].ranks == text


def test_of_many_blocks_the_first_three_are_written():
    mesh = Mesh(("a", "b"), (9, 5000))
    blocks = blocks_of(mesh, dsexplore.sharding((40, 3), "S(0), R", "a=9,b=5000").tensors)
    assert blocks.shape == (2, 1)
    fine = type(blocks)(mesh, (np.arange(9), np.array([0])), (np.ones(9, dtype=np.int64), np.array([5000])))
    for apart, end in ((3, ""), (4, "; …")):
        values = np.ones((9, 1, 1), dtype=np.int64)
        values[: 2 * apart : 2] = 2
        (first, _) = group_blocks(fine, values)
        assert first.ranks == "a 0; a 2; a 4" + end
        assert first.count == apart * 5000
