"""Worlds, models and readers that the recorder's tests share.

The models are shaped like Llama and like a mixture of experts, as small as their closed forms allow: every
size differs from the others, so that a formula cannot be right by accident.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dsexplore import run_ranks
from dsexplore.worlds import rank_server as server_module
from dsexplore.worlds.simulate import simulate
from dsexplore.worlds.target_traffic import Target

D, FFN, VOCAB, HEADS = 16, 48, 64, 4
"""Width, width of the feed-forward layer, vocabulary, attention heads."""
BATCH, SEQ = 2, 8
FLOAT = 4


@pytest.fixture
def world() -> Iterator[Callable[..., DeviceMesh]]:
    """``world("dp=2,tp=4", rank=0)`` opens a simulated world until the end of the test, or until it is called again."""
    with ExitStack() as opened:

        def open_(mesh: str, rank: int = 0, fake: bool = False, target: Target = "cuda") -> DeviceMesh:
            opened.close()
            torch.manual_seed(0)
            return opened.enter_context(simulate(mesh=mesh, rank=rank, fake=fake, target=target))

        yield open_


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, D // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(batch, seq, -1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(D, FFN, bias=False), nn.Linear(D, FFN, bias=False)
        self.w2 = nn.Linear(FFN, D, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
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


@pytest.fixture(scope="package")
def rank_server() -> Iterator[None]:
    """Start the process that real ranks are forked from before the first test that needs it."""
    run_ranks("", 1, backend=None).check()
    yield
    server_module.close()


@pytest.fixture
def sizes() -> SimpleNamespace:
    """The models' sizes, for formulas."""
    return SimpleNamespace(
        d=D,
        ffn=FFN,
        vocab=VOCAB,
        heads=HEADS,
        batch=BATCH,
        seq=SEQ,
        tokens=BATCH * SEQ,
        float=FLOAT,
        block=BLOCK_PARAMETERS,
        root=ROOT_PARAMETERS,
    )


@pytest.fixture
def llama() -> type[Llama]:
    """The Llama-shaped model's class."""
    return Llama


@pytest.fixture
def block() -> type[Block]:
    """Its block's class."""
    return Block


@pytest.fixture
def tokens() -> torch.Tensor:
    """One batch for it."""
    return torch.zeros(BATCH, SEQ, dtype=torch.long)


@pytest.fixture
def totals() -> Callable[..., dict[tuple[Any, ...], tuple[int, int]]]:
    """``totals(trace, "phase", "op")``: ``{("forward", "all_reduce"): (count, message bytes), …}``."""

    def read(trace: Any, *keys: str) -> dict[tuple[Any, ...], tuple[int, int]]:
        counts: Counter[tuple[Any, ...]] = Counter()
        sums: Counter[tuple[Any, ...]] = Counter()
        for row in trace.events.select(*keys, "message_bytes").iter_rows():
            key = row[:-1] if len(keys) > 1 else row[0]
            counts[key] += 1
            sums[key] += row[-1]
        return {key: (counts[key], sums[key]) for key in counts}

    return read


@pytest.fixture
def column() -> Callable[..., list[Any]]:
    """``column(trace, "op")``: that column's values; with several names, tuples."""

    def read(trace: Any, *names: str) -> list[Any]:
        frame = trace.events
        return frame[names[0]].to_list() if len(names) == 1 else list(frame.select(*names).iter_rows())

    return read
