"""The training script of `benchmarks/distinct_ranks.py`: Llama 3 405B with pipeline, tensor and data parallelism.

Nothing in it knows of dsexplore. Each of the 16 stages has 8 of the 126 layers, the last one 6; the first one has the
embedding, the last one the output. A step has 16 microbatches of one sequence. The vocabulary of 128,256 does not
divide evenly, so the last data-parallel rank of the first and last stage holds a smaller shard.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from llama import LLAMA_405B, Block, Shape, _layer_plan
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

STAGES, REPLICAS, SLICES, MICROBATCHES = 16, 128, 8, 16


class Stage(nn.Module):
    """One stage: tokens or activations in, activations or logits out."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        each = -(-shape.layers // STAGES)
        own = range(index * each, min((index + 1) * each, shape.layers))
        is_last = index == STAGES - 1
        self.embedding = nn.Embedding(shape.vocabulary, shape.width) if index == 0 else None
        self.layers = nn.ModuleDict({str(layer): Block(shape) for layer in own})
        self.norm = nn.RMSNorm(shape.width) if is_last else None
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False) if is_last else None
        self.sequence, self.half_head_width = shape.sequence, shape.width // shape.heads // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        rates = 500000.0 ** -(torch.arange(self.half_head_width, device="cuda") / self.half_head_width)
        angles = torch.outer(torch.arange(self.sequence, device="cuda"), rates)
        for layer in self.layers.values():
            x = layer(x, angles)
        return x if self.output is None else self.output(self.norm(x)).float()


def main() -> None:
    """Train for one step."""
    dist.init_process_group("nccl")
    mesh = init_device_mesh("cuda", (STAGES, REPLICAS, SLICES), mesh_dim_names=("pp", "dp", "tp"))
    index = mesh.get_local_rank("pp")
    torch.set_default_dtype(torch.bfloat16)
    shape = LLAMA_405B
    with torch.device("cuda"):
        model = Stage(shape, index)
    plan = {}
    if model.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if model.output is not None:
        plan["norm"] = SequenceParallel()
        plan["output"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    if plan:
        parallelize_module(model, mesh["tp"], plan)
    for layer in model.layers.values():
        parallelize_module(layer, mesh["tp"], _layer_plan())
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])

    tokens = torch.zeros(1, shape.sequence, dtype=torch.long, device="cuda")
    hidden = torch.zeros(1, shape.sequence // SLICES, shape.width, device="cuda", requires_grad=True)
    logits = torch.zeros(1, shape.sequence, shape.vocabulary, device="cuda", dtype=torch.float32, requires_grad=True)
    stage = PipelineStage(
        model,
        index,
        STAGES,
        torch.device("cuda"),
        input_args=tokens if index == 0 else hidden,
        output_args=logits if index == STAGES - 1 else hidden,
        group=mesh.get_group("pp"),
    )
    schedule = Schedule1F1B(
        stage,
        MICROBATCHES,
        loss_fn=lambda out, wanted: nn.functional.cross_entropy(out.flatten(0, 1), wanted.flatten()),
    )
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    batch = tokens.expand(MICROBATCHES, -1)
    if index == 0:
        schedule.step(batch)
    elif index == STAGES - 1:
        schedule.step(target=batch)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
