"""DistributedDataParallel: simulated with a Python hook, and its C++ reducer on real processes.

Modules: ``capture/stack/stack_reading.py``, ``capture/collectives/early_sends.py``.

Symbols: P the bytes of all parameters. A step's buckets are filled with gradients in the order in which they became
ready, last layer first, and closed once they hold the cap.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from dsexplore import run_ranks
from dsexplore._internal.capture.record import record
from dsexplore._internal.trace.trace import Trace

WIDTHS = (16, 32, 24, 8)
CAP_MB = 0.002
PARAMETERS = [nbytes for i, o in pairwise(WIDTHS) for nbytes in (i * o * 4, o * 4)]
P = sum(PARAMETERS)


def buckets(cap: int) -> list[int]:
    """Return the docstring's rule, on the parameters' bytes."""
    closed, filling = [], 0
    for size in reversed(PARAMETERS):
        filling += size
        if filling >= cap:
            closed.append(filling)
            filling = 0
    return [*closed, filling] if filling else closed


def layers() -> nn.Sequential:
    return nn.Sequential(*(part for i, o in pairwise(WIDTHS) for part in (nn.Linear(i, o), nn.ReLU())))


def model(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(layers(), bucket_cap_mb=CAP_MB, **options)


def step(ddp: nn.Module) -> Trace:
    with record() as trace:
        ddp(torch.ones(3, WIDTHS[0])).sum().backward()
    return trace


def steps(count: int = 3) -> list[list[tuple[Any, ...]]]:
    """Return what each step communicates, in a process of any world."""
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


def test_without_synchronization(world: Callable[..., DeviceMesh]) -> None:
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
        ("broadcast", size, "DistributedDataParallel", "DDP buffers") for size in (64, 8)
    ]


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_the_reducer_on_real_processes(world: Callable[..., DeviceMesh]) -> None:
    """DDP's reducer on gloo sends what the simulation shows, step by step."""
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


RANK, WARM = 1, 2
"""Of PowerSGD: the rank of its approximation, and the step from which on it compresses."""


def compressed_rows(rows: int, columns: int) -> int:
    """Bytes of the two factors of a gradient: rank × (rows + columns)."""
    return RANK * (rows + columns) * 4


def hooks() -> dict[str, tuple[Callable[[], tuple[Any, Any]], str, int]]:
    """Return, by name, the state and the hook, the dtype that they send, and the bytes of a step in closed form."""
    matrices = [(o, i) for i, o in pairwise(WIDTHS)]
    biases = sum(o for o, _ in matrices) * 4

    def power() -> PowerSGDState:
        return PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=WARM, min_compression_rate=1)

    def local() -> PostLocalSGDState:
        return PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=100)

    return {
        "allreduce": (lambda: (None, default_hooks.allreduce_hook), "float32", P),
        "fp16": (lambda: (None, default_hooks.fp16_compress_hook), "float16", P // 2),
        "post_localSGD": (lambda: (local(), post_localSGD_hook), "float32", P),
        "PowerSGD": (
            lambda: (power(), powerSGD_hook),
            "float32",
            biases + sum(compressed_rows(*matrix) for matrix in matrices),
        ),
    }


def hooked(name: str) -> list[list[tuple[Any, ...]]]:
    """Return what three steps with a hook send, in a process of any world."""
    state, hook = hooks()[name][0]()
    ddp = DistributedDataParallel(layers(), bucket_cap_mb=25)
    ddp.register_comm_hook(state, hook)
    columns = ("op", "phase", "dtype", "owner", "cause", "message_bytes")
    return [step(ddp).events.select(columns).rows() for _ in range(5)]


@pytest.mark.parametrize("name", hooks())
def test_a_communication_hook(world: Callable[..., DeviceMesh], name: str) -> None:
    """fp16 sends P/2; post-local SGD, before it becomes local, P. PowerSGD sends biases as they are and of an m × n
    gradient r·(m + n)."""
    world("dp=4")
    _, dtype, size = hooks()[name]
    rows = hooked(name)[-1]
    expected = ("all_reduce", "backward", dtype, "DistributedDataParallel", "DDP gradient bucket")
    assert {row[:-1] for row in rows} == {expected}
    assert sum(row[-1] for row in rows) == size


def test_a_hook_of_the_programs_own(world: Callable[..., DeviceMesh], column: Any) -> None:
    world("dp=4")
    ddp = model()
    # A lambda, as torch reads the annotations of a function.
    ddp.register_comm_hook(
        None,
        lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda f: f.value()[0]),
    )
    trace = step(ddp)
    expected = ("all_reduce", "backward", "DistributedDataParallel", "DDP gradient bucket")
    assert set(column(trace, "op", "phase", "owner", "cause")) == {expected}
    assert trace.events["message_bytes"].sum() == P


def test_the_bf16_hook(world: Callable[..., DeviceMesh], column: Any) -> None:
    """torch wants a GPU for it: half the bytes, P/2."""
    world("dp=4")
    ddp = model()
    ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
    trace = step(ddp)
    assert set(column(trace, "op", "dtype", "cause")) == {("all_reduce", "bfloat16", "DDP gradient bucket")}
    assert trace.events["message_bytes"].sum() == P // 2
    world("dp=4", hardware="cpu")
    refused = pytest.raises(TypeError, match="BF16 all reduce communication hook required CUDA")
    with nullcontext() if torch.version.cuda else refused:  # torch asks for a build with CUDA, not for a GPU
        model().register_comm_hook(None, default_hooks.bf16_compress_hook)


