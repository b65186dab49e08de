"""What a step of a tensor-parallel and sharded model sends, on eight simulated ranks: no GPU, no second process.

python examples/trace_a_step.py
"""

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dsexplore


class FeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


with dsexplore.simulate(mesh="dp=2,tp=4") as mesh, dsexplore.commtrace() as trace:
    model = nn.Sequential(*(FeedForward(256) for _ in range(4)))
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(16, 256)).square().mean().backward()
    optimizer.step()

print(trace.headline())  # what a step sends, by mesh axis and module, in a few sentences
print(trace.by_module())  # a polars frame: count, message bytes and wire bytes per module and axis
trace.to_html("step.html")  # the same as a page that needs no network
