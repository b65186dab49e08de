"""FullyShardedDataParallel with an automatic wrapping policy and mixed precision."""

import functools
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=128, batch_first=True)
model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, num_layers=3), nn.Linear(64, 100)).to(device)
model = FullyShardedDataParallel(
    model,
    auto_wrap_policy=functools.partial(
        transformer_auto_wrap_policy, transformer_layer_cls={nn.TransformerEncoderLayer}
    ),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    device_id=device if on_gpu else None,
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(2):
    tokens = torch.randint(0, 100, (2, 16), device=device)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    norm = model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}, gradient norm {float(norm):.3f}")
dist.destroy_process_group()
