"""Two linear layers, sharded or replicated over a mesh with the axes dp and tp, and a step of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))


def tensor_parallel(mesh: DeviceMesh) -> nn.Module:
    return parallelize_module(layers(), mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})


def fully_sharded(mesh: DeviceMesh) -> nn.Module:
    return fully_shard(layers(), mesh=mesh["dp"])


def both(mesh: DeviceMesh) -> nn.Module:
    return fully_shard(tensor_parallel(mesh), mesh=mesh["dp"])


def replicated(mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(layers(), process_group=mesh["dp"].get_group())


Build = Callable[[DeviceMesh], nn.Module]


def step(model: nn.Module) -> torch.Tensor:
    optimizer = torch.optim.AdamW(model.parameters())
    loss = model(torch.randn(4, 16)).sum()
    loss.backward()
    optimizer.step()
    return loss
