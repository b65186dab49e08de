"""Pictures of shardings: position and size of shards for any tensor and mesh, and names as text."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.layout import Sharding
from dsexplore._internal.views import view_of
from dsexplore._internal.views.page.theme import AXES, axis_number, tint
from dsexplore._internal.views.sharding.parameter_list import fold_names
from dsexplore._internal.views.sharding.shard_blocks import Stretch, drawn_dims, picture, stretches
from dsexplore._internal.views.sharding.zoom import HEIGHT, WIDTH, frame_of

HOSTILE = "<img src=x onerror=alert(1)>"
SHAPES = [(), (0,), (0, 5), (7,), (10, 8), (8, 6, 4, 10), (2, 3, 4, 5, 6)]


def html_of(shown: Sharding) -> str:
    return shown._repr_mimebundle_()["text/html"]


def text_of(shown: Sharding) -> str:
    return shown._repr_mimebundle_()["text/plain"]


class Tags(HTMLParser):
    """Elements with their attributes, and that all that is opened is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("wbr", "meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def boxes(html: str) -> list[dict[str, float]]:
    """Return the blocks of the picture of all, without those of a zoom."""
    found = Tags(html).found
    zoomed = next(
        (i for i, (_, attrs) in enumerate(found) if "the first shards" in (attrs.get("aria-label") or "")), None
    )
    styles = [attrs["style"] or "" for _, attrs in found[:zoomed] if (attrs.get("class") or "").split(" ")[0] == "b"]
    return [{key: float(value) for key, value in re.findall(r"(\w+):([\d.]+)%", style)} for style in styles]


def titles(html: str) -> list[str]:
    return [attrs["title"] or "" for _, attrs in Tags(html).found if (attrs.get("class") or "").startswith("who")]


def sizes_strategy() -> st.SearchStrategy[tuple[tuple[int, ...], list[int], list[str]]]:
    def placements(shape, sizes):
        one = ["R", "P"]
        for dim in range(len(shape)):
            one += [f"S({dim})", f"_S({dim}, 2)", f"_S({dim}, 3)"]
        return st.tuples(
            st.just(shape), st.just(sizes), st.lists(st.sampled_from(one), min_size=len(sizes), max_size=len(sizes))
        )

    shapes = st.lists(st.integers(1, 40), max_size=4).map(tuple)
    return st.tuples(shapes, st.lists(st.integers(1, 9), min_size=1, max_size=4)).flatmap(
        lambda both: placements(*both)
    )


@settings(max_examples=60, deadline=None)
@given(sizes_strategy())
def test_the_blocks_of_a_picture_cover_the_tensor_once(drawn):
    shape, sizes, placements = drawn
    (tensor,) = dsexplore.sharding(shape, placements, {f"a{i}": size for i, size in enumerate(sizes)}).tensors
    shown = picture(tensor)
    others = [dim for dim in tensor.cut_dims() if dim not in (shown.rows, shown.columns)]
    rows, columns = (tensor.shape[dim] if dim is not None else 1 for dim in (shown.rows, shown.columns))
    for panel in shown.panels:
        covered = [
            (row, column)
            for block in panel.blocks
            for row0, row1 in block.rows
            for column0, column1 in block.columns
            for row in range(row0, row1)
            for column in range(column0, column1)
        ]
        assert len(covered) == len(set(covered)) == rows * columns
    assert len(shown.panels) + shown.hidden_panels == math.prod(len(stretches(tensor, dim, 4)) for dim in others)
    assert sum(len(panel.blocks) for panel in shown.panels) <= 200


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_any_tensor_on_meshes_of_one_to_four_axes_is_shown(shape, axes):
    mesh = {f"a{i}": i + 2 for i in range(axes)}
    cuts = [f"S({dim})" for dim in range(len(shape))] + ["R", "P(avg)", "R", "P"]
    shown = dsexplore.sharding(shape, cuts[:axes], mesh)
    html = html_of(shown)
    Tags(html)
    for placement in cuts[:axes]:
        assert f"<code>{placement}</code>" in html
        assert placement in text_of(shown)
    assert shown.figure().to_dict()["layout"]


def test_blocks_stand_where_their_indices_are():
    html = html_of(dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2"))
    assert boxes(html) == [
        {"left": left, "top": top, "width": 50, "height": height}
        for top, height in ((0, 30), (30, 30), (60, 30), (90, 10))
        for left in (0, 50)
    ]
    assert titles(html)[7] == "rank 7\ndp 3, tp 1\ndim 0: 9:10\ndim 1: 4:8\n16 B on each rank"


def test_all_pieces_of_a_strided_shard_belong_to_one_block():
    html = html_of(dsexplore.sharding((16, 4), "_S(0, 4)", "dp=2"))
    assert [box["top"] for box in boxes(html)] == [0, 25, 50, 75, 12.5, 37.5, 62.5, 87.5]
    assert titles(html)[0] == "rank 0\ndp 0\ndim 0: 0:2, 4:6, 8:10, 12:14\ndim 1: 0:4\n128 B on each rank"


def test_each_kind_of_placement_has_its_letter_and_its_look():
    shown = dsexplore.sharding((8, 8), "S(0), R, P(max), _S(1, 2)", "a=2,b=2,c=2,d=2")
    html = html_of(shown)
    kinds = (("shard", "S(0)"), ("replicate", "R"), ("partial", "P(max)"), ("strided", "S(1) strided"))
    for kind, letter in kinds:
        assert re.search(rf'<span class="sw {kind} x\d"></span><code[^>]*>{re.escape(letter)}</code>', html)
        style = re.search(rf"\.dsx \.{kind}{{([^}}]*)}}", html)
        assert style
        assert "gradient(" not in style[1]
    assert "still to be reduced by max" in html
    looks = {
        kind: re.search(rf"\.dsx \.{kind}{{([^}}]*)}}", html)[1]
        for kind in ("shard", "replicate", "partial", "strided")
    }
    assert len(set(looks.values())) == 4


def test_copies_and_partial_values_lie_behind_the_tensor_and_tint_it():
    replicated = html_of(dsexplore.sharding((4, 4), "R", "dp=2"))
    assert replicated.count('class="card replicate x0"') == 1
    assert replicated.count('class="over replicate x0"') == 1
    partial = html_of(dsexplore.sharding((4, 4), "P", "dp=16"))
    assert partial.count('class="card partial x0"') == 3
    four = html_of(dsexplore.sharding((4, 4), "R", "dp=4"))
    assert four.count('class="card replicate x0"') == 3  # behind the first
    assert "16 partial values" in partial
    assert "card" not in re.sub(r"<style>.*?</style>", "", html_of(dsexplore.sharding((4, 4), "R", "dp=1")))


@pytest.mark.parametrize(
    ("rows", "columns"), [(10, 8), (100, 100), (1, 1), (1, 100_000), (100_000, 1), (128256, 16384)]
)
def test_pictures_keep_proportion_or_say_by_how_much_they_do_not(rows, columns):
    frame = frame_of(rows, columns)
    assert frame.width <= WIDTH
    assert frame.height <= HEIGHT
    ratio = (frame.width / columns) / (frame.height / rows)
    assert frame.stretched == pytest.approx(max(ratio, 1 / ratio))
    html = html_of(dsexplore.sharding((rows, columns), "R", "dp=2"))
    assert ("times too thick" in html) == (frame.stretched > 1.05)


def test_the_first_two_cut_dims_are_drawn_and_more_become_panels():
    (tensor,) = dsexplore.sharding((8, 6, 4, 10), "S(0), S(1), S(3)", "a=2,b=3,c=2").tensors
    assert drawn_dims(tensor) == (0, 1)
    assert [panel.fixed for panel in picture(tensor).panels] == [((3, (0, 5)),), ((3, (5, 10)),)]
    html = html_of(dsexplore.sharding((8, 6, 4, 10), "S(0), S(1), S(3)", "a=2,b=3,c=2"))
    assert "dim 3: 5:10" in html
    assert "whole on every rank: dim 2 (4)" in html


def test_uneven_shards_and_empty_ranks_are_told():
    shown = dsexplore.sharding((10, 4), "S(0)", "dp=8")
    assert "cuts dim 0 in 8: 2, 2, 2, 2, 2, 0, 0, 0" in text_of(shown)
    assert "3 ranks hold (0, 4), 0 B each" in text_of(shown)
    assert "0 × 4</code> nothing" in html_of(shown)
    assert "cuts dim 0 in 2,048: 63 (×2,035), 51, 0 (×12)" in text_of(dsexplore.sharding((128256,), "S(0)", "dp=2048"))


def test_the_table_of_ranks_names_every_one():
    html = html_of(dsexplore.sharding((8, 4), "S(0), R", "dp=2,tp=2"))
    table = html[html.index("Rank by rank") :]
    assert re.findall(r"<tr><td>(\d)</td><td>(\d)</td><td>(\d)</td>", table) == [
        ("0", "0", "0"),
        ("1", "0", "1"),
        ("2", "1", "0"),
        ("3", "1", "1"),
    ]
    assert "Rank by rank" not in html_of(dsexplore.sharding((8, 4), "S(0)", "dp=65"))


@pytest.mark.parametrize("placements", ["_S(0, 8), S(0)", "S(0), S(1)", "R, P", "S(1), S(1)"])
def test_sixteen_thousand_ranks_are_folded(placements):
    shown = dsexplore.sharding((53248, 16384), placements, "dp=2048,tp=8")
    html = html_of(shown)
    assert len(html) < 40_000
    assert len(boxes(html)) <= 200
    assert "16,384 ranks" in html


def test_the_standard_plan_of_fsdp_over_tp_shows_tensor_parallel_parts_at_scale():
    html = html_of(dsexplore.sharding((53248, 16384), "_S(0, 8), S(0)", "dp=2048,tp=8"))
    assert [box["top"] for box in boxes(html)] == [100 * i / 8 for i in range(8)]
    assert re.findall(r"<span>(tp \d)</span>", html) == [f"tp {i}" for i in range(8)]


def test_a_strided_cut_lies_inside_the_parts_that_it_cuts_also_where_few_blocks_are_drawn():
    (tensor,) = dsexplore.sharding((512, 512), "_S(0, 4), S(0)", "dp=2,tp=4").tensors
    every = [Stretch(((64 * i, 64 * i + 64),), ((0, (i % 2, i % 2 + 1)), (1, (i // 2, i // 2 + 1)))) for i in range(8)]
    assert sorted(stretches(tensor, 0, 8), key=lambda stretch: stretch.ranges) == every
    parts = [Stretch(((128 * i, 128 * i + 128),), ((1, (i, i + 1)),), 2) for i in range(4)]
    assert stretches(tensor, 0, 7) == parts


def big_plan(layers: int) -> Sharding:
    plan = {"embed.weight": ((128256, 16384), "_S(0, 8), S(0)"), "norm.weight": ((16384,), "S(0), R")}
    for i in range(layers):
        for name in ("wq", "wk", "wv", "w1", "w3"):
            plan[f"layers.{i}.{name}.weight"] = (1024 if name in ("wk", "wv") else 16384, 16384), "_S(0, 8), S(0)"
        for name in ("wo", "w2"):
            plan[f"layers.{i}.{name}.weight"] = (16384, 53248), "S(0), S(1)"
        for name in ("attention_norm", "ffn_norm"):
            plan[f"layers.{i}.{name}.weight"] = (16384,), "S(0), R"
    return dsexplore.sharding(plan, mesh="dp=2048,tp=8", dtype="bfloat16")


def test_a_model_of_126_layers_on_16384_ranks_is_small_and_layers_are_folded():
    shown = big_plan(126)
    html = html_of(shown)
    Tags(html)
    assert len(html.encode()) <= 90_000
    assert html.count('<span class="times">×126</span>') == 9
    assert len(html) - len(html_of(big_plan(2))) < 200  # more layers, no more lines
    assert len(text_of(shown).splitlines()) <= 12


def test_only_what_is_alike_is_folded():
    plan = {f"layers.{i}.w": ((8, 8), "S(0)") for i in range(4)} | {"layers.4.w": ((8, 9), "S(0)")}
    plan |= {f"blocks.0.parts.{i}.b": ((8,), "R") for i in range(2)} | {"conv2d.weight": ((3,), "R")}
    kinds = fold_names(dsexplore.sharding(plan, mesh="dp=2").tensors)
    assert [(kind.name, len(kind.tensors)) for kind in kinds] == [
        ("layers.*.w", 4),
        ("layers.4.w", 1),
        ("blocks.0.parts.*.b", 2),
        ("conv2d.weight", 1),
    ]


def test_memory_bars_are_as_long_as_the_bytes():
    html = html_of(dsexplore.sharding({"a": ((3,), "S(0)"), "b": ((1,), "R")}, mesh="dp=2"))
    widths = [float(width) for width in re.findall(r'class="m[pgo]" style="width:([\d.]+)%"', html)]
    assert widths == [25, 25, 50, 16.7, 16.7, 33.3]
    assert "Counted, not measured" in html


@pytest.mark.parametrize("name", [HOSTILE, "x" * 10_000, "שלום \u202e", "层.0.权重", '"><script>', "a\nb\x00c"])
def test_names_are_data(name):
    axis = "ось"
    shown = [
        dsexplore.sharding({name: ((4, 4), "S(0)"), "other": ((4,), "R")}, mesh={axis: 2}),
        dsexplore.sharding({name: ((4, 4), "S(0)")}, mesh={axis: 2}),
    ]
    for each in shown:
        html = html_of(each)
        tags = {tag for tag, _ in Tags(html).found}
        assert tags <= {
            "div",
            "style",
            "p",
            "b",
            "h2",
            "table",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
            "span",
            "bdi",
            "code",
            "details",
            "summary",
            "wbr",
            "form",
            "fieldset",
            "legend",
            "label",
            "input",
            "i",
            "svg",
            "path",
        }
        assert "\u202e" not in html
        assert len(html) < 30_000
        assert max(map(len, text_of(each).splitlines())) < 400
        for figure in (each.figure(kind="memory"), each.figure(kind="shards", tensor=name)):
            assert "<img" not in figure.to_json()
            assert "<script" not in figure.to_json()


def test_views_depend_on_content_alone_and_fetch_nothing(tmp_path):
    first, second = big_plan(2), big_plan(2)
    assert first._repr_mimebundle_() == second._repr_mimebundle_()
    page = first.to_html(tmp_path / "plan.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|<script|url\(", page)
    assert page.startswith("<!DOCTYPE html>")


def test_a_model_without_parameters_and_one_without_placements():
    empty = dsexplore.sharding(nn.ReLU())
    assert "No parameters" in html_of(empty)
    assert "No parameters." in text_of(empty)
    assert empty.figure().to_dict()["layout"]
    plain = dsexplore.sharding(nn.Linear(2, 2), mesh="dp=4")
    assert "each of the 4 ranks holds a whole tensor" in html_of(plain)
    assert "plain" in text_of(plain)


def test_figures_say_what_they_draw():
    shown = dsexplore.sharding((10, 8), "S(0), S(1)", "dp=4,tp=2")
    memory = shown.figure(kind="memory", optimizer="SGD").to_dict()
    assert [trace["name"] for trace in memory["data"]] == ["W parameters", "G gradients", "O optimizer"]
    assert list(memory["data"][0]["y"]) == [f"rank {rank}" for rank in range(8)]
    assert list(memory["data"][0]["x"]) == [48] * 6 + [16] * 2
    assert list(memory["data"][2]["x"]) == [0] * 8
    shards = shown.figure().to_dict()["data"]
    assert [trace["name"] for trace in shards[8:]] == ["dp", "tp"]
    assert shards[7]["text"] == "rank 7<br>dp 3, tp 1<br>dim 0: 9:10<br>dim 1: 4:8<br>16 B on each rank"
    tinted = dsexplore.sharding((4, 4), "R, P", "dp=2,tp=2").figure().to_dict()["data"]
    assert [trace["fillcolor"] for trace in tinted[1:]] == [
        tint(AXES[axis_number(axis)][0], 0.14) for axis in ("dp", "tp")
    ]
    folded = big_plan(1).figure().to_dict()["data"][0]
    assert len(folded["y"]) <= 40
    with pytest.raises(UsageError, match="kinds are memory, shards"):
        shown.figure(kind="pie")
    with pytest.raises(UsageError, match="name it"):
        big_plan(1).figure(kind="shards")
    with pytest.raises(UsageError, match="no tensor 'q'"):
        big_plan(1).figure(tensor="q")


def test_the_view_is_found_by_type():
    shown = dsexplore.sharding((2,), "R", "dp=2")
    assert text_of(shown).startswith("Sharding: tensor (2,) float32, 8 B, on dp=2 (2 ranks)")
    assert view_of(shown).title == "Sharding"


def test_a_folded_square_says_of_how_many_shards_and_shows_their_cuts():
    plan = dsexplore.sharding((4096, 4096), "S(0), S(1)", "dp=128,tp=128")
    html = plan._repr_mimebundle_()["text/html"]
    assert "16,384 shards" in html
    assert "--across:4.0px;--down:4.0px;" in html
    assert ">16,384 ranks<" not in html
    whole = dsexplore.sharding((4096, 4096), "R, R", "dp=128,tp=128")._repr_mimebundle_()["text/html"]
    assert "--across:" not in whole.partition("</style>")[2]


@pytest.mark.parametrize(
    ("shape", "placements", "mesh", "said"),
    [
        ((8, 8), "S(0)", "dp=4", "Each rank holds 2 × 8, 64 B of 256 B."),
        ((8, 8), "R", "dp=4", "Each rank holds all of it, 256 B."),
        ((8, 8), "P", "dp=4", "Each rank holds all of it, 256 B (a partial value)."),
        ((10, 8), "S(0), S(1)", "dp=4,tp=2", "Each rank holds 1 × 4 to 3 × 4, 16 B to 48 B of 320 B."),
        ((10, 4), "S(0)", "dp=8", "3 ranks of 8 hold nothing; each other holds 2 × 4, 32 B of 160 B."),
        ((53248, 16384), "S(0), S(1)", "dp=2048,tp=8", "Each rank holds 26 × 2048, 208 KiB of 3.3 GiB."),
    ],
)
def test_the_title_says_what_a_rank_holds(shape, placements, mesh, said):
    html = html_of(dsexplore.sharding(shape, placements, mesh))
    assert f'<p class="verdict">{said}</p>' in html


def test_the_title_of_several_tensors_says_what_the_rank_with_most_needs():
    equal = dsexplore.sharding({"a": ((8, 8), "S(0)"), "b": ((8,), "S(0)")}, mesh="dp=4")
    assert (
        '<p class="verdict">Each rank holds 72 B of 288 B of parameters; it needs 288 B with gradients and AdamW.</p>'
    ) in html_of(equal)
    uneven = dsexplore.sharding({"a": ((5, 8), "S(0)"), "b": ((8,), "S(0)")}, mesh="dp=4")
    assert '<p class="verdict">Rank 0 holds most: 72 B of 192 B of parameters; it needs 288 B' in html_of(uneven)
