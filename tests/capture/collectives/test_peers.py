"""Between whom messages go: peers, roots and split sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

from dsexplore._internal.capture.collectives import ops
from dsexplore._internal.capture.collectives.peers import PARTIES
from dsexplore._internal.capture.record import record
from dsexplore._internal.worlds.simulate import simulate

RANK, GROUP = 5, [4, 5, 6, 7]
"""In a world of 8 the second group of four: ranks within it are 4 less than global ones."""
COLUMNS = ("peer", "root", "send_splits", "recv_splits")
NONE = (None, None, None, None)

Program = Callable[[torch.Tensor, Any], object]


def lists(*sizes: int) -> list[torch.Tensor]:
    return [torch.ones(size) for size in sizes]


CASES: dict[str, tuple[Program, tuple[Any, ...]]] = {
    "send": (lambda x, g: dist.send(x, 6, group=g), (6, None, None, None)),
    "isend": (lambda x, g: dist.isend(x, 4, group=g), (4, None, None, None)),
    "recv": (lambda x, g: dist.recv(x, 7, group=g), (7, None, None, None)),
    "irecv from a group's rank": (lambda x, g: dist.irecv(x, group=g, group_src=0), (4, None, None, None)),
    "broadcast": (lambda x, g: dist.broadcast(x, 6, group=g), (None, 6, None, None)),
    "reduce": (lambda x, g: dist.reduce(x, 7, group=g), (None, 7, None, None)),
    "gather": (lambda x, g: dist.gather(x, lists(8, 8, 8, 8), 5, group=g), (None, 5, None, None)),
    "scatter": (lambda x, g: dist.scatter(x, None, 4, group=g), (None, 4, None, None)),
    "all_reduce": (lambda x, g: dist.all_reduce(x, group=g), NONE),
    "all_to_all": (lambda x, g: dist.all_to_all(lists(2, 2, 2, 2), lists(2, 2, 2, 2), group=g), NONE),
    "uneven all_to_all": (
        lambda x, g: dist.all_to_all(lists(1, 2, 3, 4), lists(4, 3, 2, 1), group=g),
        (None, None, [4, 3, 2, 1], [1, 2, 3, 4]),
    ),
    "all_to_all_single": (lambda x, g: dist.all_to_all_single(torch.ones(8), x, group=g), NONE),
    "uneven all_to_all_single": (
        lambda x, g: dist.all_to_all_single(torch.ones(4, 3), torch.ones(8, 3), [1] * 4, [5, 1, 1, 1], g),
        (None, None, [15, 3, 3, 3], [3, 3, 3, 3]),
    ),
    "functional all_to_all_single": (
        lambda x, g: funcol.all_to_all_single(x, [1, 2, 3, 4], [2, 2, 2, 2], g),
        (None, None, [2, 2, 2, 2], [1, 2, 3, 4]),
    ),
    "functional broadcast": (lambda x, g: funcol.broadcast(x, 2, g), (None, 6, None, None)),
}


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_events_carry_global_ranks_and_split_sizes(name: str, fake: bool) -> None:
    program, expected = CASES[name]
    if name == "uneven all_to_all" and not fake:
        pytest.skip("torch's fake group copies each list's tensors onto the other's, which have other sizes")
    with simulate(8, rank=RANK, fake=fake):
        group = dist.new_group(GROUP)
        with record() as trace:
            program(torch.ones(8), group)
    assert trace.events.select(COLUMNS).rows() == [expected]


def test_a_recv_from_any_rank_has_no_peer() -> None:
    assert PARTIES["c10d::recv_any_source_"](([], None, 0)).peers == (None,)  # type: ignore[union-attr] # it has one


def test_members_of_a_batch_have_peers_of_their_own() -> None:
    with simulate(4, rank=1), record() as trace:
        operations = [dist.P2POp(dist.isend, torch.ones(2), 2), dist.P2POp(dist.irecv, torch.ones(2), 0)]
        dist.batch_isend_irecv(operations)
    assert trace.events.select("op", "peer").rows() == [("send", 2), ("recv", 0)]


@pytest.mark.parametrize("raw_op", sorted(PARTIES.keys() & set(ops.op_names())))
def test_root_and_peer_stand_where_the_op_says(raw_op: str) -> None:
    namespace, _, name = raw_op.partition("::")
    op = getattr(getattr(torch.ops, namespace), name)
    names = [argument.name for argument in getattr(op, op.overloads()[0])._schema.arguments]
    rooted = [position for position, of_it in enumerate(names) if of_it in ("root_rank", "src", "root", "src_rank")]
    rooted += [position for position, of_it in enumerate(names) if of_it in ("dst", "dst_rank", "peer", "peer_rank")]
    if "alltoall" in name or "all_to_all" in name or name in ("recv_any_source_", "batch_p2p_ops"):
        assert not rooted
        return
    (position,) = rooted
    parties = PARTIES[raw_op](range(100, 100 + len(names)))
    assert parties is not None
    assert (parties.root, *parties.peers) in ((100 + position,), (None, 100 + position)), names


def test_all_rooted_and_point_to_point_ops_are_read() -> None:
    """Every op that goes from or to one rank has a reader, but for three of symmetric memory that keep no root."""
    directed = {"send", "recv", "broadcast", "reduce", "gather", "scatter"}
    named = {raw_op for raw_op, entry in ops.COMMUNICATION_OPS.items() if entry.op in directed}
    assert named - PARTIES.keys() == {"symm_mem::multi_root_tile_reduce", "symm_mem::nvshmem_broadcast"}
    assert PARTIES.keys() <= ops.COMMUNICATION_OPS.keys()
