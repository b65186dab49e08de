"""Beginning and ending a world, adopting one, groups and meshes, recordings beside the log.

Modules: ``comm/launch.py``, ``comm/ranks.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dsexplore import run_ranks

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
        "timeout 30 is not a positive timedelta",
        "timeout datetime.timedelta(0) is not a positive timedelta",
    ]
    assert told[3].startswith("'comms_logger' is 1: write an object")
    assert told[4].startswith("cannot initialize: RANK, MASTER_ADDR not set")


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
    """Return a program as it is written for torch, DeepSpeed or dsexplore."""
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
