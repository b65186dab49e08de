"""A Llama in plain PyTorch, with its tensor-parallel plan: the workload of the recorder's benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


@dataclass(frozen=True)
class Shape:
    """The sizes that make up a Llama."""

    layers: int
    width: int
    heads: int
    key_value_heads: int
    hidden: int
    vocabulary: int
    sequence: int


TINY = Shape(layers=4, width=256, heads=8, key_value_heads=8, hidden=1024, vocabulary=512, sequence=128)
LLAMA_70B = Shape(80, 8192, 64, 8, 28672, 128256, 8192)
LLAMA_405B = Shape(126, 16384, 128, 8, 53248, 128256, 8192)


class Attention(nn.Module):
    """Causal self-attention with rotary positions; as many heads as the projections' shards hold."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_width = shape.width // shape.heads
        self.repeats = shape.heads // shape.key_value_heads
        self.wq = nn.Linear(shape.width, shape.heads * self.head_width, bias=False)
        self.wk = nn.Linear(shape.width, shape.key_value_heads * self.head_width, bias=False)
        self.wv = nn.Linear(shape.width, shape.key_value_heads * self.head_width, bias=False)
        self.wo = nn.Linear(shape.heads * self.head_width, shape.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """x: [batch, sequence, width]; angles: [sequence, head_width // 2]."""
        q, k, v = (self._heads(projection(x)) for projection in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        k, v = (part.repeat_interleave(self.repeats, dim=1) if self.repeats > 1 else part for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [batch, heads, sequence, head_width]."""
    left, right = x.chunk(2, dim=-1)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.width, shape.hidden, bias=False)
        self.w2 = nn.Linear(shape.hidden, shape.width, bias=False)
        self.w3 = nn.Linear(shape.width, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_forward_norm = nn.RMSNorm(shape.width)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Llama(nn.Module):
    """Token ids [batch, sequence] → logits [batch, sequence, vocabulary]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width)
        self.output = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.half_head_width = shape.width // shape.heads // 2

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        rates = 500000.0 ** -(torch.arange(self.half_head_width, device=tokens.device) / self.half_head_width)
        angles = torch.outer(torch.arange(tokens.shape[1], device=tokens.device), rates)
        for layer in self.layers:
            x = layer(x, angles)
        return self.output(self.norm(x)).float()


def apply_tensor_parallel(model: Llama, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallel over a mesh of one axis; logits come out whole on every rank."""
    parallelize_module(
        model,
        mesh,
        {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for layer in model.layers:
        parallelize_module(layer, mesh, _layer_plan())


def _layer_plan() -> dict[str, object]:
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
    }


def apply_fully_shard(model: Llama, mesh: DeviceMesh) -> None:
    """FSDP2: one unit per layer, the rest in the root's."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def sharded(shape: Shape, mesh: DeviceMesh) -> Llama:
    """A model that is tensor parallel along ``tp`` of a mesh, and under FSDP2 along ``dp``."""
    model = Llama(shape)
    apply_tensor_parallel(model, mesh["tp"])
    apply_fully_shard(model, mesh["dp"])
    return model


def training_loss(model: Llama, tokens: torch.Tensor) -> torch.Tensor:
    """Next-token cross-entropy of [batch, sequence] token ids."""
    logits = model(tokens)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
