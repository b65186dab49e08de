"""A training script for GPUs: DistributedDataParallel, mixed precision, a side stream, a checkpoint at the end.

torchrun --nproc-per-node 8 ddp.py [checkpoint.pt]
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

STEPS = 3


def main() -> None:
    """Train for a few steps."""
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    device = torch.device("cuda", local_rank)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)

    features, targets = torch.randn(4096, 64), torch.randint(0, 10, (4096,))
    data = TensorDataset(features, targets)
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data), pin_memory=True)

    module = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 10))
    model = DistributedDataParallel(module.to(device), device_ids=[local_rank], output_device=local_rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    copies = torch.cuda.Stream()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    began.record()
    for step, (batch, labels) in enumerate(loader):
        if step == STEPS:
            break
        with torch.cuda.stream(copies):
            batch, labels = batch.to(device, non_blocking=True), labels.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        shown = loss.detach().clone()
        dist.all_reduce(shown, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {shown.item():.3f} on {shown.device}")
    ended.record()
    torch.cuda.synchronize()
    assert began.elapsed_time(ended) > 0

    if len(sys.argv) > 1 and dist.get_rank() == 0:
        torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1])
        saved = torch.load(sys.argv[1], map_location=device, weights_only=True)
        assert saved["model"]["0.weight"].device == device
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    dist.barrier(device_ids=[local_rank])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
