"""fully_shard of each layer on a mesh of two axes, with gradient clipping."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

kind = "cuda" if torch.cuda.is_available() else "cpu"
world = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh(kind, (2, world // 2), mesh_dim_names=("replicate", "shard"))
device = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
if kind == "cuda":
    torch.cuda.set_device(device)

torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(64, 4, 128, batch_first=True) for _ in range(3)]
model = nn.Sequential(nn.Embedding(100, 64), *layers, nn.Linear(64, 100))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in model:
    fully_shard(layer, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(2):
    tokens = torch.randint(0, 100, (2, 16), device=device)
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}, gradient norm {norm.full_tensor().item():.3f}")
    else:
        norm.full_tensor()
dist.destroy_process_group()
