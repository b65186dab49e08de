"""Models of an outsider's plans: biased attention, experts by all_to_all, two towers, a pool, LoRA, an LSTM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from tests.numerics.trained_model import HEADS, LENGTH, VOCABULARY, WIDTH

HEAD = WIDTH // HEADS


class RelativeBias(nn.Module):
    """A learned bias [heads, queries, keys] of the distance between positions, as in T5."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.start = nn.Embedding(7, HEADS), 0
        self.heads = slice(0, HEADS)

    def forward(self, queries: int, keys: int) -> Tensor:
        places = torch.arange(self.start, self.start + queries)
        away = (torch.arange(keys) - places[:, None]).clamp(-3, 3) + 3
        out: Tensor = self.table(away).permute(2, 0, 1)[self.heads]
        return out


class Slopes(nn.Module):
    """A bias that falls with the distance, by another slope for each head, as in ALiBi."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = slice(0, HEADS)
        self.register_buffer("slopes", 0.5 ** torch.arange(1.0, HEADS + 1))

    def forward(self, queries: int, keys: int) -> Tensor:
        away = torch.arange(keys) - torch.arange(queries)[:, None]
        return self.slopes[self.heads, None, None] * away  # type: ignore[index]


class BiasedAttention(nn.Module):
    """Causal attention; a key's head may serve all queries, and a window may hide what is far."""

    def __init__(self, key_heads: int, window: int) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, WIDTH)
        self.wk, self.wv = nn.Linear(WIDTH, key_heads * HEAD), nn.Linear(WIDTH, key_heads * HEAD)
        self.wo = nn.Linear(WIDTH, WIDTH)
        self.window = window
        self.query_places = self.key_places = torch.arange(LENGTH)
        self.gather: Callable[[Tensor], Tensor] = lambda x: x
        self.core: Callable[..., Tensor] = _attend

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for one in (self.wq, self.wk, self.wv))
        k, v = self.gather(k), self.gather(v)
        away = self.query_places[:, None] - self.key_places
        hidden = (away < 0) | (away >= self.window)
        mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, float("-inf"))
        mixed = self.core(q, k, v, mask if bias is None else mask + bias)
        return self.wo(mixed.transpose(1, 2).flatten(2))


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    times = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class BiasedLayer(nn.Module):
    """Attention and two linear layers, each after a norm."""

    def __init__(self, key_heads: int, window: int) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = BiasedAttention(key_heads, window)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x + self.attention(self.before(x), bias)
        return x + self.down(F.silu(self.up(self.after(x))))


class Decoder(nn.Module):
    """Token ids → logits; positions by a table, or by a bias of attention."""

    def __init__(
        self, bias: nn.Module | None = None, key_heads: int = HEADS, window: int = LENGTH, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.places = torch.arange(LENGTH)
        self.positions = nn.Embedding(LENGTH, WIDTH) if bias is None else None
        self.bias = bias
        self.layers = nn.ModuleList(BiasedLayer(key_heads, window) for _ in range(2))
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(self.places)
        bias = None if self.bias is None else self.bias(tokens.shape[1], LENGTH)
        for layer in self.layers:
            x = layer(x, bias)
        return self.output(self.norm(x))


class Sent(torch.autograd.Function):
    """all_to_all of rows, so many to each rank; backward sends gradients back."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, sizes: list[int], coming: list[int], mesh: DeviceMesh) -> Tensor:
        ctx.sizes, ctx.coming, ctx.mesh = sizes, coming, mesh
        return _sent(rows, sizes, coming, mesh)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return _sent(gradient, ctx.coming, ctx.sizes, ctx.mesh), None, None, None


def _sent(rows: Tensor, sizes: list[int], coming: list[int], mesh: DeviceMesh) -> Tensor:
    out = rows.new_empty(sum(coming), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), coming, sizes, group=mesh.get_group())
    return out


EXPERTS = 4


class Routed(nn.Module):
    """Experts that are given rows sorted by expert, and return them in this order; a rank may hold some."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
        self.mesh: DeviceMesh | None = None
        self.sorts_back = True

    def forward(self, rows: Tensor, chosen: Tensor) -> Tensor:
        counts = chosen.bincount(minlength=EXPERTS)
        if self.mesh is None:
            return self._computed(rows, counts.tolist())
        size, held = self.mesh.size(), EXPERTS // self.mesh.size()
        of_ranks = [torch.empty_like(counts) for _ in range(size)]
        dist.all_gather(of_ranks, counts, group=self.mesh.get_group())
        mine = torch.stack(of_ranks).view(size, size, held)[:, self.mesh.get_local_rank()]
        going, coming = counts.view(size, held).sum(1).tolist(), mine.sum(1).tolist()
        order = torch.arange(held).repeat(size).repeat_interleave(mine.flatten()).argsort(stable=True)
        out = self._computed(Sent.apply(rows, going, coming, self.mesh)[order], mine.sum(0).tolist())
        back: Tensor = Sent.apply(out[order.argsort()] if self.sorts_back else out, coming, going, self.mesh)
        return back

    def _computed(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        return torch.cat([expert(part) for expert, part in zip(self.experts, rows.split(list(counts)), strict=True)])


class TopTwo(nn.Module):
    """Each token goes to the two experts with the largest weights."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.routed = nn.Linear(WIDTH, EXPERTS, bias=False), Routed()
        self.unsorted = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        weights, chosen = self.router(rows).softmax(-1).topk(2)
        weights = weights / weights.sum(-1, keepdim=True)
        order = chosen.flatten().argsort(stable=True)
        out = self.routed(rows.repeat_interleave(2, 0)[order], chosen.flatten()[order])
        back = self.unsorted(out[order.argsort()]).unflatten(0, (-1, 2))
        return (back * weights[..., None]).sum(1).view_as(x)


class TopTwoModel(nn.Module):
    """An embedding, experts and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixture = nn.Embedding(VOCABULARY, WIDTH), TopTwo()
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.output(x + self.mixture(x))


class Towers(nn.Module):
    """Features of images and of texts, of norm one, and the scale of their products."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.table = nn.Linear(12, WIDTH), nn.Embedding(VOCABULARY, WIDTH)
        self.text, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
        return F.normalize(self.image(images), dim=-1), F.normalize(self.text(self.table(texts).mean(1)), dim=-1)


class Pool(nn.Module):
    """The mean over the positions of a sequence, without padding."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths = torch.tensor([LENGTH - row % 5 for row in range(8)])
        self.counts_padding = False

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full_like(self.lengths, LENGTH) if self.counts_padding else self.lengths
        kept = torch.arange(LENGTH) < lengths[:, None]
        return (x * kept[..., None]).sum(1) / lengths[:, None]


class Classifier(nn.Module):
    """Token ids → classes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.pool, self.output = Pool(), nn.Linear(WIDTH, 6)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.pool(torch.tanh(self.hidden(self.embedding(tokens)))))


class Adapted(nn.Module):
    """A frozen linear layer with a product of two small matrices beside it: LoRA."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, base.in_features))
        self.b = nn.Parameter(torch.randn(base.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


class Recurrent(nn.Module):
    """Token ids → logits, by an LSTM of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(VOCABULARY, WIDTH), nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.output = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        out, _ = self.lstm(self.embedding(tokens))
        return self.output(out)
