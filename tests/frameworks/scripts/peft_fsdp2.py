"""LoRA adapters of peft on a transformers model that FSDP2 shards, frozen weights with them; the adapters are saved."""

import os

import small_llama
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

on_gpu = torch.cuda.is_available()
dist.init_process_group("nccl" if on_gpu else "gloo")
if on_gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
device = "cuda" if on_gpu else "cpu"
model = get_peft_model(small_llama.model(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"])).to(device)
for layer in model.base_model.model.model.layers:
    fully_shard(layer)
fully_shard(model)
adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=1e-3)
data = small_llama.Tokens()
for step in range(2):
    model(**{name: value[None].to(device) for name, value in data[step].items()}).loss.backward()
    torch.nn.utils.clip_grad_norm_(adapters, 1.0)
    optimizer.step()
    optimizer.zero_grad()
options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
saved = get_model_state_dict(model, options=options)
if dist.get_rank() == 0:
    print(f"{len(saved)} adapters")
dist.destroy_process_group()
