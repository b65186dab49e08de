"""What is sent of a model before any module runs is start-up."""

from __future__ import annotations

import torch
import torch.distributed as dist

import dsexplore


class Bucketed(torch.nn.Linear):
    """A module whose ``buffers`` is no method, as in Megatron's DistributedDataParallel."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.buffers = ["a bucket of gradients"]


def test_parameters_of_a_module_with_buffers_of_another_kind_are_found() -> None:
    with dsexplore.commtrace(world_size=2, hardware="cpu") as trace:
        model, inputs = Bucketed(), torch.ones(2, 4)
        dist.broadcast(model.weight.detach(), 0)
        dist.broadcast(inputs, 0)
        model(inputs).sum().backward()
    assert trace.events["phase"].to_list()[0] == "start-up"
