"""Synthetic traces: small ones written by hand, and any that the schema allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import strategies as st

from dsexplore._internal.trace import schema
from dsexplore._internal.trace.collectives import OPS, wire_bytes
from dsexplore._internal.trace.tables import Tables, TraceInfo

DEFAULT = {
    "rank": 0,
    "step": 0,
    "op": "all_reduce",
    "raw_op": "c10d::allreduce_",
    "phase": "forward",
    "trigger": "",
    "owner": "",
    "axis": "",
    "group": "0",
    "group_size": 4,
    "message_bytes": 1024,
    "dtype": "float32",
    "shape": [256],
    "implicit": False,
    "cause": "",
    "source": "train.py:1",
    "is_async": True,
    "is_object": False,
    "batch": None,
    "peer": None,
    "root": None,
    "send_splits": None,
    "recv_splits": None,
    "start": None,
    "end": None,
    "state": "",
    "waited": None,
    "group_seq": None,
    "same_input": None,
}

MODULES = (
    ("Llama", "", "Llama", 0),
    ("Llama.layers", "Llama", "ModuleList", 1),
    ("Llama.layers.0", "Llama.layers", "Block", 2),
    ("Llama.layers.0.attn", "Llama.layers.0", "Attention", 3),
    ("Llama.layers.1", "Llama.layers", "Block", 2),
    ("Llama.layers.10", "Llama.layers", "Block", 2),
)
NAMES = ("", *(module[0] for module in MODULES))


def events_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Rows of events, with defaults, numbered per rank."""
    numbers: dict[int, int] = {}
    full = []
    for given in rows:
        row = {**DEFAULT, **given}
        row["seq"] = numbers[row["rank"]] = numbers.get(row["rank"], -1) + 1
        if "wire_bytes" not in row:
            row["wire_bytes"] = wire_bytes(row["op"], row["message_bytes"], row["group_size"])
        if "owner" not in given:
            row["owner"] = row["trigger"]
        full.append({name: row[name] for name in schema.EVENTS})
    return pl.DataFrame(full, schema=schema.EVENTS) if full else schema.empty("events")


def parameters_frame(ranks: tuple[int, ...]) -> pl.DataFrame:
    """Return one sharded weight of the attention, on every rank."""
    module = "Llama.layers.0.attn"
    rows = [
        (rank, module, f"{module}.weight", [8, 8], [4, 8], "float32", "S(0), R", "dp=2,tp=2", 256, 128, True, "")
        for rank in ranks
    ]
    return pl.DataFrame(rows, schema=schema.PARAMETERS, orient="row")


def groups_frame(**ranks: list[int]) -> pl.DataFrame:
    """Groups by axis."""
    rows = [(axis, axis, "dp=2,tp=2", members, len(members), "gloo", "host") for axis, members in ranks.items()]
    return pl.DataFrame(rows, schema=schema.GROUPS, orient="row")


def build(rows: list[dict[str, Any]], ranks: tuple[int, ...] = (0,), **info: Any) -> Tables:
    """Return a trace of those events, with the modules of a small Llama that all ran once."""
    return Tables(
        events=events_frame(rows),
        parameters=parameters_frame(ranks),
        modules=pl.DataFrame([(*module, 1) for module in MODULES], schema=schema.MODULES, orient="row"),
        groups=groups_frame(dp=[0, 2], tp=[0, 1]),
        info=TraceInfo(ranks=ranks, **{"world_size": 4, "torch_version": "2.13.0", **info}),
    )


@pytest.fixture
def make() -> Callable[..., Tables]:
    """`build`: a trace from rows that say only what matters to the test."""
    return build


_text = st.text(max_size=12)
_times = st.one_of(st.none(), st.integers(0, 2**62))


def event_rows(ranks: tuple[int, ...]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Rows with any values that the columns can hold."""
    return st.lists(
        st.fixed_dictionaries(
            {
                "rank": st.sampled_from(ranks),
                "step": st.integers(0, 3),
                "op": st.sampled_from([*OPS, "unknown:gather_everything", "switched_off:all_reduce"]),
                "phase": st.sampled_from(schema.PHASES),
                "trigger": st.sampled_from(NAMES),
                "owner": st.sampled_from(NAMES),
                "axis": st.sampled_from(["", "dp", "tp", "dp+tp"]),
                "group": st.sampled_from(["dp", "tp", "0"]),
                "group_size": st.integers(1, 16_384),
                "message_bytes": st.integers(0, 2**40),
                "dtype": st.sampled_from(["", "float32", "bfloat16"]),
                "shape": st.lists(st.integers(0, 2**40), max_size=4),
                "implicit": st.booleans(),
                "cause": _text,
                "source": _text,
                "batch": st.one_of(st.none(), st.integers(0, 3)),
                "start": _times,
                "end": _times,
                "state": st.one_of(st.none(), st.sampled_from(schema.STATES)),
            }
        ),
        max_size=20,
    )


@st.composite
def any_tables(draw: st.DrawFn, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> Tables:
    """Return any trace, its events in the order of ranks."""
    rows = sorted(draw(event_rows(ranks)), key=lambda row: row["rank"])
    notes = tuple(draw(st.lists(_text, max_size=2, unique=True)))
    return build(rows, ranks, notes=notes, simulated=draw(st.booleans()), mesh=draw(st.sampled_from(["", "dp=2,tp=2"])))


@pytest.fixture(scope="session")
def traces() -> Callable[..., st.SearchStrategy[Tables]]:
    """`any_tables`, for ``@given(data=st.data())`` tests: ``data.draw(traces())``."""
    return any_tables
