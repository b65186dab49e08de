"""FSDP2 of layers that torchao trains in float8, whose weights are gathered in float8 as well."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchao.float8 import (
    Float8LinearConfig,
    convert_to_float8_training,
    precompute_float8_dynamic_scale_for_fsdp,
)

kind = "cuda" if torch.cuda.is_available() else "cpu"
if kind == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh(kind, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp",))

torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Sequential(nn.Linear(64, 256, bias=False), nn.GELU(), nn.Linear(256, 64, bias=False)) for _ in range(3))
).to(kind)
convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(3):
    inputs = torch.randn(32, 64, device=kind, dtype=torch.bfloat16)
    loss = model(inputs).float().pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    precompute_float8_dynamic_scale_for_fsdp(model)
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}")
dist.destroy_process_group()
