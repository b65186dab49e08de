"""Which of two ways to shard a model sends less, and where: DDP beside FSDP2.

python examples/compare_plans.py
"""

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dsexplore


def build() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))


def with_ddp(mesh: DeviceMesh) -> nn.Module:
    return DistributedDataParallel(build(), process_group=mesh.get_group())


def with_fsdp(mesh: DeviceMesh) -> nn.Module:
    model = build()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def trace(shard) -> dsexplore.Trace:
    with dsexplore.simulate(mesh="dp=8") as mesh:
        model = shard(mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        with dsexplore.commtrace() as recorded:
            model(torch.randn(16, 1024)).sum().backward()
            optimizer.step()
    return recorded


ddp, fsdp = trace(with_ddp), trace(with_fsdp)
difference = ddp.diff(fsdp)
print(difference.headline())  # which sends less, and on which axis
difference.to_html("plans.html")  # one module tree: what the second plan sends more and less
