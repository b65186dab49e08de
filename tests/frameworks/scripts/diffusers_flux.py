"""Two steps of a small Flux whose sequence diffusers splits: Ulysses attention, or ring attention.

diffusers_flux.py ulysses|ring
"""

import os
import sys

import torch
import torch.distributed as dist
from diffusers import ContextParallelConfig, FluxTransformer2DModel

WORDS, PIXELS = 16, 64

dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
torch.manual_seed(0)
model = FluxTransformer2DModel(
    patch_size=1,
    in_channels=16,
    num_layers=1,
    num_single_layers=2,
    attention_head_dim=16,
    num_attention_heads=4,
    joint_attention_dim=32,
    pooled_projection_dim=32,
    axes_dims_rope=(4, 4, 8),
).to("cuda")
model.set_attention_backend("_native_flash")
degree = {f"{sys.argv[1]}_degree": dist.get_world_size()}
model.enable_parallelism(config=ContextParallelConfig(**degree))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(2):
    (predicted,) = model(
        hidden_states=torch.randn(1, PIXELS, 16, device="cuda"),
        encoder_hidden_states=torch.randn(1, WORDS, 32, device="cuda"),
        pooled_projections=torch.randn(1, 32, device="cuda"),
        timestep=torch.ones(1, device="cuda"),
        img_ids=torch.zeros(PIXELS, 3, device="cuda"),
        txt_ids=torch.zeros(WORDS, 3, device="cuda"),
        return_dict=False,
    )
    predicted.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
