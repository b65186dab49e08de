"""The GPT of Megatron-DeepSpeed in plain torch, one step of it as a program: stages, tensor parallelism, optimizers.

As bigscience-workshop/Megatron-DeepSpeed has them, with the settings of BLOOM's tests in early 2022: every layer is
computed again in backward from its input, which all ranks of tensor parallelism keep whole; attention computes its
scores; logits and loss are divided over the vocabulary. Of DeepSpeed there is ZeRO's first stage for fp16, and
``BF16_Optimizer``, which keeps gradients in fp32 beside those in bf16.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from parallel_llama import Run
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint

BUCKET = 500_000_000
"""Numbers of the buffer in which DeepSpeed's ZeRO gathers gradients before it reduces them, by its default."""


@dataclass(frozen=True)
class Gpt:
    """The sizes of a model.

    Attributes:
        embeddings_count: Whether embedding and output count as a layer each where layers are divided into stages.
        in_bf16: Whether it is trained in bf16, with gradients added in fp32; else in fp16.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int = 250880
    embeddings_count: bool = False
    in_bf16: bool = False

    def layers_of_stage(self, stage: int, stages: int) -> int:
        """Return the number of layers of a stage; all but the last have as many, or one less with an embedding."""
        blocks = self.layers + 2 * self.embeddings_count
        most = -(-blocks // stages)
        first, last = stage * most, min(blocks, (stage + 1) * most)
        embeddings = self.embeddings_count * ((stage == 0) + (stage == stages - 1))
        return max(0, last - first - embeddings)


class _Copied(torch.autograd.Function):
    """What every rank has, into a product of columns: gradients are added over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: DeviceMesh) -> torch.Tensor:
        ctx.ranks = ranks
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.ranks.get_group())
        return grad, None


class _Added(torch.autograd.Function):
    """The sum over the ranks of what a product of rows returns."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, ranks: DeviceMesh) -> torch.Tensor:
        dist.all_reduce(x, group=ranks.get_group())
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class _Loss(torch.autograd.Function):
    """Cross-entropy of fp32 logits whose vocabulary is divided; its gradient replaces the shares that it keeps."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, ranks: DeviceMesh) -> torch.Tensor:
        largest = logits.amax(-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=ranks.get_group())
        shares = logits - largest[..., None]
        wanted = labels.clamp(max=logits.shape[-1] - 1)[..., None]
        picked = shares.gather(-1, wanted)[..., 0]
        dist.all_reduce(picked, group=ranks.get_group())
        total = shares.exp_().sum(-1)
        dist.all_reduce(total, group=ranks.get_group())
        shares.div_(total[..., None])
        ctx.save_for_backward(shares, wanted)
        return (total.log() - picked).mean()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        shares, wanted = ctx.saved_tensors
        shares.scatter_add_(-1, wanted, -torch.ones_like(wanted, dtype=shares.dtype))
        return shares.mul_(grad), None, None


