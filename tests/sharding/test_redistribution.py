"""The collectives of a redistribute are those that torch issues, byte for byte, and no others."""

from __future__ import annotations

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import dsexplore
from dsexplore._internal.errors import UsageError
from dsexplore._internal.sharding.redistribution import COLUMNS

CASES = [
    ((8, 8), "S(0), R", "R, R"),
    ((8, 8), "S(0), S(1)", "R, S(1)"),
    ((8, 8), "S(0), S(0)", "R, S(0)"),
    ((8, 8), "P, P", "R, R"),
    ((8, 8), "P, R", "S(0), R"),
    ((8, 8), "S(0), S(1)", "S(1), S(0)"),
    ((9, 7), "S(0), S(1)", "R, R"),
    ((9, 7), "S(0), R", "S(1), R"),
    ((9, 7), "P, S(1)", "S(0), R"),
    ((9, 7), "R, R", "S(0), S(1)"),
    ((9, 7), "R, S(0)", "S(0), R"),
    ((16, 4), "_S(0, 4), S(0)", "R, S(0)"),
    ((16, 4), "S(0), S(0)", "_S(0, 4), S(0)"),
    ((17, 4), "_S(0, 4), S(0)", "R, R"),
    ((5, 3), "R, S(0)", "R, S(1)"),
    ((3,), "P(avg), P", "S(0), R"),
    ((17, 5, 3), "S(2), S(0)", "S(0), S(1)"),
    ((9, 7), "P(avg), S(0)", "R, S(1)"),
]
"""Shape, and placements before and after on ``dp=2,tp=4``."""
OF_TEXT = {
    "R": Replicate(), "P": Partial(), "P(avg)": Partial("avg"), "S(0)": Shard(0), "S(1)": Shard(1), "S(2)": Shard(2),
    "_S(0, 4)": _StridedShard(0, split_factor=4),
}  # fmt: skip


def of_torch(text: str) -> list[object]:
    return [OF_TEXT[part] for part in text.replace("(0, 4)", "(0;4)").replace(", ", "|").replace(";", ", ").split("|")]


@pytest.mark.filterwarnings("ignore")
def test_torch_issues_these_collectives_and_no_others() -> None:
    with dsexplore.simulate(mesh="dp=2,tp=4") as mesh:
        for shape, before, after in CASES:
            shown = dsexplore.sharding(shape, before, "dp=2,tp=4")
            whole = torch.empty(shape)
            local = torch.zeros(shown.tensors[0].local_shape((0, 0)))
            tensor = DTensor.from_local(
                local, mesh, of_torch(before), run_check=False, shape=whole.shape, stride=whole.stride()
            )
            with dsexplore.commtrace() as trace:
                tensor.redistribute(placements=of_torch(after))
            issued = trace.events.select("op", "axis", "group_size", "message_bytes", "wire_bytes").rows()
            steps = [step for step in shown.redistribute(after).steps if step.op]
            assert [(s.op, s.axis, s.ranks, s.message_bytes, s.wire_bytes) for s in steps] == issued, (before, after)


def test_it_needs_no_process_group_and_knows_before_and_after() -> None:
    shown = dsexplore.sharding((8192, 1024), "S(0), R", "dp=2,tp=4", dtype="bfloat16")
    way = shown.redistribute([Replicate(), Shard(1)])
    assert not torch.distributed.is_initialized()
    assert dict(way.to_frame().schema) == COLUMNS
    assert way.to_frame().rows() == [
        ("tp", 4, "R", "S(1)", "", 0, 0),
        ("dp", 2, "S(0)", "R", "all_gather", 4 * 2**20, 2 * 2**20),
    ]
    assert way.before.local_shape((0, 0)) == (4096, 1024)
    assert way.after.local_shape((0, 0)) == (8192, 256)
    assert shown.redistribute("S(0), R").steps == ()


def test_sixteen_thousand_ranks_and_axes_of_one_rank() -> None:
    (step,) = dsexplore.sharding((53248, 16384), "S(0), S(1)", "dp=2048,tp=8").redistribute("R, S(1)").steps
    assert (step.op, step.ranks, step.message_bytes) == ("all_gather", 2048, 53248 * 2048 * 4)
    assert dsexplore.sharding((8,), "S(0), R", "dp=1,tp=2").redistribute("R, R").steps == ()


def test_what_cannot_be_is_refused() -> None:
    shown = dsexplore.sharding({"w": ((8, 8), "S(0)"), "b": ((8,), "R")}, mesh="dp=2")
    with pytest.raises(UsageError, match=r"name it, sharding\['…'\]"):
        shown.redistribute("R")
    with pytest.raises(UsageError, match=r"w: S\(0\) to P on axis dp"):
        shown["w"].redistribute("P")
    with pytest.raises(UsageError, match="2 placements"):
        shown["w"].redistribute("R, R")
    with pytest.raises(UsageError, match="dims 0 to 1"):
        shown["w"].redistribute("S(2)")
    with pytest.raises(UsageError, match="tensor has no placements"):
        dsexplore.sharding(torch.zeros(3)).redistribute("R")


def test_it_shows_both_with_the_collectives_between() -> None:
    way = dsexplore.sharding((10, 8), "S(0), R", "dp=4,tp=2").redistribute("R, S(1)")
    bundle = way._repr_mimebundle_()
    assert bundle["text/plain"].splitlines() == [
        "Redistribute: tensor (10, 8) float32 from S(0), R to R, S(1) on dp=4, tp=2: 1 all_gather, 144 B on the wire "
        "per rank.",
        "  tp: R→S(1), each of 2 ranks slices its part, nothing is sent",
        "  dp: S(0)→R by all_gather of 4 ranks, 192 B message, 144 B on the wire",
    ]
    html = bundle["text/html"]
    before, steps, after = html.index("<b>before</b>"), html.index("all_gather</bdi>"), html.index("<b>after</b>")
    assert before < steps < after
    assert html[before:steps].count('<div class="who h0 h1"') == 1  # both tp ranks of dp 0
    assert html[after:].count('<div class="who h0 h2 h4 h6"') == 1  # all dp ranks of tp 0
    assert "Nothing is sent, each rank slices its part." in repr(
        dsexplore.sharding((4,), "R", "dp=2").redistribute("S(0)")._repr_mimebundle_()
    )
