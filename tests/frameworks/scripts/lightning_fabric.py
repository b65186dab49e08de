"""Lightning Fabric, with the strategy given on the command line: ddp or fsdp."""

import os
import sys

import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import FSDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

strategy = sys.argv[1]
node = int(os.environ["LOCAL_WORLD_SIZE"])
fabric = Fabric(
    strategy=FSDPStrategy(auto_wrap_policy={nn.TransformerEncoderLayer}) if strategy == "fsdp" else strategy,
    devices=node,
    num_nodes=int(os.environ["WORLD_SIZE"]) // node,
)
fabric.launch()
fabric.seed_everything(0)
with fabric.init_module():
    layer = nn.TransformerEncoderLayer(d_model=64, nhead=4, dim_feedforward=128, batch_first=True)
    model = nn.Sequential(nn.Embedding(100, 64), nn.TransformerEncoder(layer, num_layers=2), nn.Linear(64, 100))
model = fabric.setup_module(model)
optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randint(0, 100, (32, 16))), batch_size=4))
for (tokens,) in loader:
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    fabric.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
average = fabric.all_reduce(loss.detach(), reduce_op="mean")
fabric.print(f"loss {average.item():.3f}")
