"""The layers of Llama and GPT in plain torch, and the sizes of published models, for `parallel_llama`."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from llama import rotated
from torch import nn


@dataclass(frozen=True)
class Model:
    """The sizes of a model.

    Attributes:
        gated: SwiGLU, as in Llama; else GELU between two products, as in GPT.
        tied: whether embedding and output have one weight, where both are in one stage.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    gated: bool = True
    tied: bool = False


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions, for as many heads as the projections return.

    Keys and values are repeated, as in torchtitan; where ``grouped`` the kernel takes them as they are, as in Megatron.
    """

    def __init__(self, model: Model, grouped: bool) -> None:
        super().__init__()
        self.grouped = grouped
        self.head_width = model.width // model.heads
        self.repeats = model.heads // model.kv_heads
        kv = model.kv_heads * self.head_width
        self.wq = nn.Linear(model.width, model.width, bias=False)
        self.wk = nn.Linear(model.width, kv, bias=False)
        self.wv = nn.Linear(model.width, kv, bias=False)
        self.wo = nn.Linear(model.width, model.width, bias=False)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """x: [batch, sequence, width]; angles: [sequence, head_width // 2]."""
        q, k, v = (self._heads(projection(x)) for projection in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        if self.repeats > 1 and not self.grouped:
            k, v = (part.repeat_interleave(self.repeats, dim=1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.wo(mixed.transpose(1, 2).flatten(2))

    def _heads(self, projected: torch.Tensor) -> torch.Tensor:
        return projected.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU, or GELU between two products."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.w1 = nn.Linear(model.width, model.hidden, bias=False)
        self.w2 = nn.Linear(model.hidden, model.width, bias=False)
        self.w3 = nn.Linear(model.width, model.hidden, bias=False) if model.gated else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, sequence, width]."""
        if self.w3 is None:
            return self.w2(F.gelu(self.w1(x)))
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, model: Model, grouped: bool) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(model.width)
        self.attention = Attention(model, grouped)
        self.feed_forward_norm = nn.RMSNorm(model.width)
        self.feed_forward = FeedForward(model)

    def forward(self, x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        """x: [batch, sequence, width]."""
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Part(nn.Module):
    """Consecutive layers of a model: with the embedding where they are the first, with the output where the last."""

    def __init__(self, model: Model, layers: range, grouped: bool) -> None:
        super().__init__()
        self.model = model
        self.embedding = nn.Embedding(model.vocabulary, model.width) if layers.start == 0 else None
        self.layers = nn.ModuleList(Block(model, grouped) for _ in layers)
        is_last = layers.stop == model.layers
        self.norm = nn.RMSNorm(model.width) if is_last else None
        self.output = nn.Linear(model.width, model.vocabulary, bias=False) if is_last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Token ids or hidden states to hidden states or logits."""
        half = self.model.width // self.model.heads // 2
        whole = x.shape[1] * (self.split if self.embedding is None else 1)
        rates = 500000.0 ** -(torch.arange(half, device=x.device) / half)
        angles = torch.outer(torch.arange(whole, device=x.device), rates)
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers:
            x = layer(x, angles)
        if self.norm is not None and self.output is not None:
            x = self.output(self.norm(x))
        return x

    split = 1
    """Into how many parts tensor parallelism divides the sequence between layers."""


LLAMA_3_8B = Model(32, 4096, 32, 8, 14336, 128256)


LLAMA_3_70B = Model(80, 8192, 64, 8, 28672, 128256)


LLAMA_3_405B = Model(126, 16384, 128, 8, 53248, 128256)


LLAMA_2_7B = Model(32, 4096, 32, 32, 11008, 32000)


LLAMA_2_13B = Model(40, 5120, 40, 40, 13824, 32000)


LLAMA_2_70B = replace(LLAMA_3_70B, vocabulary=32000)
