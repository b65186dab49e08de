"""A small Llama in plain torch, and one training step: the program that ``dsexplore demo`` traces.

The blocks are those of Llama 3 (grouped-query attention, SwiGLU, RMSNorm) without rotary embedding, which neither
communicates nor has parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)


@dataclass(frozen=True)
class Shape:
    """The sizes of a `Llama`.

    Attributes:
        layers: number of blocks.
        dim: width of the hidden states.
        heads: number of query heads.
        kv_heads: number of key and value heads.
        hidden: width of the feed-forward network.
        vocabulary: number of tokens.
    """

    layers: int = 4
    dim: int = 64
    heads: int = 8
    kv_heads: int = 4
    hidden: int = 192
    vocabulary: int = 256


class Attention(nn.Module):
    """Causal grouped-query attention, for as many heads as the projections return: all of them, or a rank's share."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.head_dim = shape.dim // shape.heads
        self.wq = nn.Linear(shape.dim, shape.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(shape.dim, shape.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(shape.dim, shape.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(shape.heads * self.head_dim, shape.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden states of shape (batch, sequence, dim) to the same shape."""
        q, k, v = (self._heads(projection(x)) for projection in (self.wq, self.wk, self.wv))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]  # a module call is Any

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        """Split the last dim into heads: (batch, sequence, heads * dim) → (batch, heads, sequence, dim)."""
        heads: torch.Tensor = x.unflatten(2, (-1, self.head_dim))
        return heads.transpose(1, 2)


class FeedForward(nn.Module):
    """A feed-forward network with SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.dim, shape.hidden, bias=False)
        self.w2 = nn.Linear(shape.hidden, shape.dim, bias=False)
        self.w3 = nn.Linear(shape.dim, shape.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden states of shape (batch, sequence, dim) to the same shape."""
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))  # type: ignore[no-any-return]  # as above


class Block(nn.Module):
    """One transformer block."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.dim)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.dim)
        self.feed_forward = FeedForward(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map hidden states of shape (batch, sequence, dim) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))  # type: ignore[no-any-return]  # as above


class Llama(nn.Module):
    """Token embedding, blocks, norm, and output projection."""

    def __init__(self, shape: Shape | None = None) -> None:
        super().__init__()
        shape = shape or Shape()
        self.embedding = nn.Embedding(shape.vocabulary, shape.dim)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim)
        self.output = nn.Linear(shape.dim, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map token ids of shape (batch, sequence) to logits of shape (batch, sequence, vocabulary)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))  # type: ignore[no-any-return]  # as above


def shard_tensors(model: Llama, tp: DeviceMesh, sequence_parallel: bool = False) -> None:
    """Apply tensor parallelism over a 1-D mesh in place; with sequence parallelism norms are sharded too."""
    sharded, replicated = Shard(1), Replicate()  # along the sequence
    between: Any = sharded if sequence_parallel else replicated
    gather_input = PrepareModuleInput(input_layouts=(sharded,), desired_input_layouts=(replicated,))
    block: dict[str, ParallelStyle] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        "attention.wo": RowwiseParallel(output_layouts=between),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=between),
    }
    outside: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=replicated, output_layouts=between),
        "output": ColwiseParallel(input_layouts=between, output_layouts=replicated),
    }
    if sequence_parallel:
        block |= {"attention_norm": SequenceParallel(), "ffn_norm": SequenceParallel()}
        block |= {"attention": gather_input, "feed_forward": gather_input}
        outside["norm"] = SequenceParallel()
    for layer in model.layers:
        parallelize_module(layer, tp, block)
    parallelize_module(model, tp, outside)


def shard_parameters(model: Llama, dp: DeviceMesh) -> None:
    """Apply FSDP2 over a 1-D mesh in place: each block is one FSDP group, and all other parameters another."""
    for layer in model.layers:
        fully_shard(layer, mesh=dp)
    fully_shard(model, mesh=dp)


def train_step(model: nn.Module, tokens: torch.Tensor) -> None:
    """Run forward, backward and an AdamW step on next-token prediction."""
    # foreach refuses a mix of plain tensors and DTensors, which tensor parallelism without FSDP gives.
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    logits = model(tokens[:, :-1])
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
