"""The models that the recorder's tests share.

They are shaped like Llama, as small as their closed forms allow: every size differs from the others, so that a formula
cannot be right by accident.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

D, FFN, VOCAB, HEADS = 16, 48, 64, 4
"""Width, width of the feed-forward layer, vocabulary, attention heads."""
BATCH, SEQ = 2, 8
FLOAT = 4


class Attention(nn.Module):
    """With ``wq``, ``wk``, ``wv`` and ``wo``."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, D // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, seq, -1))


class FeedForward(nn.Module):
    """With ``w1``, ``w3`` and ``w2``, of width `D`."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(D, FFN, bias=False), nn.Linear(D, FFN, bias=False)
        self.w2 = nn.Linear(FFN, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Attention and feed-forward layer, each behind its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn = nn.RMSNorm(D), Attention()
        self.norm2, self.mlp = nn.RMSNorm(D), FeedForward()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Embedding, blocks, norm, output: logits of (batch, seq, vocabulary)."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(D)
        self.output = nn.Linear(D, VOCAB, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


BLOCK_PARAMETERS = 4 * D * D + 3 * D * FFN + 2 * D
ROOT_PARAMETERS = 2 * VOCAB * D + D
