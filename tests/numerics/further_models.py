"""Models of further plans: a Llama with grouped queries, a net of convolutions, an encoder, experts, by tokens."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from tests.numerics.trained_model import LENGTH, VOCABULARY, WIDTH

QUERY_HEADS, KEY_HEADS, HEAD = 8, 4, 4


class RotaryAngles(nn.Module):
    """Angles of the positions of a sequence, from `start` on."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0

    def forward(self, length: int, dtype: torch.dtype) -> Tensor:
        places = torch.arange(self.start, self.start + length, dtype=dtype)
        return torch.outer(places, torch.tensor([1.0, 0.1], dtype=dtype))


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding of [batch, heads, sequence, head]."""
    left, right = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((left * cos - right * sin, left * sin + right * cos), -1)


class GroupedAttention(nn.Module):
    """Causal attention in which several heads of queries share one of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Linear(WIDTH, QUERY_HEADS * HEAD, bias=False)
        self.wk = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.wv = nn.Linear(WIDTH, KEY_HEADS * HEAD, bias=False)
        self.wo = nn.Linear(QUERY_HEADS * HEAD, WIDTH, bias=False)
        self.in_turn = False
        """True for the wrong order, in which keys are repeated in turn."""

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        q, k = rotated(q, angles), rotated(k, angles)
        times = q.shape[1] // k.shape[1]
        k, v = (part.repeat(1, times, 1, 1) if self.in_turn else part.repeat_interleave(times, 1) for part in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(WIDTH, 32, bias=False), nn.Linear(WIDTH, 32, bias=False)
        self.w2 = nn.Linear(32, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LlamaLayer(nn.Module):
    """Attention and a gated network, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.network_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.network = GroupedAttention(), Gated()

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.network(self.network_norm(x))


class SmallLlama(nn.Module):
    """Token ids → logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rotary = nn.Embedding(VOCABULARY, WIDTH), RotaryAngles()
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(2))
        self.norm = nn.RMSNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        angles = self.rotary(tokens.shape[1], x.dtype)
        for layer in self.layers:
            x = layer(x, angles)
        return self.output(self.norm(x))


def llama() -> SmallLlama:
    """Return a small Llama, with the same weights in every process."""
    torch.manual_seed(0)
    return SmallLlama()


class Convolutions(nn.Module):
    """Images [batch, 3, 8, 8] → classes, with a norm of the batch or of groups."""

    def __init__(self, norm: str = "group") -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm: nn.Module = nn.BatchNorm2d(8) if norm == "batch" else nn.GroupNorm(2, 8)
        self.output = nn.Linear(8, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(images)))
        return self.output(F.relu(self.second(x)).mean((2, 3)))


def images_and_classes() -> tuple[Tensor, Tensor]:
    """Return a batch of images, the same in every process."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(8, 3, 8, 8, generator=generator), torch.randint(0, 10, (8,), generator=generator)


class Encoder(nn.Module):
    """Token ids → logits, with attention over those that are no padding: ``nn.TransformerEncoderLayer``."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout, batch_first=True) for _ in range(2)
        )
        self.output = nn.Linear(WIDTH, VOCABULARY)
        self.lengths = torch.tensor([LENGTH - row % 5 for row in range(8)])
        """One value for each row of the batch that this rank has."""
        self.hides_padding = True

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        mask = torch.arange(tokens.shape[1]) >= self.lengths[: len(tokens), None] if self.hides_padding else None
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=mask)
        return self.output(x)


def encoder(dropout: float = 0.0) -> Encoder:
    """Return an encoder, with the same weights in every process."""
    torch.manual_seed(0)
    return Encoder(dropout)


class Exchanged(torch.autograd.Function):
    """all_to_all of rows, a chunk to each rank; backward sends gradients back."""

    @staticmethod
    def forward(ctx, x: Tensor, mesh: DeviceMesh) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.mesh = mesh
        return _exchanged(x, mesh)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        return _exchanged(gradient, ctx.mesh), None


def _exchanged(x: Tensor, mesh: DeviceMesh) -> Tensor:
    parts = [torch.empty_like(x) for _ in range(mesh.size())]
    dist.all_gather(parts, x.contiguous(), group=mesh.get_group())
    mine = mesh.get_local_rank()
    return torch.cat([part.chunk(mesh.size())[mine] for part in parts])


class TokenExperts(nn.Module):
    """Two experts, of which a token goes to the one that its number asks for; a rank may hold one.

    Each rank sends a buffer with a row for each of its tokens to each expert, zero where it does not go there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2))
        self.mesh: DeviceMesh | None = None
        self.places = (0, 1)
        """Which part of the buffers goes to which expert."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        rows, chosen = x.flatten(0, 1), tokens.flatten() % 2
        sent = torch.cat([rows * (chosen == at)[:, None] for at in self.places])
        if self.mesh is None:
            back = torch.cat([expert(part) for expert, part in zip(self.experts, sent.chunk(2), strict=True)])
        else:
            back = Exchanged.apply(self.experts[0](Exchanged.apply(sent, self.mesh)), self.mesh)
        return sum(back.chunk(2)).view_as(x)  # type: ignore[union-attr]


class TokenMixture(nn.Module):
    """An embedding, experts and an output layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixture = nn.Embedding(VOCABULARY, WIDTH), TokenExperts()
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        return self.output(self.norm(x + self.mixture(x, tokens)))


def token_mixture() -> TokenMixture:
    """Experts with the same weights in every process."""
    torch.manual_seed(0)
    return TokenMixture()
