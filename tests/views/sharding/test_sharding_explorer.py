"""The explorer of a sharding: any rank of the mesh can be zoomed on, the shards around its own are drawn."""

from __future__ import annotations

import re

import pytest

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.views.sharding.shard_blocks import picture
from dsexplore._internal.views.sharding.zoom import zoom


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*?</style>", "", html)))


def test_any_of_sixteen_thousand_ranks_is_zoomed_on() -> None:
    explorer = dsexplore.sharding((53248, 16384), "S(0), S(1)", "dp=2048,tp=8").explore()
    assert "shards around rank 0&#x27;s" in words(explorer.picture.value)
    for rank, dp in ((9003, 1125), (16383, 2047), (5, 0)):
        explorer.zoom(rank)
        assert explorer.held == ([(26 * dp, 26 * (dp + 1))], [(2048 * (rank % 8), 2048 * (rank % 8 + 1))])
        said = words(explorer.picture.value)
        assert f"rank {rank:,} ( dp {dp}, tp {rank % 8}) holds" in said
        first = min(max(dp - 2, 0), 2048 - 5)
        drawn = said.partition("shards around rank")[2]
        assert all(f"dp {at}, tp {rank % 8}" in drawn for at in range(first, first + 5))
        assert f"dp {first + 5}, tp" not in drawn


def test_the_shards_of_the_rank_are_lit() -> None:
    """One of eight in all, and of folded ones the stretch that holds it, in the picture and in its zoom."""
    few = dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2").explore()
    many = dsexplore.sharding((53248, 16384), "S(0), S(1)", "dp=2048,tp=8").explore()
    for explorer, rank, lit in ((few, 5, 1), (many, 9003, 2)):
        assert ".mine{" in explorer.picture.value
        explorer.zoom(rank)
        assert len(re.findall(r'<div class="who [^"]*mine"', explorer.picture.value)) == lit
    assert ".mine" not in dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2")._repr_mimebundle_()["text/html"]


def test_the_window_begins_at_the_ranks_own_columns() -> None:
    shown = dsexplore.sharding((53248, 16384), "S(0), S(1)", "dp=2048,tp=8")
    (tensor,) = shown.tensors
    found = zoom(tensor, picture(tensor, 96), (1125, 3))
    assert found is not None
    assert found.rows == (26 * 1123, 26 * 1128)
    assert found.columns[0] == 3 * 2048


def test_strided_shards_are_found_among_their_neighbors_in_memory() -> None:
    shown = dsexplore.sharding((4096, 8), "_S(0, 8), S(0)", "dp=64,tp=8")
    explorer = shown.explore()
    explorer.zoom(8 * 10 + 3)  # dp 10 of tp 3: the eleventh of tp 3's 64 shards
    assert explorer.held[0] == [(3 * 512 + 10 * 8, 3 * 512 + 11 * 8)]
    assert " 67 75 83 91 99 " in words(explorer.picture.value).partition("shards around")[2]  # dp 8 to 12 of tp 3


def test_a_tensor_is_chosen_by_name_and_what_is_not_there_is_said() -> None:
    plan = dsexplore.sharding({"w": ((8, 8), "S(0)"), "b": ((2,), "S(0)")}, mesh="dp=4")
    explorer = plan.explore()
    explorer.choose("b")
    explorer.zoom(3)
    assert "holds no shard" in words(explorer.picture.value)
    with pytest.raises(UsageError, match="no such tensor"):
        explorer.choose("c")
    with pytest.raises(UsageError, match="rank 4 is not on the mesh"):
        explorer.zoom(4)
    explorer.children[1].value = 9  # as somebody types it
    assert "rank 9 is not on the mesh" in explorer.picture.value
