"""DistributedDataParallel with mixed precision, as torch's own tutorial has it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

on_gpu = torch.cuda.is_available()
local_rank = int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.BatchNorm1d(256), nn.Linear(256, 10)).to(device)
model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=on_gpu)
scaler = torch.amp.GradScaler(device.type, enabled=on_gpu)

data = TensorDataset(torch.randn(96, 64), torch.randint(0, 10, (96,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=on_gpu)

for epoch in range(1):
    sampler.set_epoch(epoch)
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        average = loss.detach().clone()
        dist.all_reduce(average, op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print(f"loss {average.item() / dist.get_world_size():.3f}")
dist.barrier()
dist.destroy_process_group()
