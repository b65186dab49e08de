"""Beginning and ending a world, adopting one, groups and meshes, the straggler report, recordings beside the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsexplore import run_ranks
from dsexplore.comm.straggler import RankLog, Series, straggler_report

pytestmark = pytest.mark.processes
Ranks = Callable[..., list[Any]]


def a_deepspeed_program() -> list[Any]:
    import dsexplore.comm as dist

    before = (dist.is_initialized(), dist.cdb)
    dist.init_distributed("gloo", verbose=False, config={"comms_logger": {"enabled": True}})
    world = dist.cdb
    dist.init_distributed("gloo", verbose=False)  # the second time it is adopted
    seen = [before, dist.is_initialized(), dist.get_backend(), dist.comms_logger.enabled]
    seen += [(world.world_rank, world.world_size), dist.get_local_rank(), world.using_mpi, world.is_initialized()]
    mesh = dist.initialize_mesh_device((2, 1), ("dp", "tp"))
    seen += [tuple(mesh.shape), mesh.mesh_dim_names, dist.get_world_group() is dist.group.WORLD]
    dist.barrier()  # or a rank would end its world while another one still connects to it
    dist.destroy_process_group()
    return [*seen, dist.is_initialized(), dist.cdb]


def test_a_deepspeed_program_begins_and_ends() -> None:
    for rank, seen in enumerate(run_ranks(a_deepspeed_program, 2, backend=None).values):
        assert seen == [
            (False, None), True, "gloo", True, (rank, 2), rank, False, True, (2, 1), ("dp", "tp"), True, False, None,
        ]  # fmt: skip


def what_is_kept_of_an_ended_world() -> tuple[bool, bool]:
    import gc
    import weakref

    import torch

    import dsexplore.comm as dist

    dist.init_distributed("gloo", verbose=False, config={"comms_logger": {"enabled": True}})
    backend = dist.cdb
    dist.all_reduce(torch.ones(2))
    group = weakref.ref(dist.group.WORLD)
    was_there = backend.world_group is group()
    dist.destroy_process_group()
    gc.collect()
    return was_there, group() is None and backend.world_group is None


def test_an_ended_world_is_not_kept() -> None:
    """A gloo group that outlives its end aborts the process at exit, now and then."""
    assert run_ranks(what_is_kept_of_an_ended_world, 2, backend=None).values == [(True, True)] * 2


def by_other_means() -> list[Any]:
    import torch.distributed as td

    import dsexplore.comm as dist

    world = td.group.WORLD
    dist.init_distributed(verbose=False)
    backend = dist.TorchBackend("gloo", None, None)
    return [td.group.WORLD is world, backend.is_initialized(), backend.world_size, dist.cdb is not None]


def test_a_world_that_is_there_is_adopted(ranks: Ranks) -> None:
    assert ranks(2, by_other_means) == [[True, True, 2, True]] * 2


def bad_beginnings() -> list[str]:
    import os
    from datetime import timedelta

    import dsexplore.comm as dist

    told = []
    for options in (
        {"dist_init_required": False},
        {"timeout": 30},
        {"timeout": timedelta(0)},
        {"config": {"comms_logger": 1}},
    ):
        with pytest.raises(ValueError) as caught:  # noqa: PT011 - the messages are looked at by the test
            dist.init_distributed("gloo", **options)  # type: ignore[arg-type]
        told.append(str(caught.value))
    for name in ("RANK", "MASTER_ADDR"):
        del os.environ[name]
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the messages are looked at by the test
        dist.init_distributed("gloo")
    return [*told, str(caught.value)]


def test_a_bad_beginning_says_what_to_do() -> None:
    (told,) = run_ranks(bad_beginnings, 1, backend=None).values
    assert [text.split(":")[0] for text in told[:3]] == [
        "dist_init_required=False, but there is no process group",
        "timeout 30 is no positive timedelta",
        "timeout datetime.timedelta(0) is no positive timedelta",
    ]
    assert told[3].startswith("'comms_logger' is 1: write an object")
    assert told[4].startswith("cannot initialise: RANK, MASTER_ADDR not set")


def mpi_environment() -> list[int]:
    import os

    import dsexplore.comm as dist

    for mpi, name in (("RANK", "RANK"), ("SIZE", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_RANK")):
        os.environ[f"OMPI_COMM_WORLD_{mpi}"] = os.environ.pop(name)
    os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    dist.init_distributed("gloo", verbose=False)
    return [dist.get_rank(), dist.get_world_size(), dist.get_local_rank()]


def test_ranks_that_mpirun_started_find_each_other() -> None:
    assert run_ranks(mpi_environment, 2, backend=None).values == [[0, 2, 0], [1, 2, 1]]


def uneven_logs() -> dict[str, Any]:
    import contextlib
    import io

    import torch

    import dsexplore.comm as dist

    dist.configure(enabled=True)
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(16))
    if rank == 1:  # logged by one rank only
        dist.comms_logger.append("all_reduce", "extra", 1.0, 64)
    dist.comms_logger.enabled = rank == 0
    dist.all_reduce(torch.ones(16))
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = dist.log_summary(show_straggler=True, return_dict=True)
    assert result is not None
    return {**result, "shown": shown.getvalue()}


def test_ranks_that_logged_different_ops_get_a_report_that_says_so(ranks: Ranks) -> None:
    first, second = ranks(2, uneven_logs)
    assert first["differences"][0].startswith("call 3 on group 0 differs: rank 0 all_reduce SUM of 64 B float32 at ")
    assert first["differences"].pop(0).endswith(", rank 1 made no such call")
    second["differences"].pop(0)
    wanted = [
        "all_reduce on group 0 was logged rank 0 4, rank 1 3 times; the first calls are compared",
        "extra on group 0 was logged rank 0 0, rank 1 1 times; the first calls are compared",
    ]
    assert first["differences"] == second["differences"] == wanted
    assert first["straggler_analysis"]["all_reduce"][64]["count"] == 3
    together = [seen["straggler_analysis"]["all_reduce"][64] for seen in (first, second)]
    assert together[0]["total_comm_lat_ms"] == together[1]["total_comm_lat_ms"] > 0
    assert "difference: all_reduce on group 0" in first["shown"]
    assert second["shown"] == ""


def series(*calls: tuple[int, float], first: int = 0) -> Series:
    """Calls of these sizes in bytes and times in seconds."""
    sizes, seconds = zip(*calls, strict=True)
    return Series(np.array(sizes), np.array(seconds, float), first=first)


def test_waiting_is_what_a_rank_took_beyond_the_last_to_arrive() -> None:
    key = ("0", (0, 1, 2), "all_reduce")
    logs = [
        RankLog(0, {key: series((8, 5e-3), (8, 2e-3), (16, 1e-3))}),
        RankLog(1, {key: series((8, 1e-3), (8, 6e-3), (16, np.nan))}),
        RankLog(2, {key: series((8, 2e-3), (8, 4e-3), (32, 1e-3))}),
    ]
    report = straggler_report(logs)
    (op,) = report.ops
    assert (op.count, op.communication_ms) == (2, pytest.approx(3.0))
    assert op.waiting_ms == pytest.approx({0: 4.0, 1: 4.0, 2: 3.0})
    assert op.last == {0: 1, 1: 1, 2: 0}
    assert op.kept_waiting_ms == pytest.approx({0: 3.0, 1: 2.5, 2: 0.0})
    assert op.worst == [0, 1]
    assert report.differences == ("all_reduce on group 0, call 2: sizes differ: ranks 0–1 16 B, rank 2 32 B",)
    mine = report.by_name(rank=2)["all_reduce"][8]
    assert (mine["count"], mine["total_comm_lat_ms"], mine["total_straggler_ms"]) == (
        2,
        pytest.approx(3),
        pytest.approx(3),
    )
    assert report.text().splitlines() == [
        "Waiting for each other, 3 ranks (communication: the rank that waited least)",
        "op          group  ranks  message  count  communication   waiting  kept others waiting",
        "all_reduce  0          3      8 B      2       1.500 ms  1.833 ms  rank 0: 1 × 3 ms, rank 1: 1 × 2.5 ms",
        "difference: all_reduce on group 0, call 2: sizes differ: ranks 0–1 16 B, rank 2 32 B",
    ]
    rows = report.to_frame().select("message_bytes", "rank", "waiting_ms", "last", "kept_waiting_ms").rows()
    assert rows == [(8, 0, 2.0, 1, pytest.approx(3.0)), (8, 1, 2.0, 1, pytest.approx(2.5)), (8, 2, 1.5, 0, 0.0)]


def test_calls_are_matched_by_their_number_where_a_rank_no_longer_has_all() -> None:
    key = ("0", (0, 1), "broadcast")
    whole = RankLog(0, {key: series((8, 9.0), (8, 9.0), (8, 3e-3))})
    (op,) = straggler_report([whole, RankLog(1, {key: series((8, 1e-3), first=2)})]).ops
    assert (op.count, op.waiting_ms) == (1, {0: pytest.approx(2.0), 1: 0.0})


def test_a_report_of_a_thousand_ranks_is_short_and_its_worst_ranks_come_first() -> None:
    world = tuple(range(1024))
    keys = [("0", world, f"op {number}") for number in range(40)]
    logs = []
    for rank in world:
        late = rank in (7, 900)
        calls = series(*[(1024 * (1 + i % 2), 1e-3 if late and i % 7 == rank % 7 else 1e-2) for i in range(50)])
        logs.append(RankLog(rank, dict.fromkeys(keys, calls)))
    del logs[5].series[keys[0]]  # type: ignore[attr-defined]
    report = straggler_report(logs)
    assert len(report.ops) == 2 * 39
    assert set(report.ops[0].worst[:2]) == {7, 900}
    text = report.text()
    assert len(text) < 8_000
    assert "… and 48 more lines: to_frame() has all" in text
    assert "op 0 on group 0 was logged ranks 0–4, 6–1023 50, rank 5 0 times" in text
    assert report.to_frame().height == 2 * 39 * 1024


def beside_a_recording() -> list[Any]:
    import warnings

    import torch

    import dsexplore
    import dsexplore.comm as dist

    with dsexplore.commtrace() as trace, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce(torch.ones(4))
        with dist.comm_off("broadcast"):
            dist.broadcast(torch.ones(4), 0)
        dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
    return trace.events.select("op", "message_bytes", "wire_bytes", "cause").rows()


def test_a_recording_sees_calls_and_what_was_switched_off(ranks: Ranks) -> None:
    for rows in ranks(2, beside_a_recording):
        assert rows[0][:3] == ("all_reduce", 16, 16)
        assert rows[1] == ("switched_off:broadcast", 0, 0, "switched off by broadcast_comm_off")
        assert [row[:2] for row in rows[2:]] == [("all_reduce", 8), ("all_reduce", 12)]


def same_program(module: str) -> list[float]:
    """A program as it is written for torch, DeepSpeed or dsexplore."""
    from importlib import import_module

    import torch

    dist = import_module(module)
    pair = dist.new_group(list(range(dist.get_world_size())))
    tensor = torch.arange(4.0) + dist.get_rank()
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=pair)
    work = dist.all_reduce(tensor, async_op=True)
    assert isinstance(work, dist.Work)
    work.wait()
    future = dist.all_reduce(tensor, async_op=True).get_future()
    future.wait()
    operations = [
        dist.P2POp(dist.isend, tensor, 1 - dist.get_rank()),
        dist.P2POp(dist.irecv, tensor + 0, 1 - dist.get_rank()),
    ]
    for request in dist.batch_isend_irecv(operations):
        request.wait()
    dist.barrier()
    assert dist.get_process_group_ranks(dist.group.WORLD) == [0, 1]
    return tensor.tolist()


def test_a_torch_program_gives_the_same_with_another_import(ranks: Ranks) -> None:
    with_torch = ranks(2, same_program, "torch.distributed")
    assert ranks(2, same_program, "dsexplore.comm") == with_torch


def data_parallel_step(logged: bool) -> list[Any]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    import dsexplore.comm as dist

    dist.configure(enabled=logged)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    model.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(
        lambda future: future.value()[0] / dist.get_world_size()))  # fmt: skip
    model(torch.ones(1, 3) * (dist.get_rank() + 1)).sum().backward()
    records = [record for record in dist.comms_logger.records if record.phase != "start-up"]
    names = [(record.op, record.phase, record.layer) for record in records if record.seconds]
    return [model.module.weight.grad.tolist(), names]


@pytest.mark.parametrize("logged", [False, True])
def test_handles_serve_as_ddps_communication_hook(ranks: Ranks, logged: bool) -> None:
    wanted = [[1.5] * 3] * 2
    for gradient, names in ranks(2, data_parallel_step, logged):
        assert gradient == wanted
        assert names == ([("all_reduce", "backward", "dsexplore.comm")] if logged else [])
