"""Ranks as buttons: those drawn of a large mesh, and the shards that each highlights."""

from __future__ import annotations

import re

import pytest

import dsexplore
from dsexplore._internal.sharding.layout import Sharding
from dsexplore._internal.views.sharding.drawn_mesh import MOST_SAMPLED, sample_of
from dsexplore._internal.views.sharding.shard_blocks import picture
from dsexplore._internal.views.sharding.zoom import zoom


def html_of(shown: Sharding) -> str:
    return shown._repr_mimebundle_()["text/html"]


@pytest.mark.parametrize(
    ("shape", "placements", "mesh"),
    [
        ((10, 8), "S(0), S(1)", "dp=4,tp=2"),
        ((32, 16), "_S(0, 4), S(0)", "dp=2,tp=4"),
        ((10, 4), "S(0)", "dp=8"),
        ((12, 6), "R, S(0), S(1)", "a=2,b=2,c=3"),
    ],
)
def test_a_rank_lights_the_blocks_that_it_holds_and_no_other(
    shape: tuple[int, ...], placements: str, mesh: str
) -> None:
    shown = dsexplore.sharding(shape, placements, mesh)
    (tensor,) = shown.tensors
    drawn, sample = picture(tensor), sample_of(shown)
    assert sample.is_whole
    rows = {row["rank"]: row["ranges"] for row in shown.to_frame().iter_rows(named=True)}
    for index, rank in enumerate(sample.numbers.tolist()):
        lit = [block for block in drawn.panels[0].blocks if index in sample.holding(tensor, block.places)]
        boxes = {(row, column) for block in lit for row in block.rows for column in block.columns}
        held = [[tuple(part) for part in dim] for dim in rows[rank]]
        assert boxes == {(row, column) for row in held[0] for column in held[1]}
        assert (index in sample.empty(tensor)) == (not boxes)


def test_one_rule_lights_the_same_rank_in_every_tensor() -> None:
    html = html_of(dsexplore.sharding({"a": ((4, 4), "S(0)"), "b": ((2, 4), "S(1)")}, mesh="dp=2"))
    assert ".dsx:has(.h1:is(:hover,:checked)) .h1" in html
    assert html.count('<input type="radio" name="rank" class="h1">') == 1
    thumbnails = re.findall(r"<svg.*?</svg>", html)
    assert len(thumbnails) == 2
    assert all(each.count('class="h1') == 1 for each in thumbnails)
    assert html.count('<div class="who h1"') == 2


def test_what_every_rank_holds_is_lit_by_each() -> None:
    html = html_of(dsexplore.sharding((4, 4), "R", "dp=2"))
    assert '<div class="who ha"' in html
    assert ".dsx:has(.ranks label:hover,.ranks :checked) .ha{" in html


def test_empty_ranks_are_seen_in_the_grid_in_the_picture_and_in_the_list() -> None:
    one = html_of(dsexplore.sharding((10, 4), "S(0)", "dp=8"))
    assert re.findall(r'class="h(\d) o"', one) == ["5", "6", "7"]
    assert '<div class="none h5 h6 h7"' in one
    assert "∅ 3 ranks hold nothing: 5–7" in one
    two = html_of(dsexplore.sharding({"w": ((10, 4), "S(0)"), "b": ((16,), "S(0)")}, mesh="dp=8"))
    assert '<summary class="line e5 e6 e7">' in two
    assert "<b>∅ 3 ranks</b>" in two
    assert ".dsx:has(.h5:is(:hover,:checked)) .e5" in two
    assert "∅" not in html_of(dsexplore.sharding((8, 4), "S(0)", "dp=8"))


@pytest.mark.parametrize("mesh", ["dp=2048,tp=8", "dp=128,tp=128", "dp=16384", "pp=8,dp=256,tp=8", "a=97"])
def test_of_very_many_ranks_some_are_drawn_the_ends_and_those_that_differ_among_them(mesh: str) -> None:
    axes = [part.split("=") for part in mesh.split(",")]
    placements = ", ".join(["R"] * (len(axes) - 1) + ["S(0)"])
    shown = dsexplore.sharding((1000, 4), placements, mesh)
    sample = sample_of(shown)
    assert len(sample) <= MOST_SAMPLED
    assert not sample.is_whole
    assert {int(sample.numbers.min()), int(sample.numbers.max())} == {0, shown.mesh.size - 1}
    assert len(set(sample.numbers.tolist())) == len(sample)
    (tensor,) = shown.tensors
    held = {tensor.local_shape(shown.mesh.coordinates(rank)) for rank in sample.numbers.tolist()}
    assert held == {group.value for group in shown.shapes(tensor)}
    assert [shown.mesh.coordinates(rank) for rank in sample.numbers.tolist()] == [
        sample.coordinates(index) for index in range(len(sample))
    ]


def test_a_mesh_of_one_rank_has_no_grid() -> None:
    assert "<form" not in html_of(dsexplore.sharding((4, 4), "S(0)", "dp=1"))


def test_a_zoom_shows_the_first_shards_where_they_are() -> None:
    shown = dsexplore.sharding((128256, 16384), "_S(0, 8), S(0)", "dp=2048,tp=8")
    (tensor,) = shown.tensors
    window = zoom(tensor, picture(tensor))
    assert window is not None
    assert window.rows == (0, 40)
    assert [part.ranges for part in window.picture.down] == [((8 * i, 8 * i + 8),) for i in range(5)]
    for block in window.picture.panels[0].blocks:
        at = dict(block.places)
        held = tensor.dim_ranges(0, (at[0][0], at[1][0]))
        assert held == list(block.rows)
    both = dsexplore.sharding((4096, 4096), "S(0), S(1)", "dp=128,tp=128")
    html = html_of(both)
    assert "the first shards, 26 times larger" in html
    assert html.count("dp 4, tp 4") > 0
    (small,) = dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2").tensors
    assert zoom(small, picture(small)) is None


def test_a_lit_rank_of_a_folded_picture_shows_its_own_shard() -> None:
    html = html_of(dsexplore.sharding((4096, 4096), "S(0), S(1)", "dp=128,tp=128"))
    owns = re.findall(r'<i class="own ([^"]+)" style="left:([\d.]+)%;top:([\d.]+)%;width:([\d.]+)%', html)
    assert owns[0] == ("h0", "0", "0", "0.7812")
    assert owns[-1][1:3] == ("99.22", "99.22")
