"""The world map as text, as a drawing, as a figure, and with a rank clicked."""

from __future__ import annotations

import re
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

import dsexplore
from dsexplore import Trace
from dsexplore._internal.analysis.world_map import WorldMap
from dsexplore._internal.units import format_bytes, format_seconds
from dsexplore._internal.views.world_map.world_map_figure import node_boxes


def world_of(dp: int) -> WorldMap:
    with dsexplore.simulate(mesh=f"dp={dp},tp=8") as mesh, dsexplore.commtrace() as trace:
        dist.all_reduce(torch.ones(256), group=mesh["tp"].get_group())
        dist.all_reduce(torch.ones(256), group=mesh["dp"].get_group())
    world: WorldMap = trace.world_map()
    return world


@pytest.fixture(scope="module")
def world() -> WorldMap:
    return world_of(2)


def test_the_text_says_what_goes_where(world: WorldMap) -> None:
    assert world._repr_mimebundle_()["text/plain"].splitlines() == [
        "World map: 16 ranks on 2 nodes of 8, dp=2,tp=8; what rank 0 sends in a step",
        "  Per rank and step 1.8 KiB stay inside a node, 1 KiB go between nodes.",
        "  tp, inside a node: 1.8 KiB on the wire to 7 other ranks",
        "  dp, between nodes: 1 KiB on the wire to 1 other rank",
    ]


def test_a_world_of_one_rank_that_sends_nothing() -> None:
    with dsexplore.simulate(mesh="dp=1"), dsexplore.commtrace() as trace:
        pass
    world = trace.world_map()
    assert repr(world) == "<WorldMap: 1 rank on 1 node of 8>"
    assert world._repr_mimebundle_()["text/plain"].splitlines() == [
        "World map: 1 rank on 1 node of 8, dp=1; what rank 0 sends in a step",
        "  Nothing was sent after start-up: there is no link to draw.",
    ]


def test_the_title_may_break_after_underscores_of_long_axes() -> None:
    axis = "a_long_name_" * 8
    with dsexplore.simulate(mesh=f"{axis}=2"), dsexplore.commtrace() as trace:
        pass
    title = trace.world_map()._repr_mimebundle_()["text/html"].partition("World map: ")[2].partition("</p>")[0]
    assert f"{'a_<wbr>long_<wbr>name_<wbr>' * 7}a_<wbr>long_<wbr>name_" in title


def test_the_drawing_has_a_cell_per_rank(world: WorldMap) -> None:
    html = world._repr_mimebundle_()["text/html"]
    spoken = re.findall(r'aria-label="([^"]+)"', html)
    assert len(spoken) == 16
    assert spoken[0] == "rank 0: 0 B a step, recorded, in a group of dp, tp"
    assert spoken[8] == "rank 8: 1 KiB a step, in a group of dp"
    assert spoken[9] == "rank 9: 0 B a step"
    assert "1.8 KiB stay inside a node, 1 KiB go between nodes" in html


def test_ranks_that_send_unlike_amounts_are_said_to_send_at_most_so_much() -> None:
    traces = []
    for rank in (0, 1):
        with dsexplore.simulate(2, rank=rank), dsexplore.commtrace() as trace:
            dist.all_reduce(torch.ones(256))
            for _ in range(2):
                if rank:
                    dist.recv(torch.ones(256), 0)
                else:
                    dist.send(torch.ones(256), 1)
        traces.append(trace)
    for shown, most in ((Trace.merge(traces), "at most "), (traces[0], "")):
        bundle = shown.world_map()._repr_mimebundle_()
        assert f"inside a node: {most}3 KiB on the wire" in bundle["text/plain"]
        assert f"Per rank and step {most}3 KiB stay inside a node, 0 B go between nodes." in bundle["text/html"]
        assert ("per rank and step, at most" in bundle["text/html"]) == bool(most)


def test_alike_nodes_of_a_large_world_are_one() -> None:
    world = world_of(2048)
    nodes = node_boxes(world)
    assert [len(node.numbers) for node in nodes] == [1, 2047]
    html = world._repr_mimebundle_()["text/html"]
    assert "nodes 1–2047 (each of 2,047)" in html
    assert len(html) < 12_000


def test_colors_have_one_scale_whatever_axis_is_chosen(world: WorldMap) -> None:
    all_axes, one = (world.figure(axis=axis).data[0] for axis in (None, "dp"))
    assert (all_axes.zmin, all_axes.zmax) == (one.zmin, one.zmax) == (0, 1024)
    assert one.z[1][0] == 1024


def test_a_clicked_rank_is_the_selection(world: WorldMap) -> None:
    explorer = world.explore()
    assert len(explorer.selection) == 2
    explorer.select(8)
    assert explorer.selection.events["axis"].to_list() == ["dp"]
    explorer.controls["axis"].value = "tp"
    assert len(explorer.selection) == 0
    explorer.select(None)
    assert len(explorer.selection) == 2


def test_a_world_in_which_nothing_was_sent_says_so() -> None:
    assert "Nothing was sent" in Trace().world_map()._repr_mimebundle_()["text/html"]


class TestSeconds:
    @pytest.fixture
    def timed(self, traces: ModuleType) -> WorldMap:
        world: WorldMap = traces.timed(4, 2).world_map(2, shade="seconds")
        return world

    def test_the_map_says_which_seconds_these_are(self, timed: WorldMap) -> None:
        bundle = timed._repr_mimebundle_()
        for shown in (bundle["text/plain"], bundle["text/html"]):
            assert "; time in collectives per step, measured" in shown
            assert "Seconds: measured, the mean of 2 steps" in shown
            assert "the rest is waiting, and is not counted" in shown
            assert "Links have no times of their own" in shown
        assert "waiting for the others is part" not in bundle["text/plain"]  # all four ranks are recorded
        assert "seconds per rank and step, at most" in bundle["text/html"]
        top = format_seconds(timed.to_shades().max())
        assert "Shade: seconds of a step that a rank is in collectives, 0 <span" in bundle["text/html"]
        assert f"</span> {top}.</p>" in bundle["text/html"]
        assert f"rank 0: {format_seconds(timed.to_shades()[0])} a step, recorded" in bundle["text/html"]

    def test_one_rank_alone_cannot_tell_waiting_apart_and_it_says_so(self, traces: ModuleType) -> None:
        text = traces.timed(1).world_map(shade="seconds")._repr_mimebundle_()["text/plain"]
        assert "waiting for the others is part of what was measured" in text

    def test_the_lines_have_bytes_and_seconds(self, timed: WorldMap) -> None:
        lines = timed._repr_mimebundle_()["text/plain"].splitlines()[2:-1]
        assert len(lines) == len(timed.levels)
        for line, level in zip(lines, timed.levels, strict=True):
            assert line.endswith(f"at most {format_seconds(level.seconds)}")
            assert format_bytes(level.bytes) in line

    def test_the_figure_and_the_explorer_have_the_same_seconds(self, timed: WorldMap) -> None:
        marks = timed.figure().data[0]
        assert marks.zmax == pytest.approx(timed.to_shades().max())
        assert marks.z[0][0] == pytest.approx(timed.to_shades()[0], rel=1e-3)  # three digits are sent
        explorer = timed.explore()
        explorer.select(2)
        assert format_seconds(timed.to_shades()[2]) in explorer.children[2].value
        assert explorer.selection.events.equals(timed.talks_to(2).events)
