"""DeepSpeed's engine, with the stage of ZeRO on the command line: 1, 2 or 3."""

import sys

import deepspeed
import torch
from torch import nn

config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": int(sys.argv[1]), "stage3_param_persistence_threshold": 0},
}
deepspeed.init_distributed()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 12))
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
for step in range(3):
    images = torch.randn(4, 64, device=engine.device, dtype=torch.bfloat16)
    labels = torch.randint(0, 12, (4,), device=engine.device)
    loss = nn.functional.cross_entropy(engine(images).float(), labels)
    engine.backward(loss)
    engine.step()
    if torch.distributed.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.3f}")
