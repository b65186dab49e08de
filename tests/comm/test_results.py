"""Every op on real ranks against plain tensor arithmetic.

Modules: ``comm/calls.py``, ``comm/coalesced_calls.py``, ``comm/p2p.py``, ``comm/objects.py``, ``comm/coalesce.py``.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as td

from dsexplore import run_ranks
from dsexplore._internal.comm.versions import has_weights_only_objects
from dsexplore._internal.worlds.real.run_ranks import RanksRun
from tests.comm.every_op import GLOO_SWAPS_LISTS

pytestmark = pytest.mark.processes

WAYS = (
    (torch.float32, False, False),
    (torch.float32, True, True),
    (torch.bfloat16, False, True),
    (torch.bfloat16, True, False),
    (torch.int64, False, True),
    (torch.int64, True, False),
)
"""Dtype, strided or contiguous, asynchronous or not: each pair of them."""
OPS = (
    "all_reduce",
    "inference_all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_gather_base",
    "all_gather_coalesced",
    "all_gather_coalesced_lists",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all_single",
    "all_to_all_single_uneven",
    *(("all_to_all",) if GLOO_SWAPS_LISTS else ()),
    "gather",
    "scatter",
    "send_recv",
    "isend_irecv",
    "batch_isend_irecv",
    "barrier",
)


def check_ops(logged: bool, backend: bool) -> dict[str, list[str]]:
    """Run, on a rank, each op with dtypes, layouts and ways to wait, in all groups; what went wrong, by op."""
    import dsexplore.comm as dist

    dist.configure(enabled=logged)
    rank, world = dist.get_rank(), dist.get_world_size()
    surface: Any = dist.cdb if backend else dist
    wrong: dict[str, list[str]] = {op: [] for op in OPS}
    for group in (None, dist.new_group([0, world - 1])):
        members = dist.get_all_ranks_from_group(group)
        ways = WAYS if rank in members else ()
        for op, (dtype, strided, async_op) in ((op, way) for op in OPS for way in ways):
            case = Case(surface, dist, members, group, dtype, strided, async_op)
            wrong[op] += [
                f"{members} {dtype} {strided=} {async_op=}: {seen} is not {wanted}"
                for seen, wanted in getattr(case, op)()
                if seen.dtype != dtype or not torch.equal(seen, wanted)
            ]
    return wrong


@cache
def run_of_all(world_size: int, logged: bool = False, backend: bool = False) -> RanksRun:
    """Return one run of `check_ops`, for all the tests that look at it."""
    return run_ranks(check_ops, world_size, args=(logged, backend), timeout=280, group_timeout=120)


class Case:
    """One way to call an op; each method returns pairs of what was computed and what should have been."""

    def __init__(
        self,
        dist: Any,
        module: Any,
        members: list[int],
        group: Any,
        dtype: torch.dtype,
        strided: bool,
        async_op: bool,
    ) -> None:
        self.dist, self.module, self.members, self.group = dist, module, members, group
        self.dtype, self.strided, self.async_op = dtype, strided, async_op
        self.n, self.me = len(members), members.index(module.get_rank())

    def data(self, member: int, size: int = 6, salt: int = 0) -> torch.Tensor:
        """Return what that member holds: small whole numbers, exact in every dtype, of two dims."""
        values = (torch.arange(size) * 3 + 5 * member + salt) % 13
        return values.reshape(2, -1).to(self.dtype)

    def laid_out(self, values: torch.Tensor) -> torch.Tensor:
        """Return those values in a tensor of the layout under test."""
        if not self.strided:
            return values.clone()
        wide = torch.full((*values.shape, 3), 77, dtype=self.dtype)
        view = wide[..., 1]
        view.copy_(values)
        assert not view.is_contiguous()
        return view

    def mine(self, size: int = 6, salt: int = 0) -> torch.Tensor:
        return self.laid_out(self.data(self.me, size, salt))

    def empty(self, *shape: int) -> torch.Tensor:
        return self.laid_out(torch.full(shape, -1, dtype=self.dtype))

    def total(self, size: int = 6, salt: int = 0) -> torch.Tensor:
        return torch.stack([self.data(m, size, salt).to(torch.int64) for m in range(self.n)]).sum(0).to(self.dtype)

    def done(self, handle: Any) -> None:
        if self.async_op:
            handle.wait()
        else:
            assert handle is None

    @property
    def how(self) -> dict[str, Any]:
        return {"group": self.group, "async_op": self.async_op}

    def all_reduce(self) -> Any:
        tensor, largest = self.mine(), self.mine()
        self.done(self.dist.all_reduce(tensor, **self.how))
        self.done(self.dist.all_reduce(largest, op=td.ReduceOp.MAX, **self.how))
        peak = torch.stack([self.data(m) for m in range(self.n)]).amax(0)
        return [(tensor, self.total()), (largest, peak)]

    def inference_all_reduce(self) -> Any:
        tensor = self.mine()
        returned = self.dist.inference_all_reduce(tensor, **self.how)
        if self.async_op:
            returned.wait()
        else:
            assert returned is tensor
        return [(tensor, self.total())]

    def all_reduce_coalesced(self) -> Any:
        first, second = self.mine(), self.mine(4, salt=1)
        self.done(self.dist.all_reduce_coalesced([first, second], **self.how))
        return [(first, self.total()), (second, self.total(4, 1))]

    def reduce(self) -> Any:
        tensor, root = self.mine(), self.members[-1]
        self.done(self.dist.reduce(tensor, root, **self.how))
        return [(tensor, self.total())] if self.me == self.n - 1 else []

    def broadcast(self) -> Any:
        tensor = self.mine()
        self.done(self.dist.broadcast(tensor, self.members[-1], **self.how))
        return [(tensor, self.data(self.n - 1))]

    def all_gather(self) -> Any:
        outputs = [self.empty(2, 3) for _ in range(self.n)]
        self.done(self.dist.all_gather(outputs, self.mine(), **self.how))
        return [(outputs[m], self.data(m)) for m in range(self.n)]

    def _gather_into(self, function: Any) -> Any:
        output = self.empty(2 * self.n, 3)
        self.done(function(output, self.mine(), **self.how))
        return [(output, torch.cat([self.data(m) for m in range(self.n)]))]

    def all_gather_into_tensor(self) -> Any:
        return self._gather_into(self.dist.all_gather_into_tensor)

    def all_gather_single(self) -> Any:
        return self._gather_into(self.module.all_gather_single)

    def all_gather_base(self) -> Any:
        return self._gather_into(self.dist.all_gather_base)

    def all_gather_coalesced(self) -> Any:
        outputs = [self.empty(2 * self.n, 3), self.empty(2 * self.n, 2)]
        self.done(self.dist.all_gather_coalesced(outputs, [self.mine(), self.mine(4, 1)], **self.how))
        wanted = [
            torch.cat([self.data(m) for m in range(self.n)]),
            torch.cat([self.data(m, 4, 1) for m in range(self.n)]),
        ]
        return list(zip(outputs, wanted, strict=True))

    def all_gather_coalesced_lists(self) -> Any:
        outputs = [[self.empty(2, 3), self.empty(2, 2)] for _ in range(self.n)]  # by rank, as gloo wants them
        self.done(self.dist.all_gather_coalesced(outputs, [self.mine(), self.mine(4, 1)], **self.how))
        return [
            pair for m in range(self.n) for pair in zip(outputs[m], (self.data(m), self.data(m, 4, 1)), strict=True)
        ]

    def reduce_scatter(self) -> Any:
        output = self.empty(2, 3)
        self.done(self.dist.reduce_scatter(output, [self.mine(salt=k) for k in range(self.n)], **self.how))
        return [(output, self.total(salt=self.me))]

    def _reduce_into(self, function: Any) -> Any:
        output = self.empty(2, 3)
        whole = torch.cat([self.data(self.me, salt=k) for k in range(self.n)])
        self.done(function(output, self.laid_out(whole), **self.how))
        return [(output, self.total(salt=self.me))]

    def reduce_scatter_tensor(self) -> Any:
        return self._reduce_into(self.dist.reduce_scatter_tensor)

    def reduce_scatter_single(self) -> Any:
        return self._reduce_into(self.module.reduce_scatter_single)

    def all_to_all_single(self) -> Any:
        output = self.empty(2 * self.n, 3)
        given = self.laid_out(torch.cat([self.data(self.me, salt=k) for k in range(self.n)]))
        self.done(self.dist.all_to_all_single(output, given, **self.how))
        return [(output, torch.cat([self.data(m, salt=self.me) for m in range(self.n)]))]

    def all_to_all_single_uneven(self) -> Any:
        sends = [k + 1 for k in range(self.n)]  # member k gets k + 1 rows from each
        rows = torch.cat([self.data(self.me, salt=k)[:1].expand(k + 1, 3) for k in range(self.n)])
        takes = [self.me + 1] * self.n
        output = self.empty(sum(takes), 3)
        self.done(self.dist.all_to_all_single(output, self.laid_out(rows), takes, sends, **self.how))
        return [(output, torch.cat([self.data(m, salt=self.me)[:1].expand(self.me + 1, 3) for m in range(self.n)]))]

    def all_to_all(self) -> Any:
        outputs = [self.empty(2, 3) for _ in range(self.n)]
        self.done(self.dist.all_to_all(outputs, [self.mine(salt=k) for k in range(self.n)], **self.how))
        return [(outputs[m], self.data(m, salt=self.me)) for m in range(self.n)]

    def gather(self) -> Any:
        root = self.n - 1
        outputs = [self.empty(2, 3) for _ in range(self.n)] if self.me == root else None
        self.done(self.dist.gather(self.mine(), outputs, self.members[root], **self.how))
        return [(outputs[m], self.data(m)) for m in range(self.n)] if outputs else []

    def scatter(self) -> Any:
        root = self.n - 1
        parts = [self.laid_out(self.data(root, salt=k)) for k in range(self.n)] if self.me == root else None
        output = self.empty(2, 3)
        self.done(self.dist.scatter(output, parts, self.members[root], **self.how))
        return [(output, self.data(root, salt=self.me))]

    def send_recv(self) -> Any:
        if self.me == 0:
            self.dist.send(self.mine(), self.members[1], self.group, 7)
            return []
        if self.me != 1:
            return []
        output = self.empty(2, 3)
        assert self.dist.recv(output, self.members[0], self.group, 7) == self.members[0]
        return [(output, self.data(0))]

    def isend_irecv(self) -> Any:
        output = self.empty(2, 3)
        onward, back = self.members[(self.me + 1) % self.n], self.members[self.me - 1]
        handles = [self.dist.irecv(output, back, self.group), self.dist.isend(self.mine(), onward, self.group)]
        for handle in handles:
            handle.wait()
        return [(output, self.data((self.me - 1) % self.n))]

    def batch_isend_irecv(self) -> Any:
        outputs, module = [self.empty(2, 3) for _ in range(3)], self.module
        onward, back = self.members[(self.me + 1) % self.n], self.members[self.me - 1]
        ways = [(module.P2POp, self.dist.batch_isend_irecv), (td.P2POp, self.dist.batch_isend_irecv)]
        if not self.strided:  # torch sends what is not contiguous as if it were
            ways.append((td.P2POp, td.batch_isend_irecv))
        for output, (operation, batch) in zip(outputs, ways, strict=False):
            operations = [
                operation(module.isend, self.mine(), onward, self.group),
                operation(module.irecv, output, back, self.group),
            ]
            for handle in batch(operations):
                handle.wait()
        return [(output, self.data((self.me - 1) % self.n)) for output in outputs[: len(ways)]]

    def barrier(self) -> Any:
        self.done(self.dist.barrier(**self.how))
        if not self.async_op:
            self.dist.monitored_barrier(self.group)
        return []


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("op", OPS)
def test_an_op_computes_what_plain_arithmetic_does(op: str, world_size: int) -> None:
    assert [wrong[op] for wrong in run_of_all(world_size).values] == [[]] * world_size


@pytest.mark.parametrize("op", OPS)
def test_logging_changes_no_result(op: str) -> None:
    assert [wrong[op] for wrong in run_of_all(2, logged=True).values] == [[], []]


@pytest.mark.parametrize("op", OPS)
def test_the_backend_object_computes_the_same(op: str) -> None:
    assert [wrong[op] for wrong in run_of_all(3, backend=True).values] == [[], [], []]


def send_objects(world: int) -> list[Any]:
    """Run every object collective."""
    import dsexplore.comm as dist

    dist.configure(enabled=True)
    rank = dist.get_rank()
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * rank})
    told = [f"from {rank}", rank]
    dist.broadcast_object_list(told, src=world - 1)
    at_root: list[Any] | None = [None] * world if rank == 0 else None
    dist.gather_object((rank,), at_root, dst=0)
    part: list[Any] = [None]
    dist.scatter_object_list(part, [[k] for k in range(world)] if rank == 0 else None, src=0)
    passed: list[Any] = [None]
    if rank == 0:
        dist.send_object_list([{"a": 1}], 1)
    elif rank == 1:
        dist.recv_object_list(passed, 0)
    logged = {line.name: (line.op, line.count, line.message_bytes) for line in dist.comms_logger.summary().rows}
    return [gathered, told, at_root, part, passed, logged]


def gather_with_weights_only(thing: Any) -> Any:
    """Return, on a rank, what arrives, or the name and the text of the error."""
    import dsexplore.comm as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    try:
        dist.all_gather_object(gathered, thing, weights_only=True)
    except Exception as error:
        return type(error).__name__, str(error)
    return gathered


def test_objects_are_loaded_without_running_code_or_not_at_all(ranks: Callable[..., list[Any]]) -> None:
    plain, code = ranks(2, gather_with_weights_only, {"a": [1]}), ranks(2, gather_with_weights_only, pickle.dumps)
    if has_weights_only_objects():
        assert plain == [[{"a": [1]}] * 2] * 2
        assert [name for name, _ in code] == ["UnpicklingError"] * 2
    else:
        told = f"all_gather_object(weights_only=True): torch {torch.__version__} has no such option"
        assert all(name == "UsageError" and text.startswith(told) for name, text in [*plain, *code])


@pytest.mark.parametrize("world_size", [2, 3])
def test_object_collectives_deliver_and_are_timed(ranks: Callable[..., list[Any]], world_size: int) -> None:
    seen = ranks(world_size, send_objects, world_size)
    everyone = [{"rank": r, "text": "x" * r} for r in range(world_size)]
    assert [s[0] for s in seen] == [everyone] * world_size
    assert [s[1] for s in seen] == [[f"from {world_size - 1}", world_size - 1]] * world_size
    assert seen[0][2] == [(r,) for r in range(world_size)]
    assert [s[3] for s in seen] == [[[r]] for r in range(world_size)]
    assert seen[1][4] == [{"a": 1}]
    largest = max(len(pickle.dumps(thing)) for thing in everyone) + 8
    for logged in (s[5] for s in seen):
        assert logged["all_gather_object"] == ("all_gather", 1, world_size * largest)
        assert logged["broadcast_object_list"][:2] == ("broadcast", 1)
        assert logged["gather_object"][:2] == ("gather", 1)
        assert logged["scatter_object_list"][:2] == ("scatter", 1)
    assert seen[0][5]["send_object_list"] == ("send", 1, len(pickle.dumps({"a": 1})) + 8)
    assert seen[1][5]["recv_object_list"] == ("recv", 1, len(pickle.dumps({"a": 1})) + 8)
