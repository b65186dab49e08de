"""accelerate's own loop: prepare, backward, gather_for_metrics."""

import small_llama
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
model = small_llama.model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(small_llama.Tokens(32), batch_size=2, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch in loader:
    with accelerator.accumulate(model):
        loss = model(**batch).loss
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses = accelerator.gather_for_metrics(loss.detach())
accelerator.print(f"last losses {[round(value, 3) for value in losses.tolist()]}")
accelerator.wait_for_everyone()
accelerator.end_training()
