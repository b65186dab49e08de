"""torch's form of a trace: its keys, its counts, each module once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from dsexplore._internal.capture.collectives import ops
from dsexplore._internal.placement_text import joined
from dsexplore._internal.trace import torch_json
from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.trace.trace import Trace

Make = Callable[..., Tables]
funcol = torch.ops.c10d_functional


@pytest.mark.parametrize(
    ("raw_op", "counted"),
    [
        ("c10d::allreduce_", torch.ops.c10d.allreduce_),
        ("_c10d_functional::all_reduce", funcol.all_reduce),
        ("_c10d_functional::all_reduce_", funcol.all_reduce),
        ("_c10d_functional::all_gather_into_tensor_out", funcol.all_gather_into_tensor),
        ("_c10d_functional_autograd::all_to_all_single", funcol.all_to_all_single),
        ("_dtensor::shard_dim_alltoall", torch.ops._dtensor.shard_dim_alltoall),
        ("c10d::send", None),
        ("c10d::barrier", None),
        ("", None),
        ("unheard::of", None),
    ],
)
def test_what_an_op_is_counted_as(raw_op: str, counted: Any) -> None:
    assert torch_json.packet(raw_op) == counted


def test_every_collective_of_this_torch_is_counted() -> None:
    known = ops.COMMUNICATION_OPS.keys() & set(ops.op_names())
    uncounted = {raw_op for raw_op in known if torch_json.packet(raw_op) is None}
    point_to_point = {"send", "recv_", "recv_any_source_", "isend", "irecv", "batch_p2p_ops"}
    for raw_op in uncounted:
        namespace, _, name = raw_op.partition("::")
        assert namespace == "symm_mem" or name in {*point_to_point, "barrier", "monitored_barrier_"}


@given(
    st.lists(
        st.one_of(
            st.builds(Shard, st.integers(0, 9)),
            st.builds(Replicate),
            st.builds(Partial, st.sampled_from(["sum", "avg", "max"])),
            st.builds(
                lambda dim, factor: _StridedShard(dim, split_factor=factor), st.integers(0, 9), st.integers(2, 9)
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_placements_are_written_as_torch_writes_them(placements: list[Placement]) -> None:
    assert torch_json.long_placements(joined(placements)) == str(tuple(placements))


@settings(max_examples=40)
@given(data=st.data())
def test_a_module_counts_what_is_inside_it(traces: Any, data: st.DataObject) -> None:
    tables = data.draw(traces())
    tree = torch_json.module_tree(tables)
    found = list(torch_json.calls(tables.events))
    counts = torch_json.module_counts(found, tree)
    assert sum(counts["Global"].total().values()) == sum(count for *_, count in found)
    for name, node in tree.items():
        for child in node.children:
            assert node.depth + 1 == tree[child].depth
            for phase, inner in counts.get(child, torch_json.ModuleCounts()).items():
                assert all(counts[name][phase][op] >= count for op, count in inner.items())


def test_a_coalesced_call_is_one(make: Make) -> None:
    raw = {"raw_op": "c10d::allreduce_coalesced_"}
    tables = make([{**raw, "batch": 1}, {**raw, "batch": 1}, {**raw, "batch": 2}, raw, raw])
    assert [count for *_, count in torch_json.calls(tables.events)] == [4]


def test_counts_answer_to_phases_and_to_ops(make: Make) -> None:
    tables = make(
        [{"phase": phase} for phase in ("start-up", "forward", "other", "backward", "recompute", "optimizer")]
    )
    counts = torch_json.module_counts(torch_json.calls(tables.events), {})["Global"]
    op = torch.ops.c10d.allreduce_
    assert {phase: ops[op] for phase, ops in counts.items()} == {
        "forward": 3,
        "backward": 1,
        "recompute": 1,
        "optimizer": 1,
    }
    assert counts[op] == 6
    assert counts[funcol.all_reduce] == 0
    with pytest.raises(KeyError):
        counts["sideways"]


def test_the_json_has_torch_s_keys_and_each_module_once(tmp_path: Path, make: Make) -> None:
    tables = make([{"owner": "Llama.layers.0.attn", "phase": "backward"}])
    path = Trace(tables).to_torch_json(tmp_path / "log.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    seen = []

    def visit(node: dict[str, Any]) -> None:
        seen.append(node["fqn"])
        assert {"module_type", "parameters", "collectives_forward", "operations_checkpointing"} <= node.keys()
        for child in node["children"]:
            visit(child)

    visit(document)
    assert seen == ["Global", *tables.modules["module"]]
    assert document["collectives_backward"] == [["c10d.allreduce_", 1]]
    attention = document["children"][0]["children"][0]["children"][0]["children"][0]
    assert attention["fqn"] == "Llama.layers.0.attn"
    assert attention["parameters"] == [["weight", "(Shard(dim=0), Replicate())"]]
    assert attention["collectives_backward"] == [["c10d.allreduce_", 1]]
