"""The model that the plans of these tests share, and the parts of the plans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed.device_mesh import DeviceMesh

Trained = tuple[nn.Module, Callable[[], Any]]
VOCABULARY, WIDTH, HEADS, LENGTH, BATCH = 32, 16, 4, 8, 8
IGNORED = -100


class Attention(nn.Module):
    """Self-attention with one projection for query, key and value; heads as many as it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.wo = nn.Linear(WIDTH, WIDTH)
        self.is_causal = True
        self.gather: Callable[[Tensor], Tensor] = lambda x: x
        self.mask: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        k, v = self.gather(k), self.gather(v)
        causal = self.is_causal and self.mask is None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=causal)
        return self.wo(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """One layer, with dropout after each part."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.drop: nn.Module = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm_1(x)))
        return x + self.feed_forward(self.norm_2(x))


class Transformer(nn.Module):
    """Token ids [batch, sequence] → logits."""

    def __init__(self, *, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.start = 0
        """Position of the first token."""
        self.joined: nn.Module = nn.Identity()
        self.layers = nn.ModuleList(Block(dropout) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.output.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(self.start, self.start + tokens.shape[1])
        x = self.joined(self.embedding(tokens) + self.positions(places))
        for layer in self.layers:
            x = layer(x)
        return self.output(self.norm(x))


def blocks(model: nn.Module) -> Iterable[Any]:
    """Return the layers of a `Transformer`."""
    return model.layers  # type: ignore[return-value]


def tokens_and_targets(*, padded: bool = False) -> tuple[Tensor, Tensor]:
    """Return a batch, the same in every process; with padding the later targets of later rows are to be ignored."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    targets = torch.randint(0, VOCABULARY, (BATCH, LENGTH), generator=generator)
    if padded:
        for row in range(BATCH):
            targets[row, LENGTH - row % 7 :] = IGNORED
    return tokens, targets


def seeded(**options: Any) -> Transformer:
    """Return a model with the same weights in every process."""
    torch.manual_seed(0)
    return Transformer(**options)


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the targets that are not ignored."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)


def trained(
    model: nn.Module,
    tokens: Tensor,
    targets: Tensor,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = mean_loss,
    before_optimizer: Callable[[], Any] = lambda: None,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] = lambda ps: torch.optim.SGD(ps, lr=0.1),
) -> Trained:
    """Return a model with a function that trains it for one step."""
    made = optimizer(model.parameters())

    def step() -> None:
        loss(model(tokens), targets).backward()
        before_optimizer()
        made.step()
        made.zero_grad()

    return model, step


def part_of_batch(mesh: DeviceMesh, axis: str, *tensors: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    """Return this rank's contiguous part of each tensor."""
    size, rank = mesh[axis].size(), mesh[axis].get_local_rank()
    return tuple(tensor.chunk(size, dim)[rank] for tensor in tensors)


def reduce_gradients(model: nn.Module, mesh: DeviceMesh, *, mean: bool = True) -> None:
    """all_reduce the gradients of all parameters over a mesh of one axis."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=mesh.get_group())
            if mean:
                parameter.grad /= mesh.size()


class Reduced(Function):
    """Sum over a group in forward, nothing in backward: after a layer whose input dim is cut."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        out = x.clone()
        dist.all_reduce(out, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


class Copied(Function):
    """Nothing in forward, sum over a group in backward: before a layer whose output dim is cut."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        out = gradient.clone()
        dist.all_reduce(out, group=ctx.group)
        return out, None


class Gathered(Function):
    """Join the parts of a dim in forward; in backward sum what ranks have of one's own part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mesh: DeviceMesh, dim: int) -> Tensor:
        ctx.mesh, ctx.dim = mesh, dim
        parts = [torch.empty_like(x) for _ in range(mesh.size())]
        dist.all_gather(parts, x.contiguous(), group=mesh.get_group())
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        whole = gradient.clone(memory_format=torch.contiguous_format)  # as NCCL asks for
        dist.all_reduce(whole, group=ctx.mesh.get_group())
        return whole.chunk(ctx.mesh.size(), ctx.dim)[ctx.mesh.get_local_rank()], None, None


class ColumnParallel(nn.Module):
    """A linear layer that holds some of its outputs, in so many groups of them."""

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh, groups: int = 1) -> None:
        super().__init__()
        self.mesh, self.copies = mesh, True
        self.weight = nn.Parameter(rows_of(linear.weight, mesh, groups))
        self.bias = nn.Parameter(rows_of(linear.bias, mesh, groups)) if linear.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(Copied.apply(x, self.mesh.get_group()) if self.copies else x, self.weight, self.bias)


class RowParallel(nn.Module):
    """A linear layer that holds some of its inputs."""

    def __init__(self, linear: nn.Linear, mesh: DeviceMesh) -> None:
        super().__init__()
        self.mesh, self.times = mesh, 1
        self.weight = nn.Parameter(rows_of(linear.weight.T, mesh, 1).T.contiguous())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        out = F.linear(x, self.weight)
        for _ in range(self.times):
            out = Reduced.apply(out, self.mesh.get_group())
        return out + self.bias


def rows_of(weight: Tensor, mesh: DeviceMesh, groups: int) -> Tensor:
    """Return this rank's part of each of so many groups of a weight's rows."""
    parts = [group.chunk(mesh.size())[mesh.get_local_rank()] for group in weight.detach().chunk(groups)]
    return torch.cat(parts).clone()


def tensor_parallel(model: Transformer, mesh: DeviceMesh) -> Transformer:
    """Cut the layers of a model as Megatron does, in plain tensors."""
    for layer in blocks(model):
        layer.attention.qkv = ColumnParallel(layer.attention.qkv, mesh, groups=3)
        layer.attention.wo = RowParallel(layer.attention.wo, mesh)
        layer.feed_forward.up = ColumnParallel(layer.feed_forward.up, mesh)
        layer.feed_forward.down = RowParallel(layer.feed_forward.down, mesh)
    return model
