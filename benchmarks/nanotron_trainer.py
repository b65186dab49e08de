"""Gradients and the optimizer of nanotron, for the step of `nanotron_llama`.

Gradients are added up in fp32 after each backward, parameter by parameter (``optim/gradient_accumulator.py`` of
huggingface/nanotron, 67c5ebb6). Those of the last backward are reduced in fp32: DDP's buckets beside it, or with ZeRO
and in pipelines all of them after it (``trainer.py``). Then their norm is taken, and an optimizer updates fp32 masters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from parallel_llama import Run
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

BUCKET = 25 << 20
"""Bytes of bf16 gradients of one bucket of DDP."""


class Trainer:
    """Gradients in fp32, and the optimizer.

    Args:
        parameters: those of this rank's stage.
        tied: the weights of this rank that the first and the last stage share.
        mesh: with axes pp, dp, cp and tp.
        run: how a step is run; its ``sharding`` is ``"zero0 in fp32"`` or ``"zero1 in fp32"``.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], tied: Sequence[nn.Parameter], mesh: DeviceMesh, run: Run
    ) -> None:
        self.data, self.tensor, self.microbatches = mesh["dp"], mesh["tp"], run.microbatches
        self.shards = self.data.size() if run.sharding == "zero1 in fp32" else 1
        self.is_divided = mesh["pp"].size() * mesh["tp"].size() > 1
        self.parameters = parameters[::-1]
        sizes = [parameter.numel() for parameter in self.parameters]
        self.gradient = torch.zeros(sum(sizes), dtype=torch.float32)
        self.gradients = dict(zip(self.parameters, self.gradient.split(sizes), strict=True))
        self.norms = [self.gradients[parameter] for parameter in self.parameters if parameter.dim() == 1]
        pipeline = dist.get_process_group_ranks(mesh["pp"].get_group())
        self.tied = [self.gradients[weight] for weight in tied] if len(pipeline) > 1 else []
        self.ends = dist.new_group([pipeline[0], pipeline[-1]]) if self.tied else None
        self.masters = [nn.Parameter(torch.zeros(size // self.shards, dtype=torch.float32)) for size in sizes]
        self.optimizer = torch.optim.AdamW([{"params": self.masters}], fused=True)
        self.in_buckets = self.shards == 1 and self.data.size() > 1 and len(pipeline) == 1
        self.reduces, self.works = False, list[dist.Work]()
        for bucket in _buckets(self.parameters):
            left = set(bucket)
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(partial(self._ready, bucket, left))

    def _ready(self, bucket: Sequence[nn.Parameter], left: set[torch.Tensor], parameter: torch.Tensor) -> None:
        """Add a gradient in fp32, and reduce its bucket when that is complete."""
        assert parameter.grad is not None
        self.gradients[parameter].add_(parameter.grad.view(-1))  # type: ignore[index] # each is a parameter
        parameter.grad = None
        left.discard(parameter)
        if not left:
            left.update(bucket)
            if self.in_buckets and self.reduces:
                whole = self.gradient[: sum(weight.numel() for weight in bucket)]
                self.works.append(dist.all_reduce(whole, group=self.data.get_group(), async_op=True))

    def step(self) -> None:
        """Reduce what is not reduced yet, clip, update, and gather what other ranks updated."""
        for work in self.works:
            work.wait()
        self.works.clear()
        if self.data.size() > 1 and not self.in_buckets:
            dist.all_reduce(self.gradient, group=self.data.get_group())
        if self.tensor.size() > 1 and self.norms:
            dist.all_reduce(torch.cat(self.norms), group=self.tensor.get_group())
        for gradient in self.tied:
            dist.all_reduce(gradient, group=self.ends)
        norms = [torch.linalg.vector_norm(gradient) for gradient in self.gradients.values()] or [torch.zeros(())]
        total = torch.linalg.vector_norm(torch.stack(norms)).pow(2)
        if self.is_divided:
            dist.all_reduce(total)
        factor = torch.clamp(1.0 / (total.pow_(0.5) + 1e-6), max=1.0)
        for gradient, master in zip(self.gradients.values(), self.masters, strict=True):
            gradient.mul_(factor)
            master.grad = gradient[: master.numel()]
        self.optimizer.step()
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            parameter.detach().view(-1)[: master.numel()].copy_(master.detach())
        if self.shards > 1 and self.parameters:
            self._gather()
        self.gradient.zero_()

    def _gather(self) -> None:
        """``all_gather_coalesced``: a buffer for each rank, from which each part of each parameter is copied."""
        slices = [weight.detach().view(-1)[: weight.numel() // self.shards] for weight in self.parameters]
        buffers = [torch.cat(slices) for _ in range(self.shards)]
        dist.all_gather(buffers, torch.cat(slices), group=self.data.get_group())
        for buffer in buffers:
            for part, whole in zip(buffer.split([part.numel() for part in slices]), slices, strict=True):
                whole.copy_(part)


def _buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Divide parameters into buckets of at least `BUCKET` bytes, as DDP does."""
    buckets: list[list[nn.Parameter]] = [[]]
    for parameter in parameters:
        if sum(2 * weight.numel() for weight in buckets[-1]) >= BUCKET:
            buckets.append([])
        buckets[-1].append(parameter)
    return buckets
