"""What the memory of a program is for: parameters, gradients, activations, the optimizer's state and inputs.

Modules: ``capture/kernels/live_memory.py``, ``capture/kernels/fused_tensors.py``, ``capture/kernels/watched_ops.py``.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.capture.kernels.live_memory import LiveMemory
from dsexplore._internal.torch_internals.names import torch_at_least


def test_memory_goes_up_with_activations_and_down_in_backward() -> None:
    model = nn.Sequential(*(nn.Linear(256, 256, bias=False) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dsexplore.commtrace(costs=True) as trace:
        model(torch.randn(1024, 256)).sum().backward()
        optimizer.step()
    memory = trace.tables.memory
    assert memory["parameters"].max() == 4 * 256 * 256 * 4
    assert memory["gradients"].max() == 4 * 256 * 256 * 4
    assert memory["activations"].max() >= 4 * 1024 * 256 * 4
    assert memory["activations"][-1] < memory["activations"].max()


def test_what_a_tensor_turns_out_to_be_for_counts_since_it_was_made() -> None:
    memory = LiveMemory()
    first = torch.zeros(100)
    memory.made([first], "activations")
    memory.end_segment()
    second = torch.zeros(50)
    memory.made([second], "activations")
    memory.end_segment()
    memory.assign([first], "gradients")
    memory.end_segment()
    rows = memory.rows()
    assert [row["gradients"] for row in rows] == [400, 400, 400]
    assert [row["activations"] for row in rows] == [0, 200, 200]
    memory.release()


@pytest.mark.parametrize("is_early", [True, False])
def test_a_batch_made_before_the_recording_is_an_input_and_not_a_parameter(is_early: bool) -> None:
    with dsexplore.simulate(2, fake=True):
        model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64))
        batch = torch.randn(256, 64) if is_early else None
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.randn(256, 64) if batch is None else batch).sum().backward()
    memory = trace.tables.memory
    assert memory["parameters"].unique().to_list() == [4 * (64 * 64 + 4 * 64) + 8]
    assert memory["inputs"].unique().to_list() == [4 * 256 * 64 if is_early else 0]


def test_what_belongs_to_a_model_or_is_learned_is_a_parameter_wherever_it_was_made() -> None:
    weight, mask = torch.randn(64, 64, requires_grad=True), torch.ones(64)
    with dsexplore.commtrace(costs=True) as trace:
        made_here = nn.Linear(64, 64, bias=False)
        made_here(weight * mask).sum().backward()
    memory = trace.tables.memory
    assert (memory["parameters"][-1], memory["inputs"][-1]) == (2 * 4 * 64 * 64, 4 * 64)


def test_shards_of_parameters_are_parameters_and_a_batch_is_an_input_beside_them() -> None:
    with dsexplore.simulate(4, fake=True) as mesh:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        batch = torch.randn(2, 8)
        with dsexplore.commtrace(costs=True) as trace:
            model(batch).sum().backward()
    memory = trace.tables.memory
    assert memory["parameters"].unique().to_list() == [2 * 72]  # 72 elements of a layer on four ranks, in float32
    assert memory["inputs"].unique().to_list() == [4 * 2 * 8]


def test_each_part_of_a_step_that_began_before_has_its_own_use() -> None:
    with dsexplore.simulate(2, fake=True):
        model = DistributedDataParallel(nn.Linear(64, 64, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        batch = torch.randn(2, 64)
        for _ in range(2):  # the buckets are made anew after the first backward
            model(batch).sum().backward()
            optimizer.step()
        with dsexplore.commtrace(costs=True) as trace:
            model(batch).sum().backward()
            optimizer.step()
    last = trace.tables.memory.row(-1, named=True)
    weight = 4 * 64 * 64
    assert (last["parameters"], last["optimizer"], last["inputs"]) == (weight, weight, 4 * 2 * 64)
    assert last["gradients"] == 2 * weight, "with DDP's bucket"


def test_a_model_holds_what_it_never_uses_and_its_tied_weights_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
            self.head.weight = self.embedding.weight
            self.unused = nn.Linear(8, 8, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return cast("torch.Tensor", self.head(self.embedding(tokens)))

    model, tokens = Tied(), torch.zeros(4, dtype=torch.long)
    with dsexplore.commtrace(costs=True) as trace, torch.no_grad():
        model(tokens)
    memory = trace.tables.memory
    assert memory["parameters"].unique().to_list() == [4 * (16 * 8 + 8 * 8)]
    assert memory["inputs"].unique().to_list() == [8 * 4]


def test_dtensors_are_parameters_by_their_local_tensors_without_a_module_too() -> None:
    with dsexplore.simulate(mesh="tp=2", fake=True) as mesh:
        weight = nn.Parameter(distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)]))
        batch = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
        with dsexplore.commtrace(costs=True) as trace:
            (batch @ weight).sum().backward()
    memory = trace.tables.memory
    assert (memory["parameters"].max(), memory["inputs"].max()) == (4 * 4 * 8, 4 * 4 * 8)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.SparseAdam])
def test_the_gradient_of_a_sparse_embedding_is_as_large_as_its_rows_and_their_indices(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    embedding = nn.Embedding(16, 8, sparse=True)
    learning = optimizer(embedding.parameters(), lr=0.1)  # type: ignore[call-arg]  # not of the base class
    with dsexplore.commtrace(costs=True) as trace:
        embedding(torch.arange(4)).sum().backward()
        learning.step()
    memory = trace.tables.memory
    assert memory["parameters"].unique().to_list() == [4 * 16 * 8]
    assert memory["gradients"].max() == 4 * (4 * 8) + 8 * 4


def test_batches_that_no_op_makes_are_there_one_after_another_and_not_all_at_the_start() -> None:
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters())
    with dsexplore.commtrace(costs=True) as trace:
        for _ in range(5):
            batch = torch.from_numpy(np.ones((256, 64), np.float32))
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    memory = trace.tables.memory
    assert memory["inputs"].max() in (1 * 4 * 256 * 64, 2 * 4 * 256 * 64), "the last batch goes when the next has come"
    assert memory["inputs"].min() >= 0


class _Clears(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        cleared = grad.clone()
        cleared[cleared > 0] = 0
        return cleared


def test_a_number_in_an_op_was_not_there_before() -> None:
    weight = torch.ones(64, requires_grad=True)
    with dsexplore.commtrace(costs=True) as trace:
        for _ in range(8):
            _Clears.apply(weight).sum().backward()
    made = 0 if torch_at_least("2.15") else 4  # torch 2.15 fills without a tensor of the number
    assert trace.tables.memory["gradients"].max() == made, "one number at a time"
