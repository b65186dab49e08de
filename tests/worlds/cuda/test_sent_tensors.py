"""A group with the backend ``nccl`` refuses CPU tensors, as on a cluster; other groups send them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.model_averaging.utils import average_parameters
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsexplore
import dsexplore.comm

RANKS = 4


@contextmanager
def world(backend: str | None, fake: bool = False) -> Iterator[None]:
    with dsexplore.simulate(RANKS, hardware="h100", fake=fake):
        dist.init_process_group(backend)
        yield


@pytest.fixture(params=[False, True], ids=["real", "fake"])
def fake(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def _gpu(*shape: int) -> Tensor:
    return torch.ones(*shape, device="cuda")


def _exchange(tensor: Tensor) -> None:
    sent = [dist.P2POp(dist.isend, tensor, 1), dist.P2POp(dist.irecv, torch.empty_like(tensor), 1)]
    for work in dist.batch_isend_irecv(sent):
        work.wait()


CALLS: dict[str, tuple[str, Callable[[Tensor], Any]]] = {
    "all_reduce": ("tensor", dist.all_reduce),
    "broadcast": ("tensor", lambda x: dist.broadcast(x, 0)),
    "reduce": ("tensor", lambda x: dist.reduce(x, 0)),
    "send": ("tensor", lambda x: dist.send(x, 1)),
    "recv": ("tensor", lambda x: dist.recv(x, 1)),
    "batch_isend_irecv": ("tensor", _exchange),
    "all_gather": ("tensor_list", lambda x: dist.all_gather([x] * RANKS, _gpu(*x.shape))),
    "gather": ("tensor", lambda x: dist.gather(x, [x] * RANKS)),
    "scatter": ("tensor", lambda x: dist.scatter(x, [x] * RANKS)),
    "all_gather_into_tensor": ("input_tensor", lambda x: dist.all_gather_into_tensor(_gpu(RANKS, *x.shape), x)),
    "reduce_scatter_tensor": ("input", lambda x: dist.reduce_scatter_tensor(_gpu(1, *x.shape[1:]), x)),
    "all_to_all_single": ("output", lambda x: dist.all_to_all_single(x, _gpu(*x.shape))),
    "all_to_all": ("output_tensor_list", lambda x: dist.all_to_all([x] * RANKS, [x] * RANKS)),
}


@pytest.mark.parametrize("op", CALLS)
def test_a_tensor_on_the_cpu(op: str, fake: bool) -> None:
    name, call = CALLS[op]
    with world("nccl", fake):
        call(_gpu(4, 2))
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu") as caught:
            call(torch.ones(4, 2))
    assert str(caught.value) == (
        f"No backend type associated with device type cpu: the {name} of {op} is a CPU tensor of shape "
        "(4, 2), and the backend of this group, nccl, sends GPU tensors only: move the tensor to the GPU, or choose "
        'the backend "cpu:gloo,cuda:nccl"'
    )


@pytest.mark.parametrize("backend", [None, "cpu:gloo,cuda:nccl", "gloo"])
def test_groups_that_take_it(backend: str | None) -> None:
    with world(backend):
        dist.all_reduce(torch.ones(2))


def test_the_group_of_the_call_counts() -> None:
    with world("nccl"):
        gloo = dist.new_group(backend="gloo")
        dist.all_reduce(torch.ones(2), group=gloo)
        dist.all_gather([torch.ones(2) for _ in range(RANKS)], torch.ones(2), group=gloo)
        with pytest.raises(RuntimeError, match="No backend type"):
            dist.all_reduce(torch.ones(2), group=dist.new_group([0, 1]))
    with world(None):
        dist.all_reduce(torch.ones(2))
        with pytest.raises(RuntimeError, match="No backend type"):
            dist.all_reduce(torch.ones(2), group=dist.new_group(backend="nccl"))


def test_a_call_through_comm() -> None:
    with world("nccl"), pytest.raises(RuntimeError, match="No backend type"):
        dsexplore.comm.all_reduce(torch.ones(2))


def test_objects_and_barriers(fake: bool) -> None:
    with world("nccl", fake):
        dist.all_gather_object([None] * RANKS, "text")
        dist.broadcast_object_list(["text"])
        dist.gather_object("text", [None] * RANKS)
        dist.send_object_list(["text"], 1)
        dist.barrier()


def test_tensors_whose_device_is_not_known() -> None:
    """Hooks get gradients that C++ created, and the script may send them."""
    with world("nccl"):
        model = nn.Linear(4, 4).cuda()
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: dist.all_reduce(gradient))
        model(_gpu(2, 4)).sum().backward()
        dist.all_reduce(model.weight.grad)
        dist.all_reduce(torch.func.grad(lambda weight: (weight**2).sum())(model.weight))


def test_what_torch_sends_itself(fake: bool) -> None:
    with world("nccl", fake):
        DistributedDataParallel(nn.Linear(4, 4).cuda())(_gpu(2, 4)).sum().backward()
        model = nn.Linear(4, 4).cuda()
        fully_shard(model)
        model(_gpu(2, 4)).sum().backward()


def test_what_torch_sends_of_others_tensors() -> None:
    """Functions of torch may send tensors that C++ created without a mark: these are not refused."""
    with world("nccl"):
        weight = nn.Parameter(torch.ones(2))
        average_parameters([weight], dist.group.WORLD)
        with pytest.raises(RuntimeError, match="the tensor of all_reduce is a CPU tensor"):
            dist.all_reduce(weight.data)


def test_torch_is_left_as_it_was() -> None:
    with world("nccl"):
        pass
    with dsexplore.simulate(RANKS):
        dist.all_reduce(torch.ones(2))
    assert dist.distributed_c10d._check_single_tensor.__module__ == "torch.distributed.distributed_c10d"
    assert dist.distributed_c10d._check_tensor_list.__module__ == "torch.distributed.distributed_c10d"
