"""A training script of `benchmarks/large_models.py`: Llama 3 70B in plain PyTorch, one step. It knows no dsexplore.

``train_llama_70b.py`` shards over all ranks with FSDP2; with ``hsdp`` it is sharded over 64 ranks, replicated over the
others, and tensor parallel over 8.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from llama import LLAMA_70B, Llama, apply_fully_shard, apply_tensor_parallel, training_loss
from torch.distributed.device_mesh import init_device_mesh


def main() -> None:
    """Train for one step."""
    dist.init_process_group("nccl")
    ranks = dist.get_world_size()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Llama(LLAMA_70B)
    if "hsdp" in sys.argv:
        shape = (ranks // 512, 64, 8)
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard", "tp"))
        apply_tensor_parallel(model, mesh["tp"])
        apply_fully_shard(model, mesh["replicate", "shard"])
    else:
        apply_fully_shard(model, init_device_mesh("cuda", (ranks,), mesh_dim_names=("dp",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    loss = training_loss(model, torch.randint(LLAMA_70B.vocabulary, (1, LLAMA_70B.sequence), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
