"""Memory statistics of ``torch.cuda`` are an estimate of what tensors use on each device."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in
from dsexplore._internal.worlds.simulate import simulate


def test_memory_is_an_estimate_and_says_so_once() -> None:
    with cuda_stand_in(), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        x = torch.zeros(1 << 20, device="cuda")
        view = x[1:]
        assert torch.cuda.memory_allocated() == torch.cuda.max_memory_allocated() == 4 << 20
        assert torch.cuda.memory_allocated(1) == 0
        assert torch.cuda.mem_get_info()[0] == torch.cuda.mem_get_info()[1] - (4 << 20)
        del x, view
        assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (0, 4 << 20)
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0
        assert torch.accelerator.memory_allocated() == 0
        assert "CUDA OOMs" in torch.cuda.memory_summary()
    assert [str(warning.message)[:40] for warning in said] == ["torch.cuda's memory statistics are estim"]


@pytest.mark.parametrize("fake", [False, True])
def test_memory_counts_the_parts_of_dtensors(fake: bool) -> None:
    with simulate(4, hardware="h100", fake=fake) as mesh, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.cuda.memory_allocated()
        with torch.device("meta"):
            model = nn.Linear(256, 256, bias=False)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cuda")
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.zeros(1, 256, device="cuda")).sum().backward()
        optimizer.step()
        shard = 4 * 256 * 256 // 4
        assert 4 * shard <= torch.cuda.memory_allocated() - before < 5 * shard


def test_memory_leaves_out_the_dtensors_of_a_world_that_is_closed() -> None:
    with simulate(4, hardware="h100") as mesh:
        kept = fully_shard(nn.Linear(64, 64, device="cuda"), mesh=mesh)
    with simulate(4, hardware="h100"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = torch.cuda.memory_allocated()
        made = torch.zeros(64, device="cuda")
        assert torch.cuda.memory_allocated() - before == made.nbytes
    del kept
