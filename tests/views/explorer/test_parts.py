"""The explorer's timeline, world map and parameters: what is picked in any of them filters all the others.

Modules: ``views/explorer/``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import polars as pl
import pytest

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.units import format_seconds


def send(explorer: Any, **message: Any) -> None:
    """Send what the browser sends."""
    explorer.widget._handle_custom_msg(message, [])


def count_of_root(explorer: Any) -> float:
    rows = len(explorer.widget.labels)
    values = np.frombuffer(explorer.widget.values, np.float32).reshape(-1, rows)
    return float(values[explorer.widget.columns[0]][0])


def panel(explorer: Any, tab: str) -> str:
    """Return what a tab shows, once it is opened."""
    explorer.widget.tab = tab
    shown: str = explorer.widget.panel
    return shown


def lanes_of(explorer: Any) -> dict[str, int]:
    """Return how many boxes each lane of the timeline has."""
    explorer.widget.tab = "timeline"
    drawn = explorer.widget.timeline
    lanes = np.frombuffer(drawn["boxes"]["lane"], np.uint16).tolist()
    return {name: lanes.count(i) for i, name in enumerate(drawn["lanes"])}


class TestTimeline:
    def test_a_brushed_range_filters_tree_table_figure_and_selection(self, trace: Trace) -> None:
        explorer = trace.explore()
        before = explorer.widget.spec
        send(explorer, type="brush", begin=0.0, end=0.12)  # of 25 places
        assert explorer.selection.events["seq"].to_list() == [0, 1, 2]
        assert count_of_root(explorer) == 3
        assert explorer.widget.spec != before
        assert explorer.widget.status.startswith("<span>3 of 25 collectives, 13 KiB on the wire</span>")
        assert "only from 0 to 3 of the timeline" in explorer.widget.status
        assert explorer.widget.brushed["brush"] == pytest.approx([0.0, 0.12], abs=1e-5)
        assert explorer.widget.brushed["status"].startswith("3 collectives from 0 to 3: 13 KiB on the wire")
        assert sum(lanes_of(explorer).values()) == 25  # the timeline goes on to show what else could be picked
        send(explorer, type="drop", part="timeline")
        assert len(explorer.selection) == 25
        assert explorer.widget.brushed == {"brush": [], "status": ""}

    def test_it_shows_what_filters_and_the_selected_row_let_through(self, trace: Trace) -> None:
        explorer = trace.explore()
        assert lanes_of(explorer) == {"forward": 17, "backward": 8}
        explorer.filter(phase="backward")
        assert lanes_of(explorer) == {"forward": 0, "backward": 8}
        explorer.filter()
        explorer.select("Net.layers.3.up")
        assert lanes_of(explorer) == {"forward": 1, "backward": 1}

    def test_a_range_is_kept_while_filters_change_and_dropped_by_clear(self, trace: Trace) -> None:
        explorer = trace.explore()
        explorer.between(0, 6)
        explorer.widget.chosen = {"phase": 2}
        assert explorer.selection.events["seq"].to_list() == [2, 5]
        explorer.select("Net.layers.0")
        explorer.widget.folding = False
        assert explorer.selection.events["seq"].to_list() == [2]
        send(explorer, type="clear")
        assert len(explorer.selection) == 25
        assert explorer.widget.brushed["brush"] == []

    def test_a_clicked_box_is_listed_with_cause_and_line(self, trace: Trace) -> None:
        explorer = trace.explore()
        send(explorer, type="pick", box=1)
        assert explorer.selection.events["seq"].to_list() == [1]
        assert "P→R" in explorer.widget.details
        assert "train.py:10" in explorer.widget.details

    def test_the_switch_governs_its_heights_and_texts(self, trace: Trace) -> None:
        explorer = trace.explore()
        assert "4 KiB on the wire" in explorer.widget.timeline["texts"][0]
        explorer.between(0, 1)
        before = explorer.widget.timeline["boxes"]["level"]
        explorer.widget.sizes = "message"
        assert "8 KiB in messages" in explorer.widget.timeline["texts"][0]
        assert "taller is more message bytes" in explorer.widget.timeline["axis"]
        assert explorer.widget.timeline["boxes"]["level"] != before
        assert explorer.selection.events["seq"].to_list() == [0]

    def test_other_lanes_keep_the_range_and_the_window(self, trace: Trace) -> None:
        explorer = trace.explore()
        explorer.between(0, 6)
        send(explorer, type="window", begin=0.0, end=0.5)
        send(explorer, type="lanes", kind="axis")
        assert lanes_of(explorer) == {"dp": 4, "tp": 9}
        assert (explorer.widget.timeline["zoomed"], explorer.widget.timeline["kind"]) == (True, "axis")
        assert explorer.widget.brushed["brush"] == pytest.approx([0.0, 0.48])
        send(explorer, type="whole")
        assert explorer.widget.timeline["zoomed"] is False

    def test_it_is_made_when_it_is_opened(self, trace: Trace) -> None:
        explorer = trace.explore(tab="map")
        assert explorer.widget.timeline == {}
        assert "World map: 8 ranks" in explorer.widget.panel
        assert lanes_of(explorer) == {"forward": 17, "backward": 8}

    def test_an_empty_range_is_refused(self, trace: Trace) -> None:
        with pytest.raises(UsageError, match=r"between\(3, 3\): the end must be later"):
            trace.explore().between(3, 3)


class TestMap:
    def test_a_rank_is_a_filter_of_everything_but_the_map(self, trace: Trace) -> None:
        explorer = trace.explore(tab="map")
        assert 'data-cell="0.4"' in panel(explorer, "map")
        send(explorer, type="cell", place="0.4")
        assert set(explorer.selection.events["axis"]) == {"dp"}
        assert explorer.selection.events.equals(trace.world_map().talks_to(4).events)
        assert "only rank 4 on the map" in explorer.widget.status
        assert count_of_root(explorer) == len(explorer.selection)
        assert sum(lanes_of(explorer).values()) == len(explorer.selection)
        assert 'data-cell="0.4" tabindex="-1" aria-pressed="true"' in panel(explorer, "map")
        assert "rank 1: " in panel(explorer, "map")
        assert "rank 1: 0 B" not in panel(explorer, "map")
        send(explorer, type="drop", part="map")
        assert len(explorer.selection) == 25

    def test_a_link_is_a_filter(self, trace: Trace) -> None:
        explorer = trace.explore(tab="map")
        send(explorer, type="link", index=0)
        assert set(explorer.selection.events["axis"]) == {"tp"}
        assert explorer.selection.events.equals(trace.world_map().sent_over("tp", "inside a node").events)
        assert "only tp inside a node on the map" in explorer.widget.status
        assert 'data-link="0" tabindex="0" aria-selected="true"' in panel(explorer, "map")

    def test_filters_change_its_bytes_and_not_its_scale(self, trace: Trace) -> None:
        explorer = trace.explore(tab="map")
        whole = panel(explorer, "map")
        explorer.filter(axis="dp")
        assert panel(explorer, "map") != whole
        assert "Outlined with a number: the groups of <bdi>dp</bdi>" in panel(explorer, "map")
        assert "rank 1: 0 B a step, group 1" in panel(explorer, "map")
        scale = whole.partition("</span> ")[2].partition(".</p>")[0]
        assert scale
        assert f"</span> {scale}.</p>" in panel(explorer, "map")

    def test_the_switch_governs_it(self, trace: Trace) -> None:
        explorer = trace.explore(tab="map")
        explorer.widget.sizes = "message"
        assert "Shade: message bytes" in panel(explorer, "map")
        wanted = trace.world_map(sizes="message").to_frame().filter(axis="dp")["message_bytes"].to_list()
        assert wanted == [8 * 8192]
        assert "64 KiB" in panel(explorer, "map")

    def test_seconds_shade_it_and_choose_the_same(self, traces: ModuleType) -> None:
        trace = traces.timed(4, 2)
        explorer = trace.explore(tab="map")
        assert [value for value, _ in explorer.widget.shades] == ["bytes", "measured"]
        assert "No seconds" not in panel(explorer, "map")
        send(explorer, type="cell", place="0.2")
        chosen = explorer.selection.events
        explorer.widget.shade = "measured"
        assert "Seconds: measured, the mean of 2 steps" in panel(explorer, "map")
        seconds = trace.world_map(shade="seconds").to_shades()
        for rank in range(4):
            assert f"rank {rank}: {format_seconds(seconds[rank])} a step" in panel(explorer, "map")
        assert explorer.selection.events.equals(chosen)
        explorer.talks_to(2)
        assert explorer.selection.events.equals(chosen)
        assert f"</span> {format_seconds(seconds.max())}.</p>" in panel(explorer, "map")
        explorer.filter(axis="dp")
        dp = trace.world_map(shade="seconds").to_shades("dp")
        assert 0 < dp[0] < seconds[0]
        assert f"rank 0: {format_seconds(dp[0])} a step" in panel(explorer, "map")
        assert f"</span> {format_seconds(seconds.max())}.</p>" in panel(explorer, "map")
        explorer.widget.shade = "bytes"
        assert "Shade: wire bytes" in panel(explorer, "map")

    def test_the_switch_of_sizes_leaves_seconds(self, traces: ModuleType) -> None:
        explorer = traces.timed(4, 2).explore(tab="map")
        explorer.widget.shade = "measured"
        before = panel(explorer, "map")
        explorer.widget.sizes = "message"
        assert panel(explorer, "map") == before

    def test_without_times_there_is_no_choice_and_it_says_why(self, trace: Trace) -> None:
        explorer = trace.explore(tab="map")
        assert [value for value, _ in explorer.widget.shades] == ["bytes"]
        assert "The map cannot be shaded by seconds: no collective of this trace has a measured duration" in panel(
            explorer, "map"
        )
        with pytest.raises(UsageError, match=r"shade='measured': the map of this trace is shaded by bytes"):
            explorer.widget.shade = "measured"

    def test_several_ranks_and_ranks_that_are_none(self, trace: Trace) -> None:
        explorer = trace.explore()
        explorer.talks_to(4, 5)
        assert set(explorer.selection.events["axis"]) == {"dp"}
        with pytest.raises(UsageError, match=r"talks_to\(8\): ranks are 0 to 7"):
            explorer.talks_to(8)
        with pytest.raises(UsageError, match="one rank or several"):
            explorer.talks_to()


class TestParameter:
    @pytest.fixture
    def fsdp(self, traces: ModuleType) -> Trace:
        """Two layers that FSDP gathers twice and reduces."""
        events = []
        for phase, cause, op in (
            ("forward", "FSDP pre_forward", "all_gather"),
            ("backward", "FSDP pre_backward", "all_gather"),
            ("backward", "FSDP post_backward", "reduce_scatter"),
        ):
            for layer in range(2):
                columns = {"op": op, "phase": phase, "cause": cause, "axis": "dp"}
                events.append(traces.event(f"Net.{layer}", len(events), **columns))
        modules = [traces.module("Net"), traces.module("Net.0", "Net"), traces.module("Net.1", "Net")]
        parameters = [traces.parameter("Net.0"), traces.parameter("Net.1")]
        frames = {"events": events, "modules": modules, "parameters": parameters}
        info = TraceInfo(world_size=4, ranks=(0,))
        return Trace(Tables(**{name: traces.frame(name, rows) for name, rows in frames.items()}, info=info))

    def test_its_button_stands_in_the_table_of_its_module(self, fsdp: Trace) -> None:
        explorer = fsdp.explore()
        explorer.widget.folding = False
        explorer.select("Net.1")
        assert 'data-parameter="Net.1.weight"' in explorer.widget.details

    def test_its_events_are_the_selection_and_its_day_is_listed(self, fsdp: Trace) -> None:
        explorer = fsdp.explore()
        send(explorer, type="parameter", name="Net.1.weight")
        assert explorer.selection.events["seq"].to_list() == [1, 3, 5]
        assert explorer.selection.events.equals(fsdp.parameter_history("Net.1.weight").trace.events)
        assert count_of_root(explorer) == 3
        assert lanes_of(explorer) == {"forward": 1, "backward": 2}
        for word in ("gathered", "freed", "gradient reduced"):
            assert word in panel(explorer, "parameters")
        assert "only what is sent for Net.1.weight in a step" in explorer.widget.status
        for sizes in ("message", "wire"):
            explorer.widget.sizes = sizes
            assert f">{sizes} bytes</th>" in panel(explorer, "parameters")
        send(explorer, type="drop", part="parameter")
        assert len(explorer.selection) == 6
        assert "freed" not in panel(explorer, "parameters")

    def test_it_is_followed_in_all_modules_whichever_is_selected(self, fsdp: Trace) -> None:
        explorer = fsdp.explore()
        explorer.widget.folding = False
        explorer.select("Net.0")
        explorer.parameter("Net.1.weight")
        assert explorer.widget.selected == -1
        assert explorer.selection.events["seq"].to_list() == [1, 3, 5]
        assert "3 of 6 collectives" in explorer.widget.status

    def test_one_that_is_none_is_refused_with_the_near_name(self, fsdp: Trace) -> None:
        with pytest.raises(UsageError, match="did you mean"):
            fsdp.explore().parameter("Net.1.wieght")


def test_what_is_picked_in_all_parts_is_met_together(traces: ModuleType) -> None:
    trace = traces.timed(4, 2)
    explorer = trace.explore()
    seconds = explorer.widget.timeline
    assert seconds["lanes"] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    explorer.talks_to(2)
    explorer.between(0.0, 0.0005)
    explorer.widget.chosen = {"phase": 1}
    explorer.select("Transformer.decoder.layers.0")
    chosen = explorer.selection.events
    first = trace.events["start"].min()
    assert chosen.height
    assert set(chosen["phase"]) == {"forward"}
    assert (chosen["start"] - first < 500_000).all()
    assert set(chosen["group"]) <= set(trace.groups.filter(pl.col("ranks").list.contains(2))["group"])
    assert all(name.startswith("Transformer.decoder.layers.0") for name in chosen["owner"])
