"""Lightning's Trainer, with the strategy given on the command line: ddp, fsdp or model_parallel."""

import os
import sys

import lightning
import torch
from lightning.pytorch.strategies import FSDPStrategy, ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(100, 64), *(nn.Linear(64, 64) for _ in range(3)), nn.Linear(64, 100))

    def configure_model(self) -> None:
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            for layer in self.layers:
                fully_shard(layer, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        (tokens,) = batch
        loss = nn.functional.cross_entropy(self.layers(tokens).flatten(0, 1), tokens.flatten())
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


name = sys.argv[1]
world, node = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
strategies = {
    "fsdp": lambda: FSDPStrategy(auto_wrap_policy={nn.Linear}),
    "model_parallel": lambda: ModelParallelStrategy(data_parallel_size=world, tensor_parallel_size=1),
}
trainer = lightning.Trainer(
    strategy=strategies.get(name, lambda: name)(),
    devices=node,
    num_nodes=world // node,
    max_steps=3,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = DataLoader(TensorDataset(torch.randint(0, 100, (64, 16))), batch_size=2)
trainer.fit(Model(), loader)
