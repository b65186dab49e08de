"""PyTorch-Ignite's loop: a model, an optimizer and a loader that it distributes, and a metric over all ranks."""

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.metrics import Accuracy
from torch import nn
from torch.utils.data import TensorDataset


def training(_local_rank: int) -> None:
    device = idist.device()
    torch.manual_seed(0)
    model = idist.auto_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4)))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))
    data = TensorDataset(torch.randn(96, 64), torch.randint(0, 4, (96,)))
    loader = idist.auto_dataloader(data, batch_size=32)

    def train(_engine: Engine, batch: tuple[torch.Tensor, ...]) -> float:
        inputs, labels = (each.to(device) for each in batch)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return idist.all_reduce(loss.item())

    def evaluate(_engine: Engine, batch: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            return model(batch[0].to(device)), batch[1].to(device)

    trainer, evaluator = Engine(train), Engine(evaluate)
    Accuracy(device=device).attach(evaluator, "accuracy")
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: evaluator.run(loader))
    trainer.run(loader, max_epochs=1)
    if idist.get_rank() == 0:
        print(f"accuracy {evaluator.state.metrics['accuracy']:.2f}")


with idist.Parallel(backend="nccl" if torch.cuda.is_available() else "gloo") as parallel:
    parallel.run(training)
