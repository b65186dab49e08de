"""Every call of torch.distributed and of its functional form: op, bytes, wire bytes, batch, async, object.

Modules: ``capture/collectives/ops.py``, ``capture/collectives/observed_op.py``.

Symbols: n ranks; M the bytes of the tensor that one rank gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh

from dsexplore._internal.capture.record import record

N = 4
ROWS, WIDTH = 8, 6
M = ROWS * WIDTH * 4


def tensor(rows: int = ROWS) -> torch.Tensor:
    return torch.ones(rows, WIDTH)


def parts(rows: int = ROWS) -> list[torch.Tensor]:
    return [tensor(rows) for _ in range(N)]


def halves() -> tuple[torch.Tensor, torch.Tensor]:
    return tensor(ROWS // 2), tensor(ROWS // 2)


CALLS: dict[str, tuple[Callable[[], Any], str, int]] = {
    "all_reduce": (lambda: dist.all_reduce(tensor()), "all_reduce", M),
    "broadcast": (lambda: dist.broadcast(tensor(), 0), "broadcast", M),
    "reduce": (lambda: dist.reduce(tensor(), 0), "reduce", M),
    "all_gather": (lambda: dist.all_gather(parts(), tensor()), "all_gather", N * M),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(tensor(N * ROWS), tensor()),
        "all_gather",
        N * M,
    ),
    "gather": (lambda: dist.gather(tensor(), parts(), 0), "gather", N * M),
    "scatter": (lambda: dist.scatter(tensor(), parts(), 0), "scatter", N * M),
    "reduce_scatter": (lambda: dist.reduce_scatter(tensor(), parts()), "reduce_scatter", N * M),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(tensor(), tensor(N * ROWS)),
        "reduce_scatter",
        N * M,
    ),
    "all_to_all": (lambda: dist.all_to_all(parts(), parts()), "all_to_all", N * M),
    "all_to_all_single": (lambda: dist.all_to_all_single(tensor(), tensor()), "all_to_all", M),
    "all_to_all_single uneven": (
        lambda: dist.all_to_all_single(tensor(9), tensor(6), [1, 3, 2, 3], [1, 2, 2, 1]),
        "all_to_all",
        9 * WIDTH * 4,
    ),
    "send": (lambda: dist.send(tensor(), 1), "send", M),
    "recv": (lambda: dist.recv(tensor(), 1), "recv", M),
    "barrier": (lambda: dist.barrier(), "barrier", 0),
    "functional all_reduce": (
        lambda: functional.all_reduce(tensor(), "sum", dist.group.WORLD),
        "all_reduce",
        M,
    ),
    "functional all_gather": (
        lambda: functional.all_gather_tensor(tensor(), 0, dist.group.WORLD),
        "all_gather",
        N * M,
    ),
    "functional reduce_scatter": (
        lambda: functional.reduce_scatter_tensor(tensor(), "sum", 0, dist.group.WORLD),
        "reduce_scatter",
        M,
    ),
    "functional all_to_all": (
        lambda: functional.all_to_all_single(tensor(), None, None, dist.group.WORLD),
        "all_to_all",
        M,
    ),
    "functional broadcast": (lambda: functional.broadcast(tensor(), 0, dist.group.WORLD), "broadcast", M),
    "functional permute": (
        lambda: functional.permute_tensor(tensor().flatten(), [1, 2, 3, 0], dist.group.WORLD),
        "all_to_all",
        M,
    ),
}

WIRE = {
    "all_reduce": (2 * (N - 1), N),
    **dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), (N - 1, N)),
    **dict.fromkeys(("broadcast", "reduce", "send", "barrier"), (1, 1)),
    "recv": (0, 1),
}


@pytest.fixture
def group(world: Callable[..., DeviceMesh]) -> dist.ProcessGroup:
    """Return the default group of a world of four."""
    return world(f"dp={N}").get_group()


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", CALLS)
def test_one_call_is_one_event(column: Any, name: str) -> None:
    """all_reduce, broadcast, reduce, send, recv: M. all_gather, gather, scatter, reduce_scatter: n × one rank's
    part. all_to_all: what the rank sends, or receives where that is more. Wire bytes: S × the bus factor."""
    call, op, size = CALLS[name]
    with record() as trace:
        call()
    assert column(trace, "op", "message_bytes", "group_size", "axis") == [(op, size, N, "dp")]
    share, of = WIRE[op]
    assert column(trace, "wire_bytes") == [size * share // of]
    assert column(trace, "dtype") == ["" if op == "barrier" else "float32"]
    assert column(trace, "phase", "trigger", "is_object", "batch") == [("other", "", False, None)]
    assert "test_c10d_ops.py:" in column(trace, "source")[0]


ASYNC: dict[str, Callable[[bool], Any]] = {
    "all_reduce": lambda wait: dist.all_reduce(tensor(), async_op=not wait),
    "broadcast": lambda wait: dist.broadcast(tensor(), 0, async_op=not wait),
    "reduce": lambda wait: dist.reduce(tensor(), 0, async_op=not wait),
    "all_gather": lambda wait: dist.all_gather(parts(), tensor(), async_op=not wait),
    "all_gather_into_tensor": lambda wait: dist.all_gather_into_tensor(tensor(N * ROWS), tensor(), async_op=not wait),
    "gather": lambda wait: dist.gather(tensor(), parts(), 0, async_op=not wait),
    "scatter": lambda wait: dist.scatter(tensor(), parts(), 0, async_op=not wait),
    "reduce_scatter": lambda wait: dist.reduce_scatter(tensor(), parts(), async_op=not wait),
    "reduce_scatter_tensor": lambda wait: dist.reduce_scatter_tensor(tensor(), tensor(N * ROWS), async_op=not wait),
    "all_to_all": lambda wait: dist.all_to_all(parts(), parts(), async_op=not wait),
    "all_to_all_single": lambda wait: dist.all_to_all_single(tensor(), tensor(), async_op=not wait),
    "barrier": lambda wait: dist.barrier(async_op=not wait),
    "send": lambda wait: dist.send(tensor(), 1) if wait else dist.isend(tensor(), 1),
    "recv": lambda wait: dist.recv(tensor(), 1) if wait else dist.irecv(tensor(), 1),
}


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("name", ASYNC)
def test_async_or_not(column: Any, name: str) -> None:
    with record() as trace:
        ASYNC[name](True)
        ASYNC[name](False)
    assert column(trace, "is_async") == [False, True]


def test_methods_of_the_group_are_seen(group: dist.ProcessGroup, column: Any) -> None:
    """A ``ProcessGroup`` calls the dispatcher's ops as torch.distributed's functions do: all_reduce M, all_gather
    n × M, a barrier nothing."""
    with record() as trace:
        group.allreduce([tensor()])
        group._allgather_base(tensor(N * ROWS), tensor())
        group.barrier()
    assert column(trace, "op", "message_bytes", "axis") == [
        ("all_reduce", M, "dp"),
        ("all_gather", N * M, "dp"),
        ("barrier", 0, "dp"),
    ]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("grad", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_functional_collective_is_one_event_and_makes_what_it_made_before(column: Any, grad: Any) -> None:
    """Its c10d op inside passes the recorder by; tensors that its kernel makes there are those of an untraced run."""

    def run() -> list[torch.Tensor]:
        world = dist.group.WORLD
        with grad():
            return [
                functional.all_reduce(tensor(), "sum", world),
                functional.all_gather_tensor(tensor(), 0, world),
                functional.reduce_scatter_tensor(tensor(), "sum", 0, world),
                functional.all_to_all_single(tensor(), None, None, world),
            ]

    untraced = run()
    with record() as trace:
        traced = run()
    assert column(trace, "op") == ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
    for before, after in zip(untraced, traced, strict=True):
        assert (after.shape, after.dtype, after.device) == (before.shape, before.dtype, before.device)


@pytest.mark.usefixtures("group")
def test_functional_collectives_are_async(column: Any) -> None:
    with record() as trace:
        functional.all_reduce(tensor(), "sum", dist.group.WORLD)
    assert column(trace, "is_async", "raw_op") == [(True, "_c10d_functional::all_reduce")]


@pytest.mark.usefixtures("group")
def test_objects(column: Any) -> None:
    """all_gather_object sends its sizes (8 bytes of each rank) and then the pickled bytes: two tensor collectives,
    marked as object traffic."""
    with record() as trace:
        dist.all_gather_object([None] * N, {"loss": 1.0})
        dist.broadcast_object_list([{"loss": 1.0}], 0)
        dist.gather_object("x", [None] * N, 0)
        dist.send_object_list(["x"], 1)
        dist.all_reduce(tensor())
    rows = column(trace, "op", "is_object")
    assert rows == [
        ("all_gather", True),
        ("all_gather", True),
        ("broadcast", True),
        ("broadcast", True),
        ("all_gather", True),
        ("gather", True),
        ("send", True),
        ("send", True),
        ("all_reduce", False),
    ]
    assert column(trace, "message_bytes")[0] == N * 8


def test_scatter_objects(world: Callable[..., DeviceMesh], column: Any) -> None:
    world(f"dp={N}")
    with record() as trace:
        dist.scatter_object_list([None], [{"rank": rank} for rank in range(N)], 0)
    assert set(column(trace, "is_object")) == {True}
    assert column(trace, "op")[-1] == "scatter"


def test_batch_isend_irecv(group: dist.ProcessGroup, column: Any) -> None:
    """Members of one batch share its number; the next batch has another, and what is outside has none."""

    def batch() -> list[dist.P2POp]:
        return [dist.P2POp(dist.isend, tensor(), 1), dist.P2POp(dist.irecv, tensor(2), 3)]

    with record() as trace:
        dist.batch_isend_irecv(batch())
        dist.isend(tensor(), 1)
        dist.batch_isend_irecv(batch())
    assert column(trace, "op", "message_bytes", "is_async") == [
        ("send", M, True),
        ("recv", M // 4, True),
        ("send", M, True),
        ("send", M, True),
        ("recv", M // 4, True),
    ]
    first, second, none, third, fourth = column(trace, "batch")
    assert first == second != third == fourth
    assert none is None


def test_coalescing_manager(group: dist.ProcessGroup, column: Any) -> None:
    """Two all-reduces inside the manager are one coalesced call of two members."""
    with record() as trace:
        with dist.distributed_c10d._coalescing_manager(group):
            for part in halves():
                dist.all_reduce(part)
        dist.all_reduce(tensor())
    assert column(trace, "op", "message_bytes") == [("all_reduce", M // 2), ("all_reduce", M // 2), ("all_reduce", M)]
    first, second, alone = column(trace, "batch")
    assert first == second is not None
    assert alone is None


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("call", "op", "size"),
    [
        (lambda: functional.all_reduce_coalesced(list(halves()), "sum", dist.group.WORLD), "all_reduce", M // 2),
        (
            lambda: functional.all_gather_into_tensor_coalesced(list(halves()), dist.group.WORLD),
            "all_gather",
            N * M // 2,
        ),
        (
            lambda: functional.reduce_scatter_tensor_coalesced(list(halves()), "sum", [0, 0], dist.group.WORLD),
            "reduce_scatter",
            M // 2,
        ),
    ],
)
def test_functional_coalesced(column: Any, call: Callable[[], Any], op: str, size: int) -> None:
    with record() as trace:
        call()
    assert column(trace, "op", "message_bytes") == [(op, size)] * 2
    assert len(set(column(trace, "batch"))) == 1
    assert None not in column(trace, "batch")


def test_subgroups(world: Callable[..., DeviceMesh], column: Any) -> None:
    """Groups that no mesh has have no axis, and their own name, size and ranks."""
    world("dp=2,tp=4")
    pair = dist.new_group([0, 5])
    with record() as trace:
        dist.all_reduce(tensor(), group=pair)
        dist.all_reduce(tensor())
    assert column(trace, "group_size", "axis", "wire_bytes") == [(2, "", M), (8, "", 2 * M * 7 // 8)]
    assert sorted(trace.groups["ranks"].to_list()) == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 5]]


def test_several_meshes(world: Callable[..., DeviceMesh], column: Any) -> None:
    """Two meshes over the same ranks: each group has the axis name of its own mesh; a flattened mesh its own."""
    mesh = world("dp=2,tp=4")
    other = dist.init_device_mesh("cpu", (4, 2), mesh_dim_names=("pp", "cp"))
    flat = mesh["dp", "tp"]._flatten("all")
    with record() as trace:
        for where, axis in ((mesh, "dp"), (mesh, "tp"), (other, "pp"), (other, "cp")):
            dist.all_reduce(tensor(), group=where.get_group(axis))
        dist.all_reduce(tensor(), group=flat.get_group())
    assert column(trace, "axis", "group_size") == [("dp", 2), ("tp", 4), ("pp", 4), ("cp", 2), ("all", 8)]
    ranks = dict(trace.groups.select("axis", "ranks").iter_rows())
    assert ranks["dp"] == [0, 4]
    assert ranks["cp"] == [0, 1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int8, torch.bool])
def test_dtypes(world: Callable[..., DeviceMesh], column: Any, dtype: torch.dtype) -> None:
    world(f"dp={N}")
    x = torch.zeros(3, 5, dtype=dtype)
    with record() as trace:
        dist.broadcast(x, 0)
    assert column(trace, "dtype", "message_bytes", "shape") == [
        (str(dtype).removeprefix("torch."), 15 * x.element_size(), [3, 5])
    ]


def test_views_count_their_elements_and_empty_tensors_count(world: Callable[..., DeviceMesh], column: Any) -> None:
    world(f"dp={N}")
    with record() as trace:
        dist.all_reduce(torch.ones(100)[:10])
        dist.all_reduce(torch.ones(0))
        dist.all_reduce(torch.tensor(1.0))
    assert column(trace, "message_bytes", "shape") == [(40, [10]), (0, [0]), (4, [])]


@pytest.mark.parametrize("device", ["fake", "meta"])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter_tensor", "all_to_all_single", "send"])
def test_tensors_without_memory(world: Callable[..., DeviceMesh], column: Any, device: str, name: str) -> None:
    """Fake and meta tensors communicate as real ones do."""
    world(f"dp={N}", fake=device == "fake")
    call, op, size = CALLS[name]
    with record() as trace, torch.device("cpu" if device == "fake" else "meta"):
        call()
    assert column(trace, "op", "message_bytes") == [(op, size)]
