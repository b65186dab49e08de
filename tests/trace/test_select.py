"""Slices and sums: every event is counted once, and a slip of the pen is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from dsexplore._internal.errors import UsageError
from dsexplore._internal.trace import schema
from dsexplore._internal.trace.select import certain_text, modules_inside
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace

Make = Callable[..., Tables]
TOTALS = {"by_module": ["owner", "axis"], "by_op": ["op"], "by_axis": ["axis"], "by_phase": ["phase"]}


@pytest.mark.parametrize("name", TOTALS)
@settings(max_examples=30)
@given(data=st.data())
def test_totals_count_every_event_once(traces: Any, data: st.DataObject, name: str) -> None:
    trace = Trace(data.draw(traces()))
    totals = getattr(trace, name)()
    assert totals.columns == [*TOTALS[name], "count", "message_bytes", "wire_bytes"]
    assert totals["count"].sum() == len(trace)
    for size in ("message_bytes", "wire_bytes"):
        assert totals[size].sum() == trace.events[size].sum()
    assert not totals.select(TOTALS[name]).is_duplicated().any()
    for row in totals.iter_rows(named=True):
        same = trace.events.filter(*(pl.col(key) == row[key] for key in TOTALS[name]))
        assert (row["count"], row["message_bytes"]) == (len(same), same["message_bytes"].sum())


@settings(max_examples=30)
@given(data=st.data())
def test_a_slice_and_its_complement_make_the_whole(traces: Any, data: st.DataObject) -> None:
    trace = Trace(data.draw(traces()))
    column = data.draw(st.sampled_from([name for name in schema.EVENTS if not trace.events.is_empty()] or ["op"]))
    values = list(trace.events[column])
    split = data.draw(st.integers(0, len(values)))
    wanted = [list(value) if isinstance(value, pl.Series) else value for value in values[:split]]
    part = trace.where(**{column: wanted}).events
    rest = trace.events.filter(~trace.events[column].is_in(part[column].implode(), nulls_equal=True))
    assert_frame_equal(pl.concat([part, rest]), trace.events, check_row_order=False)
    assert trace.where(**{column: wanted}).modules is trace.tables.modules


def test_slices_of_slices(make: Make) -> None:
    trace = Trace(make([{"phase": "backward", "axis": axis, "step": step} for axis in ("tp", "dp") for step in (0, 1)]))
    assert len(trace.where(phase="backward", axis="tp")) == 2
    assert len(trace.where(phase="backward").where(axis="tp", step=range(1, 9))) == 1
    assert len(trace.where(phase="forward")) == 0
    assert len(trace.where()) == 4


def test_null_shape_and_dtype(make: Make) -> None:
    trace = Trace(make([{"batch": 1, "shape": [8, 2], "dtype": "bfloat16"}, {"batch": None, "shape": [4]}]))
    assert len(trace.where(batch=None)) == 1
    assert len(trace.where(batch=[1, None])) == 2
    assert len(trace.where(shape=(8, 2))) == len(trace.where(shape=torch.Size([8, 2]))) == 1
    assert len(trace.where(shape=[(8, 2), (4,)])) == 2
    assert len(trace.where(dtype=torch.bfloat16)) == len(trace.where(dtype="bfloat16")) == 1


@pytest.mark.parametrize(
    ("pattern", "inside"),
    [
        ("Llama", True),
        ("Llama.layers.0", True),
        ("layers.0", True),
        ("layers.*", True),
        ("*.attn", True),
        ("layers.?.attn", True),
        ("layers.1", False),
        ("layers.0.a", False),
        ("attn", False),
        ("ayers", False),
        ("", False),
        ("*a*tt*n", True),
    ],
)
def test_a_module_is_inside_what_surrounds_it(pattern: str, inside: bool) -> None:
    assert ("Llama.layers.0.attn" in modules_inside(["Llama.layers.0.attn"], [pattern])) == inside


def test_where_module_looks_at_trigger_and_owner(make: Make) -> None:
    trace = Trace(
        make(
            [
                {"trigger": "Llama.layers.0.attn", "owner": "Llama.layers.1"},
                {"trigger": "Llama.layers.10"},
                {"trigger": ""},
            ]
        )
    )
    assert len(trace.where(module="layers.0")) == 1
    assert len(trace.where(module="layers.1")) == 1  # not layers.10
    assert len(trace.where(module=["layers.1", "layers.10"])) == 2
    assert len(trace.where(module="")) == 1
    assert len(trace.where(module="*")) == 3


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ({"color": "red"}, r"where\(color=…\): no such column; columns are module, row, rank, step"),
        (
            {"phase": "bakward"},
            r"where\(phase='bakward'\): no such phase; they are start-up, forward, no-grad forward, between",
        ),
        ({"op": ["all_reduce", "allreduce"]}, r"where\(op='allreduce'\): no such op; they are all_reduce, all_gather"),
        ({"op": 3}, r"where\(op=3\): no such op"),
        ({"rank": "zero"}, r"where\(rank='zero'\): this column holds Int32"),
        ({"rank": 2**40}, r"where\(rank=1099511627776\): this column holds Int32"),
        ({"axis": 3}, r"where\(axis=3\): this column holds String"),
        ({"module": 3}, r"where\(module=3\): give a module's name or a shell pattern"),
        ({"axis": "pt"}, r"where\(axis='pt'\): no such axis; they are dp, tp \(did you mean 'tp'\?\)"),
        ({"axis": ["tp", "dq"]}, r"where\(axis='dq'\).*did you mean 'dp'"),
        ({"op": "allreduce"}, r"did you mean 'all_reduce'"),
        ({"phase": "bakward"}, r"did you mean 'backward'"),
        ({"phse": "backward"}, r"where\(phse=…\).*did you mean 'phase'"),
        ({"group": "g_pt"}, r"where\(group='g_pt'\): no such group; they are g_dp, g_tp \(did you mean 'g_tp'"),
        ({"module": "nope"}, r"where\(module='nope'\): no such module; names are those of trace.modules\['module'\]"),
        ({"module": ["layers.0", "layers.0.atn"]}, r"where\(module='layers.0.atn'\).*did you mean 'layers.0.attn'"),
        ({"module": "attn"}, r"\* stands for any text, as in '\*.mlp' \(did you mean '\*.attn'"),
        ({"module": "layer.*"}, r"where\(module='layer.\*'\).*did you mean 'layers.\*'"),
        ({"module": "*.heads.?"}, r"as in '\*.mlp'; the outermost are layers(\n|$)"),
        ({"owner": "Net.layers.1"}, r"where\(owner='Net.layers.1'\): no such owner.*did you mean 'Net.layers.0"),
    ],
)
def test_a_slip_of_the_pen_is_an_error(make: Make, conditions: dict[str, Any], message: str) -> None:
    groups = [
        {"group": f"g_{axis}", "axis": axis, "mesh": "dp=2,tp=4", "ranks": [0], "size": 1, "backend": "", "timing": ""}
        for axis in ("dp", "tp")
    ]
    modules = [{"module": name, "parent": "", "type": "", "depth": 0, "calls": 1} for name in ("Net.layers.0.attn",)]
    tables = replace(
        make([{"axis": "tp", "group": "g_tp", "owner": "Net.layers.0"}]),
        groups=pl.DataFrame(groups, schema=schema.GROUPS),
        modules=pl.DataFrame(modules, schema=schema.MODULES),
    )
    with pytest.raises(UsageError, match=message):
        Trace(tables).where(**conditions)


def test_what_sends_nothing_can_be_asked_for_where_the_trace_knows_it(make: Make) -> None:
    tables = make([{"axis": "tp", "owner": "Net.up", "trigger": "Net.up"}])
    known = Trace(replace(tables, info=replace(tables.info, mesh="dp=2,tp=4")))
    assert len(known.where(axis="dp")) == 0
    assert len(known.where(axis="tp").where(axis="dp")) == 0
    modules = [{"module": "Net.down", "parent": "", "type": "", "depth": 0, "calls": 1}]
    assert len(Trace(replace(tables, modules=pl.DataFrame(modules, schema=schema.MODULES))).where(module="down")) == 0
    assert len(Trace().where(axis="tp", module="anything", group="g")) == 0  # it knows no name that could be meant


def test_ops_that_are_not_torch_s_can_be_selected(make: Make) -> None:
    trace = Trace(make([{"op": "unknown:gather_everything"}, {"op": "inference_all_reduce"}]))
    assert len(trace.where(op="unknown:gather_everything")) == 1
    assert len(trace.where(op="inference_all_reduce")) == 1
    assert len(trace.where(op="unknown:other")) == 0


def test_phases_stand_in_the_order_of_a_step(make: Make) -> None:
    trace = Trace(make([{"phase": phase} for phase in reversed(schema.PHASES)]))
    assert trace.by_phase()["phase"].to_list() == list(schema.PHASES)


NAMES = st.lists(st.sampled_from(["", "a", "b", "ab"]), min_size=1, max_size=4).map(".".join)


@given(st.lists(NAMES, max_size=6), st.lists(NAMES | st.sampled_from(["*", "a*", "*b", "a.*.b", "[ab]"]), max_size=2))
def test_a_module_is_inside_of_what_a_name_before_one_of_its_dots_matches(
    names: list[str], patterns: list[str]
) -> None:
    def inside(name: str) -> bool:
        parts = name.split(".")
        before = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        rootless = [".".join(parts[1:end]) for end in range(2, len(parts) + 1)]
        return any(fnmatchcase(each, pattern) for pattern in patterns for each in (*before, *filter(None, rootless)))

    assert modules_inside(names, patterns) == {name for name in names if inside(name)}


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("layers.1*", "layers.1"),
        ("layers.?.mlp*", "layers."),
        ("*.mlp", ".mlp"),
        ("layers.[01].mlp", "layers."),
        ("*", ""),
    ],
)
def test_the_text_that_all_matching_names_have(pattern: str, text: str) -> None:
    assert certain_text(pattern) == text


@given(st.lists(NAMES, max_size=6), NAMES | st.sampled_from(["*", "a*", "*b", "a.*.b", "[ab]", "a.[b", "?.ab"]))
def test_names_that_match_have_the_certain_text(names: list[str], pattern: str) -> None:
    assert all(certain_text(pattern) in name for name in modules_inside(names, [pattern]))