class Layer(nn.Module):
    """One layer, whose heads and hidden numbers are divided over the ranks."""

    def __init__(self, model: Gpt, ranks: DeviceMesh) -> None:
        super().__init__()
        self.ranks, self.head_width = ranks, model.width // model.heads
        self.input_layernorm, self.post_attention_layernorm = nn.LayerNorm(model.width), nn.LayerNorm(model.width)
        self.query_key_value = nn.Linear(model.width, 3 * model.width // ranks.size())
        self.dense = nn.Linear(model.width // ranks.size(), model.width)
        self.dense_h_to_4h = nn.Linear(model.width, 4 * model.width // ranks.size())
        self.dense_4h_to_h = nn.Linear(4 * model.width // ranks.size(), model.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, sequence, width]."""
        x = x + F.dropout(self._attention(self.input_layernorm(x)), 0.1)
        hidden = F.gelu(self.dense_h_to_4h(_Copied.apply(self.post_attention_layernorm(x), self.ranks)))
        return x + F.dropout(_Added.apply(self.dense_4h_to_h(hidden), self.ranks), 0.1)

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.query_key_value(_Copied.apply(x, self.ranks)).unflatten(-1, (-1, 3 * self.head_width))
        query, key, value = mixed.transpose(1, 2).chunk(3, dim=-1)
        scores = torch.matmul(query, key.transpose(-1, -2))
        shares = F.dropout(torch.softmax(scores, dim=-1), 0.1)
        context = torch.matmul(shares, value).transpose(1, 2).flatten(2)
        return _Added.apply(self.dense(context), self.ranks)


class Stage(nn.Module):
    """Consecutive layers: with the embedding in the first stage, with the same as output in the last."""

    def __init__(self, model: Gpt, layers: int, ranks: DeviceMesh, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.model, self.ranks, self.is_first, self.is_last = model, ranks, is_first, is_last
        has_embedding = is_first or is_last
        self.embedding = nn.Embedding(model.vocabulary // ranks.size(), model.width) if has_embedding else None
        self.layers = nn.ModuleList(Layer(model, ranks) for _ in range(layers))
        self.embedding_norm = nn.LayerNorm(model.width) if is_first else None
        self.final_layernorm = nn.LayerNorm(model.width) if is_last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Token ids or hidden states to hidden states or logits, [batch, sequence, vocabulary / ranks]."""
        if self.embedding is not None and self.embedding_norm is not None:
            absent = (x < 0) | (x >= self.embedding.num_embeddings)
            x = _Added.apply(self.embedding(torch.where(absent, 0, x)).masked_fill(absent[..., None], 0), self.ranks)
            x = F.dropout(self.embedding_norm(x), 0.1)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)
        if self.embedding is not None and self.final_layernorm is not None:
            x = F.linear(_Copied.apply(self.final_layernorm(x), self.ranks), self.embedding.weight)
        return x


class ZeroOfDeepSpeed:
    """Adam on fp32 copies of the parameters, divided over the ranks of the axis dp.

    Args:
        parameters: Those of this rank, in the precision of training.
        mesh: The ranks that divide copies and states.
        in_bf16: Whether gradients are added in one flat fp32 buffer after each backward, and kept in bf16 besides; else
            they are added in fp16, and reduced by way of a buffer of `BUCKET` numbers.
    """

    def __init__(self, parameters: list[nn.Parameter], mesh: DeviceMesh, *, in_bf16: bool) -> None:
        self.parameters, self.group, self.size = parameters, mesh.get_group(), mesh.size()
        self.dtype = torch.bfloat16 if in_bf16 else torch.float16
        numbers = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(numbers) if in_bf16 else min(BUCKET, sum(numbers)), dtype=torch.float32)
        self.flat = self.flat if in_bf16 else self.flat.to(torch.float16)
        self.copy = nn.Parameter(torch.zeros(-(-sum(numbers) // self.size), dtype=torch.float32))
        self.adam = torch.optim.Adam([self.copy], fused=True)
        for parameter in parameters if in_bf16 else ():
            parameter.grad = torch.zeros_like(parameter)
        self.parts = self.flat.split(numbers) if in_bf16 else None
        for parameter, part in zip(parameters, self.parts or (), strict=False):
            parameter.register_post_accumulate_grad_hook(_adding(part))

    def step(self) -> None:
        """Reduce, update the own part of the copies, and gather the others'."""
        own = self.flat[: self.copy.numel()]
        if self.parts is not None:
            dist.all_reduce(self.flat, group=self.group)
        else:
            own = torch.empty(self.copy.numel(), dtype=torch.float16)
            for parameter in self.parameters:
                bucket = self.flat[: parameter.numel()]
                bucket.copy_(parameter.grad.flatten()[: bucket.numel()])
                dist.all_reduce(bucket, group=self.group)
                parameter.grad = None
        self.copy.grad = own.float() if own.numel() == self.copy.numel() else torch.zeros_like(self.copy)
        self.adam.step()
        self.copy.grad = None
        part = self.copy.detach().to(self.dtype)
        gathered = torch.empty(part.numel() * self.size, dtype=self.dtype)
        if self.size > 1:
            dist.all_gather_into_tensor(gathered, part, group=self.group)
        at = 0
        for parameter in self.parameters:
            parameter.data.copy_(gathered[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()


def _adding(part: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def add(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        part.add_(parameter.grad.flatten())
        parameter.grad.zero_()

    return add


def build(model: Gpt, run: Run, mesh: DeviceMesh) -> Callable[[], None]:
    """Return one training step of a model on a mesh with axes pp, dp, cp and tp, cp of size 1."""
    stages, own, ranks = mesh["pp"].size(), mesh["pp"].get_local_rank(), mesh["tp"]
    dtype, is_last = torch.bfloat16 if model.in_bf16 else torch.float16, own == stages - 1
    stage = Stage(model, model.layers_of_stage(own, stages), ranks, is_first=own == 0, is_last=is_last).to(dtype)
    optimizer = ZeroOfDeepSpeed(list(stage.parameters()), mesh["dp"], in_bf16=model.in_bf16)
    tokens = torch.randint(model.vocabulary // ranks.size(), (run.batch, run.sequence))

    def step() -> None:
        one_forward_one_backward(stage, mesh["pp"], tokens, run.microbatches)
        optimizer.step()

    return step


def one_forward_one_backward(stage: Stage, mesh: DeviceMesh, tokens: torch.Tensor, microbatches: int) -> None:
    """Run the microbatches of a stage in 1F1B; what is received is allocated when it comes, as in DeepSpeed."""
    everyone, own = dist.get_process_group_ranks(mesh.get_group()), mesh.get_local_rank()
    hidden = (*tokens.shape, stage.model.width)
    dtype = stage.layers[0].dense.weight.dtype
    in_flight: deque[tuple[torch.Tensor, torch.Tensor]] = deque()

    def forward() -> None:
        x = tokens
        if not stage.is_first:
            x = torch.empty(hidden, dtype=dtype)
            dist.recv(x, everyone[own - 1])
            x.requires_grad_()
        out = stage(x)
        if stage.is_last:
            out = _Loss.apply(out.float(), tokens, stage.ranks)
        else:
            dist.send(out.detach(), everyone[own + 1])
        in_flight.append((x, out))

    def backward() -> None:
        x, out = in_flight.popleft()
        gradient = None
        if not stage.is_last:
            gradient = torch.empty(hidden, dtype=dtype)
            dist.recv(gradient, everyone[own + 1])
        torch.autograd.backward(out, gradient)
        if x.grad is not None:
            dist.send(x.grad, everyone[own - 1])

    ahead = min(mesh.size() - own - 1, microbatches)
    for number in range(microbatches + ahead):
        if number < microbatches:
            forward()
        if number >= ahead:
            backward()
