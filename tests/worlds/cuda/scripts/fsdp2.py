"""A training script for GPUs: FSDP2 with tensor parallelism in a node, activation checkpointing, gradient clipping.

torchrun --nnodes 8 --nproc-per-node 8 fsdp2.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.checkpoint import checkpoint

STEPS, LAYERS, WIDTH, TENSOR_PARALLEL = 2, 3, 64, 4


class Block(nn.Module):
    """A residual MLP with recomputed activations."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, width]."""
        return x + checkpoint(lambda y: self.down(torch.relu(self.up(self.norm(y)))), x, use_reentrant=False)


def main() -> None:
    """Train for a few steps."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend="cpu:gloo,cuda:nccl")
    shape = (dist.get_world_size() // TENSOR_PARALLEL, TENSOR_PARALLEL)
    mesh = init_device_mesh("cuda", shape, mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(LAYERS)))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"], mp_policy=precision)
    fully_shard(model, mesh=mesh["dp"], mp_policy=precision)
    model.to_empty(device="cuda")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    assert all(parameter.device.type == "cuda" for parameter in model.parameters())

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    for _ in range(STEPS):
        x = torch.randn(8, WIDTH, device="cuda")
        model(x).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        assert norm.device.type == "cuda"
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.empty_cache()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
