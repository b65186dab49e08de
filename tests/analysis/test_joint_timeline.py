"""Two traces in one timeline: a step of each, from its first collective on, A above B."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest

from dsexplore._internal.analysis.joint_timeline import shown_ranks
from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.tables import Tables, TraceInfo
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.views.page.theme import axis_number


def trace_of(*rows: dict[str, Any]) -> Trace:
    plain = {
        "rank": 0, "step": 0, "seq": 0, "op": "all_reduce", "phase": "forward", "trigger": "", "owner": "Net",
        "axis": "tp", "group": "g", "group_size": 4, "message_bytes": 1024, "wire_bytes": 1536, "implicit": False,
        "cause": "", "source": "train.py:3", "is_async": False, "is_object": False,
    }  # fmt: skip
    events = [{name: {**plain, **each}.get(name) for name in schema.EVENTS} for each in rows]
    return Trace(Tables(pl.DataFrame(events, schema=schema.EVENTS), info=TraceInfo(world_size=8, ranks=(0,))))


def test_both_begin_at_nought_in_lanes_of_their_own() -> None:
    before = trace_of({"seq": 7, "phase": "start-up"}, {"seq": 8}, {"seq": 9, "phase": "backward", "axis": "dp"})
    after = trace_of({"seq": 2}, {"seq": 3}, {"seq": 4, "phase": "backward"})
    joint = before.diff(after).timeline()
    assert joint.lanes == ("A · forward", "A · backward", "B · forward", "B · backward")
    assert set(joint.marks) == {"tp", "dp"}
    assert joint.order == "program order"
    places = [(lane, begin) for lane, begin in joint.spans.select("lane", "begin").iter_rows()]
    assert sorted(places) == [
        ("A · backward", 1), ("A · forward", 0), ("B · backward", 2), ("B · forward", 0), ("B · forward", 1),
    ]  # fmt: skip
    chosen = joint.between(0, 1, ("B · forward",))
    assert chosen.events["seq"].to_list() == [2]
    assert shown_ranks(joint) == "rank 0"


def test_axes_have_the_colors_of_the_tree_and_the_bars() -> None:
    """Most bytes are on tp in A, and on dp in both together."""
    before = trace_of({"axis": "tp", "wire_bytes": 4096}, {"seq": 1, "axis": "dp", "wire_bytes": 1024})
    after = trace_of({"axis": "dp", "wire_bytes": 8192})
    assert before.diff(after).timeline().marks == ("dp", "tp")
    html = before.diff(after)._repr_mimebundle_()["text/html"]
    keys = re.findall(r'class="key a(\d)">(\w+)</span>', html)
    assert keys[:2] == [(str(axis_number(axis)), axis) for axis in ("dp", "tp")]


def test_of_several_ranks_and_steps_the_last_step_of_a_rank_that_both_have() -> None:
    before = trace_of(*({"rank": rank, "step": step, "seq": step} for rank in (0, 3) for step in (0, 1)))
    joint = before.diff(trace_of({"rank": 3, "seq": 5})).timeline()
    assert joint.tables.events.select("rank", "step", "seq").rows() == [(3, 1, 1), (3, 0, 5)]
    apart = trace_of({"rank": 1}).diff(trace_of({"rank": 2})).timeline()
    assert shown_ranks(apart) == "A: rank 1, B: rank 2"


def test_measured_times_where_both_have_them_else_program_order() -> None:
    first, second = trace_of({"start": 5_000, "end": 9_000}), trace_of({"start": 70_000, "end": 71_000})
    both = first.diff(second).timeline()
    assert both.order == "measured"
    assert both.spans.select("begin", "end").rows() == [(0, pytest.approx(4e-6)), (0, pytest.approx(1e-6))]
    assert first.diff(trace_of({"seq": 4})).timeline().order == "program order"


def test_a_side_without_collectives_has_no_lanes() -> None:
    one = trace_of({"seq": 3})
    assert one.diff(Trace()).timeline().lanes == ("A · forward",)
    assert Trace().diff(one).timeline(lanes="op").lanes == ("B · all_reduce",)
    assert Trace().diff(Trace()).timeline().spans.is_empty()
    with pytest.raises(UsageError, match="no such lanes"):
        one.diff(one).timeline(lanes="color")


def test_it_concludes_what_both_send_and_how_long_measured_steps_take() -> None:
    one = trace_of({"start": 0, "end": 2_000_000, "wire_bytes": 1024})
    two = trace_of(
        {"start": 0, "end": 1_000_000, "wire_bytes": 1024},
        {"seq": 1, "start": 1_000_000, "end": 3_000_000, "wire_bytes": 512},
    )
    assert one.diff(two).timeline().verdict() == (
        "In this step A sends 1 KiB on the wire in 1 collective, B 1.5 KiB on the wire in 2 collectives (+50 %); "
        "all that is drawn takes 2 ms in A, 3 ms in B."
    )
    assert "takes" not in one.diff(trace_of({})).timeline().verdict()
    unknown = trace_of({"wire_bytes": None})
    assert one.diff(unknown).timeline().verdict().endswith("B size unknown on the wire in 1 collective.")
    assert Trace().diff(Trace()).timeline().verdict() == "Nothing was sent."
