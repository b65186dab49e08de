"""The world map shaded by predicted seconds: those of the prediction's own streams."""

from __future__ import annotations

from collections.abc import Callable

import polars as pl
import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_seconds


@pytest.fixture(scope="module")
def llama(traced_llama: Callable[..., Trace]) -> Trace:
    return traced_llama("dp=4,tp=2")


def test_seconds_of_an_axis_are_those_of_its_stream(llama: Trace) -> None:
    world, predicted = llama.world_map(hardware="dgx-h100"), llama.predict("dgx-h100")
    assert world.shade == "seconds"
    spans = predicted.timeline().filter(kind="communication")
    for axis in ("dp", "tp"):
        stream = spans.filter(axis=axis).select(pl.col("end") - pl.col("start")).sum().item()
        assert world.to_shades(axis)[predicted.rank] == pytest.approx(stream, rel=1e-9)
        links = [one.seconds for one in world.levels if one.axis == axis]
        assert links == pytest.approx([stream] * len(links), rel=1e-9)
        assert links
    assert 0 < world.to_shades().max() <= predicted.timeline()["end"].max()
    assert "predicted on" in world._repr_mimebundle_()["text/plain"]


def test_another_cluster_has_other_seconds_and_the_same_bytes(llama: Trace) -> None:
    fast, slow = llama.world_map(hardware="dgx-h100"), llama.world_map(hardware="dgx1-v100")
    assert slow.to_shades().max() > fast.to_shades().max()
    assert (slow.to_each() == fast.to_each()).all()
    assert llama.world_map(hardware="dgx-h100", shade="bytes").shade == "bytes"


def test_the_step_is_predicted_with_the_nodes_that_are_drawn(llama: Trace) -> None:
    """Between nodes a collective takes longer than inside one: seconds over links of nodes of two are of such nodes."""
    narrow, whole = (llama.world_map(ranks, hardware="dgx-h100") for ranks in (2, None))
    assert (narrow.ranks_per_node, whole.ranks_per_node) == (2, 8)
    assert narrow.to_shades().max() > whole.to_shades().max()
    assert "with 2 ranks in each node" in narrow._repr_mimebundle_()["text/html"]
    rack = llama.world_map(hardware="gb200-nvl72")
    assert rack.ranks_per_node == 72
    assert "1 domain of 72" in rack._repr_mimebundle_()["text/plain"]
    assert "NVLink domain" in rack._repr_mimebundle_()["text/html"]
    assert llama.world_map().ranks_per_node == 8
    with pytest.raises(UsageError, match="ranks_per_node='2'"):
        llama.world_map("2", hardware="dgx-h100")  # type: ignore[arg-type]  # what is refused


def test_what_cannot_be_is_refused(llama: Trace) -> None:
    with pytest.raises(UsageError, match="no such shade"):
        llama.world_map(hardware="dgx-h100", shade="hours")
    with pytest.raises(UsageError, match="no-such"):
        llama.world_map(hardware="no-such")


def test_the_explorer_shades_its_map_by_the_same_seconds(llama: Trace) -> None:
    explorer = llama.explore(tab="map", hardware="dgx-h100")
    assert [value for value, _ in explorer.widget.shades] == ["bytes", "predicted"]
    explorer.widget.shade = "predicted"
    seconds = llama.world_map(hardware="dgx-h100").to_shades()
    for rank in range(8):
        assert f"rank {rank}: {format_seconds(seconds[rank])} a step" in explorer.widget.panel
    explorer.widget.close()