@pytest.mark.parametrize(
    ("builtin", "size"), [(dist.BuiltinCommHookType.ALLREDUCE, P), (dist.BuiltinCommHookType.FP16_COMPRESS, P // 2)]
)
def test_a_hook_that_torch_has_in_cpp(world: Callable[..., DeviceMesh], builtin: Any, size: int) -> None:
    world("dp=4")
    ddp = model()
    ddp._register_builtin_comm_hook(builtin)
    assert step(ddp).where(cause="DDP gradient bucket").events["message_bytes"].sum() == size


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
@pytest.mark.parametrize("name", ["fp16", "PowerSGD"])
def test_hooks_on_real_processes(world: Callable[..., DeviceMesh], name: str) -> None:
    """Step by step, gloo's ranks send what a simulated one does."""
    real = run_ranks(hooked, 2, args=(name,), timeout=240).values
    world("dp=2", hardware="cpu")
    assert real[0] == real[1] == hooked(name)


class Unused(nn.Module):
    """A layer that its forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def unused() -> list[tuple[Any, ...]]:
    ddp = DistributedDataParallel(Unused(), find_unused_parameters=True)
    with record() as trace:
        ddp(torch.ones(3, 4)).sum().backward()
    return trace.events.select("op", "phase", "dtype", "owner", "cause", "message_bytes").rows()


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
def test_unused_parameters(world: Callable[..., DeviceMesh]) -> None:
    """With find_unused_parameters: the gradients of all 40 elements, and a whole number per parameter, 4·4 bytes, which
    says whether any rank used it; simulated and on gloo."""
    world("dp=2")
    rows = unused()
    assert rows == run_ranks(unused, 2, timeout=240).values[0]
    by_cause = {row[4]: row for row in rows}
    name = "DistributedDataParallel"
    assert by_cause["DDP unused parameters"] == ("all_reduce", "backward", "int32", name, "DDP unused parameters", 16)
    assert by_cause["DDP gradient bucket"][-1] == 40 * 4


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
        DistributedDataParallel(nn.Sequential(layers(), nn.BatchNorm1d(WIDTHS[-1])))
    return trace.events.select("op", "phase", "owner", "cause", "message_bytes").rows()


@pytest.mark.processes
@pytest.mark.usefixtures("rank_server")
@pytest.mark.parametrize("target", ["cuda", "cpu"])
def test_start_up(world: Callable[..., DeviceMesh], target: str) -> None:
    """DDP compares how many parameters the ranks have, n·8 bytes, and their sizes and strides, 2·8 for each dim; then
    it broadcasts the model: P, the batch norm's weight, bias and two statistics of 8 floats, and its counter of 8."""
    world("dp=2", hardware="cpu" if target == "cpu" else None)
    rows = start_up()
    assert rows == run_ranks(start_up, 2, timeout=240).values[0]
    name, check, broadcast = "DistributedDataParallel", "DDP parameter check", "model broadcast"
    assert rows == [
        ("all_gather", "start-up", name, check, 2 * 8),
        ("broadcast", "start-up", name, check, (3 * 2 + 3 + 2) * 2 * 8),
        ("broadcast", "start-up", name, broadcast, P + 4 * 8 * 4),
        ("broadcast", "start-up", name, broadcast, 8),
    ]


def test_without_start_up(world: Callable[..., DeviceMesh]) -> None:
    """``init_sync=False`` sends nothing."""
    world("dp=4")
    with record() as trace:
        model(init_sync=False)
    assert len(trace) == 0


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


def test_the_order_of_buckets_is_sent_once_and_in_no_step(world: Callable[..., DeviceMesh]) -> None:
    """After the first backward the reducer sends its new buckets: integers, before the second forward, not in it."""
    world("dp=4")
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
    with record() as trace:
        for _ in range(3):
            ddp(torch.ones(3, 4)).sum().backward()
            optimizer.step()
    order = trace.where(cause="DDP bucket order").events
    assert set(order.select("op", "dtype", "phase", "owner").rows()) == {
        ("broadcast", "int32", "between steps", "DistributedDataParallel")
    }
    headline = trace.headline()
    gradients, buffers = 4 * (4 * 8 + 8 + 2 * 8 + 8 * 8 + 8), 4 * 2 * 8 + 8
    assert (headline.steps, headline.steady.are_equal) == (3, True)
    assert headline.steady.events["message_bytes"].sum() == 3 * (gradients + buffers)


def test_what_a_join_asks_before_each_forward_is_not_the_order_of_buckets(world: Callable[..., DeviceMesh]) -> None:
    world("dp=4")
    ddp = DistributedDataParallel(nn.Linear(4, 8))
    with record() as trace, pytest.warns(RuntimeWarning, match="Join asks how many ranks"), ddp.join():
        for _ in range(3):
            ddp(torch.ones(3, 4)).sum().backward()
    assert len(trace.where(cause="join", phase="forward").events) == 3 * 2, "who has joined, and whether to reduce"
    assert set(trace.where(cause="DDP bucket order").events["op"]) == {"broadcast"}
