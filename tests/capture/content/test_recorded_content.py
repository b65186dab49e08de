"""The content of a trace is what the recording holds."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from itertools import count
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard

import dsexplore
from dsexplore._internal.capture.collectives.groups import Group
from dsexplore._internal.capture.collectives.issued_collective import Batches, Issued, Origin, Redistribute, is_async
from dsexplore._internal.capture.collectives.ops import COMMUNICATION_OPS, Message
from dsexplore._internal.capture.content.collective_kinds import CollectiveKinds
from dsexplore._internal.capture.content.recorded_content import (
    event_columns,
    group_rows,
    module_columns,
    parameter_columns,
)
from dsexplore._internal.capture.modules.module_entry import ModuleEntry
from dsexplore._internal.capture.modules.parameters import ParameterLayout, ParameterRecord
from dsexplore._internal.trace import schema

MODEL = nn.Identity()


def entry(kind: str, root: ModuleEntry | None = None, path: str = "", label: str = "", calls: int = 0) -> ModuleEntry:
    return ModuleEntry(weakref.ref(MODEL), kind, root, path, label=label, calls=calls)


ROOT = entry("Net", label="Net#2", calls=7)
BLOCK = entry("Block", ROOT, "layers.0", calls=5)
LINEAR = entry("Linear", ROOT, "layers.0.up", calls=4)
GROUP = Group("3", 4, (0, 2, 4, 6), "gloo", "mesh_tp", axis="tp", mesh="dp=2,tp=4", timing="work", own_rank=2)


def issued(*messages: Message, group: Group | None = GROUP, **origin: Any) -> Issued:
    known = {"phase": "forward", "trigger": None, "owner": None, "sources": (), **origin}
    return Issued("c10d::allreduce_", list(messages), group, 2, Origin(**known))


def table_of(collectives: Sequence[Issued], steps: Sequence[int] = (), depth: int = 1) -> pl.DataFrame:
    return event_columns(CollectiveKinds(collectives), steps, depth).table()


REDUCED = Message("all_reduce", 1024, torch.bfloat16, (16, 32))


def test_a_root_has_no_parent_and_depths_count_from_it() -> None:
    columns = module_columns([ROOT, BLOCK, LINEAR], {id(ROOT): 3, id(LINEAR): 4})
    assert list(columns) == list(schema.MODULES)
    assert list(zip(*columns.values(), strict=True)) == [
        ("Net#2", "", "Net", 0, 4),
        ("Net#2.layers.0", "Net#2.layers", "Block", 2, 5),
        ("Net#2.layers.0.up", "Net#2.layers.0", "Linear", 3, 0),
    ]


def test_only_what_has_an_end_is_completed() -> None:
    rows = [issued(REDUCED) for _ in range(4)]
    for one, start, end, failure in zip(
        rows, (None, 5, 5, 5), (None, 9, None, None), ("", "", "", "failed: RuntimeError"), strict=True
    ):
        one.start, one.end, one.failure = start, end, failure
    assert table_of(rows)["state"].to_list() == ["", "completed", "scheduled", "failed"]


def test_each_message_is_a_row_of_its_own() -> None:
    coalesced = issued(REDUCED, Message("all_reduce", 8, torch.float32, (2,)), trigger=LINEAR, owner=BLOCK)
    coalesced.batch = 9
    table = table_of([coalesced, issued(Message("barrier", 0, None, ()), group=None)])
    columns = ("seq", "op", "message_bytes", "wire_bytes", "dtype", "shape", "trigger", "owner", "batch", "axis")
    assert list(table.select(columns).iter_rows()) == [
        (0, "all_reduce", 1024, 1536, "bfloat16", [16, 32], "Net#2.layers.0.up", "Net#2.layers.0", 9, "tp"),
        (1, "all_reduce", 8, 12, "float32", [2], "Net#2.layers.0.up", "Net#2.layers.0", 9, "tp"),
        (2, "barrier", 0, 0, "", [], "", "", None, ""),
    ]
    assert table["group_size"].to_list() == [4, 4, 1]
    assert table["group"].to_list() == ["3", "3", ""]
    assert table["rank"].to_list() == [2, 2, 2]


@pytest.mark.parametrize(
    ("steps", "numbers"),
    [([], [0, 0, 0, 0]), ([2, 3], [0, 0, 1, 2]), ([0, 0], [2, 2, 2, 2]), ([4], [0, 0, 0, 0]), ([1, 1], [0, 2, 2, 2])],
)
def test_steps_are_numbered_by_what_was_issued_before_each(steps: list[int], numbers: list[int]) -> None:
    assert table_of([issued(REDUCED)] * 4, steps)["step"].to_list() == numbers


def test_as_many_lines_are_named_as_were_wanted() -> None:
    code = compile("1", "/elsewhere/train.py", "eval")
    lines = ((code, 0),) * 3
    assert table_of([issued(REDUCED, sources=lines)], depth=2)["source"].item() == " ← ".join(
        ["/elsewhere/train.py:1"] * 2
    )


def test_a_parameter_names_the_one_that_is_the_same_tensor() -> None:
    layout = ParameterLayout((8, 8), (4, 8), "float32", "S(0), R", "dp=2,tp=2", 256, 128)
    first = ParameterRecord(BLOCK, "weight", layout, True, None)
    tied = ParameterRecord(LINEAR, "weight", layout, False, first)
    columns = parameter_columns([first, tied], 3)
    names = ("rank", "module", "name", "shared_with", "requires_grad")
    assert list(zip(*(columns[name] for name in names), strict=True)) == [
        (3, "Net#2.layers.0", "Net#2.layers.0.weight", "", True),
        (3, "Net#2.layers.0.up", "Net#2.layers.0.up.weight", "Net#2.layers.0.weight", False),
    ]
    assert columns["global_shape"] == [(8, 8), (8, 8)]
    assert columns["local_bytes"] == [128, 128]


def test_groups_keep_their_ranks_in_order() -> None:
    assert group_rows([GROUP]) == [("3", "tp", "dp=2,tp=4", [0, 2, 4, 6], 4, "gloo", "work")]


CHANGE = Redistribute("aten.add", (Shard(0),), (Replicate(),))


@pytest.mark.parametrize(
    ("cause", "redistribute", "text"),
    [
        ("", None, ""),
        ("compiled", None, "compiled"),
        ("", CHANGE, "aten.add S(0)→R"),
        ("FSDP post_backward", CHANGE, "FSDP post_backward: aten.add S(0)→R"),
    ],
)
def test_the_text_of_a_cause(cause: str, redistribute: Redistribute | None, text: str) -> None:
    assert Origin("forward", None, None, (), cause, redistribute).cause_text == text


def test_what_failed_has_that_as_its_cause() -> None:
    one = issued(REDUCED, cause="compiled")
    one.failure = "failed: RuntimeError"
    assert table_of([one])["cause"].item() == "failed: RuntimeError"


class Span:
    """A span of a device that reaches its end after 5 ns, or never."""

    def __init__(self, has_end: bool) -> None:
        self.has_end = has_end

    def read(self) -> tuple[int, int]:
        assert self.has_end
        return 10, 15


def test_times_of_a_device_are_read_once_it_has_reached_the_end() -> None:
    one: Any = issued(REDUCED)
    one.span = Span(has_end=False)
    assert table_of([one]).select("start", "end").row(0) == (None, None)
    one.span.has_end = True
    assert table_of([one]).select("start", "end").row(0) == (10, 15)
    assert one.span is None


def test_later_members_share_the_number_of_their_batch() -> None:
    batches = Batches(count(5))
    assert [batches.number_of(is_first=position < 2) for position in (1, 2, 2, 1, 2, 0, 0)] == [5, 5, 5, 6, 6, 7, 8]


@pytest.mark.parametrize(
    ("op", "args", "expected"),
    [
        ("c10d::allreduce_", ([], None, None, None, True), True),
        ("c10d::allreduce_", ([], None, None, None, False), False),
        ("c10d::allreduce_", ([], None, None, None), True),
        ("c10d::send", ([], None, 1, 0), True),
        ("c10d::monitored_barrier_", ([], None, 1, 0), False),
    ],
)
def test_an_op_is_async_unless_its_arguments_say_that_it_waits(op: str, args: tuple[Any, ...], expected: bool) -> None:
    assert is_async(COMMUNICATION_OPS[op], args) is expected


def test_the_mesh_of_a_trace_is_one_with_names_though_torch_made_another_first() -> None:
    """torch sends the seed of random DTensors over a mesh of the world that has no names."""
    with dsexplore.simulate(8), dsexplore.commtrace() as trace:
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
        layer = fully_shard(nn.Linear(8, 8), mesh=mesh)
        nn.init.normal_(layer.weight)
        layer(torch.ones(2, 8)).sum().backward()
    assert trace.tables.events["op"].to_list() == ["broadcast", "all_gather", "reduce_scatter", "all_reduce"]
    assert trace.tables.groups["mesh"].to_list()[:2] == ["dim_0=8", "replicate=2,shard=4"]
    assert trace.info.mesh == "replicate=2,shard=4"
