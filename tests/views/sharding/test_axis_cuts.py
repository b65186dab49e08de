"""Where axes cut a dim: runs from the outermost axis to the innermost, and the brackets that name them.

Modules: ``views/sharding/shard_blocks.py``.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsexplore
from dsexplore._internal.views.sharding.shard_blocks import AxisCuts, axis_cuts, boundaries, picture


def cuts_of(shape: tuple[int, ...], placements: str, mesh: str, blocks: int = 96) -> list[AxisCuts]:
    (tensor,) = dsexplore.sharding(shape, placements, mesh).tensors
    drawn = picture(tensor, blocks)
    return axis_cuts(tensor, drawn.rows, drawn.down)


def runs(cuts: AxisCuts) -> list[tuple[int, int, tuple[int, int] | None]]:
    return [(run.start, run.stop, run.place) for run in cuts.runs]


def test_each_axis_has_its_runs_and_empty_coordinates_have_none() -> None:
    (dp,) = cuts_of((10, 4), "S(0)", "dp=8")
    assert runs(dp) == [(2 * i, 2 * i + 2, (i, i + 1)) for i in range(5)]


def test_the_outermost_cut_comes_first_though_the_mesh_names_it_last() -> None:
    outer, inner = cuts_of((8, 4), "_S(0, 2), S(0)", "dp=2,tp=2")
    assert (outer.number, inner.number) == (1, 0)
    assert runs(outer) == [(0, 4, (0, 1)), (4, 8, (1, 2))]
    assert runs(inner) == [(0, 2, (0, 1)), (2, 4, (1, 2)), (4, 6, (0, 1)), (6, 8, (1, 2))]
    assert boundaries([outer, inner]) == {4: 0, 2: 1, 6: 1}
    plain = cuts_of((8, 4), "S(0), S(0)", "dp=2,tp=2")
    assert [each.number for each in plain] == [0, 1]


def test_an_inner_run_ends_where_an_outer_axis_cuts() -> None:
    """With 2 rows per dp coordinate, the first two of 4 tp ranks hold a row each, and the others nothing."""
    _, inner = cuts_of((2, 4), "S(0), S(0)", "dp=2,tp=4")
    assert runs(inner) == [(0, 1, (0, 1)), (1, 2, (0, 1))]


def test_cuts_that_are_too_many_to_be_drawn_have_no_coordinates() -> None:
    outer, inner = cuts_of((53248, 16384), "_S(0, 8), S(0)", "dp=2048,tp=8")
    assert [run.place for run in outer.runs] == [(i, i + 1) for i in range(8)]
    assert {run.place for run in inner.runs} == {None}


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 60), st.lists(st.sampled_from(["S(0)", "_S(0, 2)", "R", "S(1)"]), min_size=1, max_size=3), st.data()
)
def test_the_runs_of_an_axis_cover_the_dim_once(size: int, placements: list[str], data: st.DataObject) -> None:
    mesh = {f"a{i}": data.draw(st.integers(1, 6)) for i in range(len(placements))}
    (tensor,) = dsexplore.sharding((size, 7), placements, mesh).tensors
    drawn = picture(tensor)
    for dim, stretches in ((drawn.rows, drawn.down), (drawn.columns, drawn.across)):
        for cuts in axis_cuts(tensor, dim, stretches):
            assert [run.start for run in cuts.runs] == [0, *(run.stop for run in cuts.runs[:-1])]
            assert cuts.runs[-1].stop == tensor.shape[dim or 0]


def brackets_of(html: str) -> list[tuple[str, str]]:
    """(color class, text) of each bracket of the picture of all."""
    whole = html.partition("the first shards")[0]
    return re.findall(r'<span class="k (?:above|beside) (x\d)[^"]*"[^>]*>([^<]*)</span>', whole)


def test_brackets_name_the_axis_and_its_coordinate_in_its_color() -> None:
    shown = dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2")
    assert brackets_of(shown._repr_mimebundle_()["text/html"]) == [
        ("x0", "dp 0"), ("x0", "dp 1"), ("x0", "dp 2"), ("x0", "3"), ("x2", "tp 0"), ("x2", "tp 1"),
    ]  # fmt: skip


def test_an_axis_has_one_color_in_all_pictures_of_a_model() -> None:
    plan = {"a": ((64, 64), "S(0), S(1)"), "b": ((64, 64), "S(1), S(0)"), "c": ((64,), "R, S(0)")}
    html = dsexplore.sharding(plan, mesh="dp=2,tp=4")._repr_mimebundle_()["text/html"]
    colors = {(kind, text.split(" ")[0]) for kind, text in brackets_of(html) if " " in text}
    assert colors == {("x0", "dp"), ("x2", "tp")}
    assert re.findall(r'<span class="axis (x\d)"><bdi>(\w+)</bdi>', html) == [("x0", "dp"), ("x2", "tp")]


@pytest.mark.parametrize(("blocks", "text"), [("S(0)", "dp in 300"), ("S(0), R", "dp in 300")])
def test_brackets_too_short_to_be_drawn_are_one(blocks: str, text: str) -> None:
    mesh = "dp=300" + (",tp=2" if "," in blocks else "")
    html = dsexplore.sharding((300, 300), blocks, mesh)._repr_mimebundle_()["text/html"]
    assert brackets_of(html) in ([("x0", text)], [("x0", "dp 0–299")])
