"""A transformers model loaded with its own tensor-parallel plan, and trained by hand."""

import os
import tempfile

import small_llama
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

rank = int(os.environ["RANK"])
with tempfile.TemporaryDirectory() as folder:
    small_llama.model().save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)  # the plan leaves some parameters plain tensors
data = small_llama.Tokens()
for step in range(2):
    batch = {name: value[None].to(model.device) for name, value in data[step].items()}
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"step {step}: loss {loss.item():.3f}")
dist.destroy_process_group()
