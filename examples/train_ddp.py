"""A training script for a cluster, as anybody writes it: nothing in it knows of dsexplore.

dsexplore run --world-size 16 examples/train_ddp.py                      # what it would send on 16 GPUs, on none
dsexplore run --world-size 16 --html step.html examples/train_ddp.py     # the same as a page
torchrun --nproc-per-node 8 examples/train_ddp.py                        # the real thing
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    dist.init_process_group("nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).cuda()
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        batch = torch.randn(32, 1024, device="cuda")
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
