"""DistributedDataParallel: simulated with a Python hook, and its C++ reducer on real processes.

Symbols: P the bytes of all parameters. A step's buckets are filled with gradients in the order in which they became
ready, last layer first, and closed once they hold the cap.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from dsexplore import run_ranks
from dsexplore.capture.recorder import record
from dsexplore.trace.trace import Trace

WIDTHS = (16, 32, 24, 8)
CAP_MB = 0.002
PARAMETERS = [nbytes for i, o in pairwise(WIDTHS) for nbytes in (i * o * 4, o * 4)]
P = sum(PARAMETERS)


def buckets(cap: int) -> list[int]:
    """The docstring's rule, on the parameters' bytes."""
    closed, filling = [], 0
    for size in reversed(PARAMETERS):
        filling += size
        if filling >= cap:
            closed.append(filling)
            filling = 0
    return [*closed, filling] if filling else closed


def model(**options: Any) -> DistributedDataParallel:
    layers: list[nn.Module] = []
    for i, o in pairwise(WIDTHS):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=CAP_MB, **options)


def step(ddp: nn.Module) -> Trace:
    with record() as trace:
        ddp(torch.ones(3, WIDTHS[0])).sum().backward()
    return trace


def steps(count: int = 3) -> list[list[tuple[Any, ...]]]:
    """What each step communicates, in a process of any world."""
    ddp = model()
    columns = ("op", "raw_op", "phase", "owner", "message_bytes", "dtype", "cause", "is_async")
    return [step(ddp).events.select(columns).rows() for _ in range(count)]


def test_buckets(world: Callable[..., DeviceMesh], column: Any) -> None:
    """From the second step on, which rebuilds its buckets first, the all-reduces are the buckets, together P, in
    phase backward, each owned by the DDP module."""
    world("dp=4")
    ddp = model()
    step(ddp)
    step(ddp)
    trace = step(ddp)
    expected = buckets(int(CAP_MB * 1024 * 1024))
    assert len(expected) > 1
    assert sum(expected) == P
    assert column(trace, "op", "phase", "owner", "cause", "message_bytes") == [
        ("all_reduce", "backward", "DistributedDataParallel", "DDP gradient bucket", size) for size in expected
    ]
    assert set(trace.events["axis"]) == {"dp"}
    triggers = column(trace, "trigger")
    assert triggers[-1] == "DistributedDataParallel.module.0"
    assert all(name.startswith("DistributedDataParallel.module.") for name in triggers)


def test_without_synchronisation(world: Callable[..., DeviceMesh]) -> None:
    """no_sync: nothing; the next step sends the accumulated gradients once, P bytes."""
    world("dp=4")
    ddp = model()
    with ddp.no_sync():
        assert len(step(ddp)) == 0
    trace = step(ddp)
    assert trace.where(op="all_reduce").events["message_bytes"].sum() == P


def test_buffers(world: Callable[..., DeviceMesh], column: Any) -> None:
    """Two batch-norm statistics of 8 floats and a counter: a broadcast of 64 bytes and one of 8 in each forward."""
    world("dp=4")
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
    with record() as trace:
        ddp(torch.ones(3, 4))
    assert column(trace, "op", "message_bytes", "trigger", "cause") == [
        ("broadcast", size, "DistributedDataParallel", "DDP buffers and bucket order") for size in (64, 8)
    ]


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_the_reducer_on_real_processes(world: Callable[..., DeviceMesh]) -> None:
    """The C++ reducer on gloo sends what the simulation says, step by step."""
    real = run_ranks(steps, 2, timeout=240).values
    world("dp=2")
    assert real[0] == real[1] == steps()


def timed() -> list[tuple[bool, bool]]:
    ddp = model()
    trace = step(ddp)
    rows = trace.events.select("start", "end").rows()
    assert set(trace.groups["timing"]) == {"work"}
    return [(start is not None, end is not None and end >= start) for start, end in rows]


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_real_collectives_are_timed() -> None:
    """On gloo each has a start and, once its work is done, an end."""
    for rows in run_ranks(timed, 2, timeout=240).values:
        assert rows
        assert set(rows) == {(True, True)}


def compressed() -> list[tuple[Any, ...]]:
    ddp = model()
    ddp.register_comm_hook(None, fp16_compress_hook)
    return step(ddp).events.select("op", "dtype", "owner", "cause", "message_bytes").rows()


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_a_hook_of_the_user() -> None:
    """torch's fp16 hook sends half the bytes: P/2."""
    rows = run_ranks(compressed, 2, timeout=240).values[0]
    expected = ("all_reduce", "float16", "DistributedDataParallel", "DDP gradient bucket")
    assert {row[:-1] for row in rows} == {expected}
    assert sum(row[-1] for row in rows) == P // 2


def many() -> int:
    with record() as trace:
        for _ in range(100):
            received: list[Any] = [None]
            dist.scatter_object_list(received, [0, 1] if dist.get_rank() == 0 else None, 0)
    return len(trace)


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_many_collectives_in_a_row_do_not_hang() -> None:
    """Works that are dropped as soon as they are done, 300 of them: 3 per list, its size, the longest and the list."""
    assert run_ranks(many, 2, timeout=240).values == [300, 300]


def start_up() -> list[tuple[Any, ...]]:
    with record() as trace:
        model()
    return trace.events.select("op", "phase", "message_bytes").rows()


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_start_up_on_real_processes() -> None:
    """DDP compares the parameters' shapes, then broadcasts the model: P bytes."""
    rows = run_ranks(start_up, 2, timeout=240).values[0]
    assert {phase for _, phase, _ in rows} == {"other"}
    assert sum(size for op, _, size in rows if op == "broadcast") >= P
    assert rows[0][0] == "all_gather"


def calls() -> list[tuple[Any, ...]]:
    """Calls that a group which moves nothing cannot answer."""
    rank = dist.get_rank()
    with record() as trace:
        if rank == 0:
            dist.recv(torch.empty(6))
        else:
            dist.send(torch.ones(6), 0)
        dist.monitored_barrier()
        objects: list[Any] = [None]
        dist.scatter_object_list(objects, [{"rank": 0}, {"rank": 1}] if rank == 0 else None, 0)
        assert objects == [{"rank": rank}]
        rows = [torch.empty(count, 3) for count in ((2, 1) if rank == 0 else (3, 2))]
        given = [torch.ones(count, 3) for count in ((2, 3) if rank == 0 else (1, 2))]
        received = torch.empty(sum(map(len, rows)), 3)
        dist.all_to_all_single(received, torch.cat(given), [*map(len, rows)], [*map(len, given)])
    return trace.events.filter(~trace.events["is_object"]).select("rank", "op", "raw_op", "message_bytes").rows()


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_calls_that_need_real_peers() -> None:
    """A receive from any rank, a monitored barrier (which is made of sends), objects that arrive, and an uneven
    all_to_all: rank 0 sends 5 rows and receives 3, rank 1 the other way round, so both count 5·3·4."""
    zero, one = run_ranks(calls, 2, timeout=240).values
    assert zero[0] == (0, "recv", "c10d::recv_any_source_", 24)
    assert one[0] == (1, "send", "c10d::send", 24)
    for rank, rows in enumerate((zero, one)):
        assert (rank, "barrier", "c10d::monitored_barrier_", 0) in rows
        assert rows[-1] == (rank, "all_to_all", "c10d::alltoall_base_", 60)
