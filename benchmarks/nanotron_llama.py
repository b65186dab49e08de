"""A Llama as nanotron trains it, one step of it as a program, for `training_sweep`.

What huggingface/nanotron does (its branch ``nouamane/bench2`` at 67c5ebb6, and 0e0a27ea), in plain torch: tensors are
[sequence, batch, width]; tensor parallelism with sequence parallelism by autograd functions that multiply the own part
of the sequence while the rest is gathered (``parallel/tensor_parallel/functional.py``); norms and rotary positions of
one kernel each. Gradients and the optimizer are those of `nanotron_trainer`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from llama_layers import Model
from nanotron_trainer import Trainer
from parallel_llama import Run
from torch import distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Group:
    """The ranks of tensor parallelism, and the place of this one among them."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group, self.size, self.rank = mesh.get_group(), mesh.size(), mesh.get_local_rank()

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Start to gather the sequence."""
        return torch.ops._c10d_functional.all_gather_into_tensor(x.contiguous(), self.size, self.group.group_name)

    def scatter(self, x: torch.Tensor) -> torch.Tensor:
        """Start to sum over the ranks, of which each keeps its part of the sequence."""
        return torch.ops._c10d_functional.reduce_scatter_tensor(x.contiguous(), "sum", self.size, self.group.group_name)

    def product(self, x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Multiply the own part of the sequence while the others are gathered, then those before and after it.

        Returns:
            the product, and what was gathered.
        """
        gathered, length = self.gather(x), x.shape[0]
        out = x.new_empty(length * self.size, *x.shape[1:-1], weight.shape[0])
        first, last = self.rank * length, (self.rank + 1) * length
        torch.mm(x.flatten(0, 1), weight.t(), out=out[first:last].flatten(0, 1))
        gathered = functional.wait_tensor(gathered)
        if first:
            torch.mm(gathered[:first].flatten(0, 1), weight.t(), out=out[:first].flatten(0, 1))
        if last < out.shape[0]:
            torch.mm(gathered[last:].flatten(0, 1), weight.t(), out=out[last:].flatten(0, 1))
        return out, gathered


class Column(torch.autograd.Function):
    """``_ColumnLinearAsyncCommunication``: the input is gathered, in backward once more."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, group: Group) -> torch.Tensor:
        """Shapes: x [sequence / ranks, batch, in], weight [out / ranks, in]."""
        context.save_for_backward(x, weight)
        context.group = group
        if group.size == 1:
            return F.linear(x, weight)
        return group.product(x.contiguous(), weight)[0]

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Of the input and of the weight."""
        (x, weight), group = context.saved_tensors, context.group
        whole = group.gather(x) if group.size > 1 else x
        of_input = gradient.matmul(weight)
        gradient = gradient.contiguous()
        if group.size == 1:
            return of_input, gradient.flatten(0, 1).t().matmul(x.flatten(0, 1)), None
        scattered = group.scatter(of_input)
        whole = functional.wait_tensor(whole)
        of_weight = gradient.flatten(0, 1).t().matmul(whole.flatten(0, 1))
        return functional.wait_tensor(scattered), of_weight, None


class Row(torch.autograd.Function):
    """``_RowLinearAsyncCommunication``: the output is summed and scattered; backward gathers beside its product."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor, group: Group) -> torch.Tensor:
        """Shapes: x [sequence, batch, in / ranks], weight [out, in / ranks]."""
        context.save_for_backward(x, weight)
        context.group = group
        out = F.linear(x, weight)
        return functional.wait_tensor(group.scatter(out)) if group.size > 1 else out

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Of the input and of the weight."""
        (x, weight), group = context.saved_tensors, context.group
        if group.size > 1:
            of_input, gradient = group.product(gradient.contiguous(), weight.t())
        else:
            of_input = gradient.matmul(weight)
        return of_input, gradient.flatten(0, 1).t().matmul(x.contiguous().flatten(0, 1)), None


class Linear(nn.Module):
    """A weight that is divided among the ranks of tensor parallelism."""

    def __init__(self, kind: type[Column | Row], width_in: int, width_out: int, group: Group) -> None:
        super().__init__()
        out, into = (width_out // group.size, width_in) if kind is Column else (width_out, width_in // group.size)
        self.weight = nn.Parameter(torch.empty(out, into, dtype=torch.bfloat16))
        self.kind, self.group = kind, group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [sequence, batch, width]."""
        return self.kind.apply(x, self.weight, self.group)


class Norm(nn.Module):
    """``TritonRMSNorm``, for which a layer norm stands: it has as many kernels and bytes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [sequence, batch, width]."""
        return F.layer_norm(x, (x.shape[-1],), self.weight)


class Rotary(torch.autograd.Function):
    """FlashAttention's rotary positions, one kernel, for which a product with the cosines stands."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, cosines: torch.Tensor) -> torch.Tensor:
        """Shapes: x [batch, sequence, heads, width of a head], cosines [sequence, 1, width of a head]."""
        context.cosines = cosines
        return x * cosines

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Of x."""
        return gradient * context.cosines, None


class Attention(nn.Module):
    """``CausalSelfAttention``, as it trains with as many heads of keys as of queries."""

    def __init__(self, model: Model, group: Group) -> None:
        super().__init__()
        self.heads, self.head_width = model.heads // group.size, model.width // model.heads
        self.qkv_proj = Linear(Column, model.width, 3 * model.width, group)
        self.o_proj = Linear(Row, model.width, model.width, group)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, cosines: torch.Tensor) -> torch.Tensor:
        """x: [sequence / ranks, batch, width]; mask: [batch, sequence]; cosines: as of `Rotary`."""
        projected = self.qkv_proj(x)
        length, batch = projected.shape[:2]
        q, k, v = projected.view(length, batch, 3, self.heads, self.head_width).permute(2, 1, 0, 3, 4).contiguous()
        pair = torch.cat((k.unsqueeze(0), v.unsqueeze(0))).permute(1, 2, 0, 3, 4).contiguous()
        q, k = Rotary.apply(q, cosines), Rotary.apply(pair[:, :, 0], cosines)
        for _ in "qk":
            ends = torch.zeros(batch + 1, dtype=torch.int32)
            torch.cumsum(mask.sum(-1, dtype=torch.int32), 0, dtype=torch.int32, out=ends[1:])
        heads = [part.transpose(1, 2) for part in (q, k, pair[:, :, 1])]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).contiguous().view(batch, length, -1).transpose(0, 1))


class Layer(nn.Module):
    """``LlamaDecoderLayer``."""

    def __init__(self, model: Model, group: Group) -> None:
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(model.width), Norm(model.width)
        self.attn = Attention(model, group)
        self.gate_up_proj = Linear(Column, model.width, 2 * model.hidden, group)
        self.down_proj = Linear(Row, model.hidden, model.width, group)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, cosines: torch.Tensor) -> torch.Tensor:
        """x: [sequence / ranks, batch, width]; mask and cosines: as of `Attention`."""
        x = self.attn(self.input_layernorm(x), mask, cosines) + x
        gate, up = self.gate_up_proj(self.post_attention_layernorm(x)).chunk(2, dim=-1)
        return self.down_proj(F.silu(gate) * up) + x


class Embedding(torch.autograd.Function):
    """The sum over the ranks, each of which has a part of the vocabulary; each keeps its part of the sequence."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        """x: [sequence, batch, width]."""
        context.group = group
        return functional.wait_tensor(group.scatter(x))

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Of the sum."""
        return functional.wait_tensor(context.group.gather(gradient)), None


class CrossEntropy(torch.autograd.Function):
    """``_ShardedCrossEntropy``: logits in fp32, each rank with a part of the vocabulary."""

    @staticmethod
    def forward(context: Any, logits: torch.Tensor, target: torch.Tensor, group: Group) -> torch.Tensor:
        """Shapes: [sequence, batch, vocabulary / ranks] and [sequence, batch]."""
        largest = logits.max(dim=-1)[0]
        _reduced(largest, group)
        logits = logits - largest.unsqueeze(-1)
        size = logits.shape[-1]
        start = group.rank * size
        elsewhere = (target < start) | (target >= start + size)
        own = (target.clone() - start).masked_fill_(elsewhere, 0)
        rows = torch.arange(logits.shape[0] * logits.shape[1])
        predicted = logits.view(-1, size)[rows, own.view(-1)].clone().view_as(target)
        predicted.masked_fill_(elsewhere, 0.0)
        _reduced(predicted, group)
        exponentials = logits.exp_()
        total = exponentials.sum(dim=-1)
        _reduced(total, group)
        loss = total.log() - predicted
        exponentials.div_(total.unsqueeze(-1))
        context.save_for_backward(exponentials, elsewhere, own.view(-1))
        return loss

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Of the logits."""
        softmax, elsewhere, own = context.saved_tensors
        flat = softmax.view(-1, softmax.shape[-1])
        rows = torch.arange(flat.shape[0])
        flat.index_put_((rows, own), flat[rows, own] - (1.0 - elsewhere.view(-1).float()))
        return softmax.mul_(gradient.unsqueeze(-1)), None, None


def _reduced(x: torch.Tensor, group: Group) -> None:
    if group.size > 1:
        dist.all_reduce(x, group=group.group)


class Stage(nn.Module):
    """Consecutive blocks of the model: the embedding, layers, norm, output and loss, each where it belongs."""

    def __init__(self, model: Model, blocks: range, group: Group) -> None:
        super().__init__()
        self.model, self.group = model, group
        layers = range(max(blocks.start, 1), min(blocks.stop, model.layers + 1))
        width, vocabulary = model.width, model.vocabulary
        self.token_embedding = nn.Embedding(vocabulary // group.size, width) if blocks.start == 0 else None
        self.decoder = nn.ModuleList(Layer(model, group) for _ in layers)
        self.final_layer_norm = Norm(width) if model.layers + 1 in blocks else None
        self.lm_head = Linear(Column, width, vocabulary, group) if output_block(model) in blocks else None
        self.casts = output_block(model) + 1 in blocks
        if model.tied and self.lm_head is not None and self.token_embedding is not None:
            self.lm_head.weight = self.token_embedding.weight
        self.to(torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens [batch, sequence] or hidden states [sequence / ranks, batch, width] to hidden states or logits."""
        if self.token_embedding is not None:
            tokens = x.t()
            own = tokens - self.group.rank * self.token_embedding.num_embeddings
            outside = (own < 0) | (own >= self.token_embedding.num_embeddings)
            x = self.token_embedding(own.masked_fill(outside, 0))
            if self.group.size > 1:
                x = Embedding.apply(x.masked_fill(outside.unsqueeze(-1), 0.0), self.group)
        length = x.shape[0] * self.group.size
        cosines = torch.empty(length, 1, self.model.width // self.model.heads, dtype=torch.bfloat16)
        mask = torch.empty(x.shape[1], length, dtype=torch.bool)
        for layer in self.decoder:
            x = layer(x, mask, cosines)
        if self.final_layer_norm is not None:
            x = self.final_layer_norm(x)
        if self.lm_head is not None:
            x = self.lm_head(x)
        return x.float() if self.casts else x.view_as(x)


def output_block(model: Model) -> int:
    """Return the number of the output among the blocks: embedding, layers, norm, output, cast to fp32, loss."""
    return model.layers + 2


def stage_blocks(model: Model, stages: int) -> list[range]:
    """Divide embedding, layers, norm, output, cast and loss into stages, as ``build_model`` of nanotron does.

    A block counts what its products cost: the output as its vocabulary, what is no product nothing. A block that
    exceeds the equal part of a stage is its last, so the last stages may have none, and pass on what they receive.
    """
    layer = 4 * model.width**2 + 3 * model.hidden * model.width
    costs = [0, *[layer] * model.layers, 0, model.vocabulary * model.width, 0, 0]
    bounds, total = [0], 0
    for block, cost in enumerate(costs):
        total += cost
        if len(bounds) < stages and block + 1 < len(costs) and total > sum(costs) * len(bounds) / stages:
            bounds.append(block + 1)
    bounds += [len(costs)] * (stages + 1 - len(bounds))
    return [range(*pair) for pair in pairwise(bounds)]


def build(model: Model, run: Run, mesh: DeviceMesh) -> Callable[[], None]:
    """One training step on a mesh with axes pp, dp, cp and tp, of which cp is 1.

    Returns:
        the step; each call trains once.
    """
    group, own = Group(mesh["tp"]), mesh["pp"].get_local_rank()
    blocks = stage_blocks(model, mesh["pp"].size())
    stage = Stage(model, blocks[own], group)
    ends = [part.weight for part in (stage.token_embedding, stage.lm_head) if part is not None]
    trainer = Trainer(list(stage.parameters()), ends if model.tied else [], mesh, run)
    tokens = torch.randint(model.vocabulary, (run.batch, run.sequence))
    if len(blocks) == 1:
        return partial(_accumulate, stage, trainer, tokens)
    is_first, is_last = own == 0, own == len(blocks) - 1
    pipeline = PipelineStage(
        stage,
        own,
        len(blocks),
        torch.device("cpu"),
        input_args=(tokens if is_first else _sent(model, run, blocks[own - 1], group),),
        output_args=(_sent(model, run, blocks[own], group),),
        group=mesh["pp"].get_group(),
    )
    schedule = Schedule1F1B(pipeline, run.microbatches, loss_fn=partial(loss, group=group))
    whole = tokens.repeat(run.microbatches, 1)

    def step() -> None:
        schedule.step(*((whole,) if is_first else ()), **({"target": whole} if is_last else {}), return_outputs=False)
        trainer.step()

    return step


def _sent(model: Model, run: Run, blocks: range, group: Group) -> torch.Tensor:
    """Return an empty tensor as a stage of these blocks returns it: hidden states, or logits."""
    shape = sent_shape(model, run, blocks, group.size)
    dtype = torch.float32 if blocks.stop > output_block(model) + 1 else torch.bfloat16
    return torch.empty(shape, dtype=dtype, requires_grad=True)


def sent_shape(model: Model, run: Run, blocks: range, ranks: int) -> tuple[int, int, int]:
    """Return the shape of what a stage of these blocks sends on, with so many ranks of tensor parallelism."""
    if blocks.stop > output_block(model):
        return run.sequence, run.batch, model.vocabulary // ranks
    return run.sequence // ranks, run.batch, model.width


def _accumulate(stage: Stage, trainer: Trainer, tokens: torch.Tensor) -> None:
    for number in range(trainer.microbatches):
        trainer.reduces = number == trainer.microbatches - 1
        loss(stage(tokens), tokens, stage.group).backward()
    trainer.step()


def loss(logits: torch.Tensor, labels: torch.Tensor, group: Group) -> torch.Tensor:
    """The mean over tokens of logits [sequence, batch, vocabulary / ranks] and labels [batch, sequence]."""
    return CrossEntropy.apply(logits, labels.t().contiguous(), group).t().mean()
