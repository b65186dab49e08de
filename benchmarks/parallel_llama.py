"""A Llama with the parallelism, precision and recomputation of a published training run, one step of it as a program.

What torchtitan does, in plain torch: parameters in fp32, products in bf16 and gradients reduced in fp32 by FSDP2;
tensor parallel with sequence parallel and a sharded loss; pipeline stages of equal numbers of layers; ring attention
for context parallel; activation checkpointing of whole layers or of all but every second product.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from llama_layers import Model, Part
from torch import nn
from torch.distributed._tensor import Replicate, Shard
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from zero_one import Sharers, ZeroOne, data_ranks

Checkpointing = Literal["none", "full", "every 2nd layer", "every 2nd product"]


@dataclass(frozen=True)
class Run:
    """How a step is run; the axes of its mesh are ``pp``, ``dp``, ``cp``, ``tp``.

    Attributes:
        sequence: tokens of one sample.
        batch: samples of one rank's step, or of one microbatch where there are several.
        microbatches: of the pipeline, or accumulated one after another.
        checkpointing: what is computed again in backward.
        compiled: whether the layers are compiled.
        compiled_loss: whether the loss is, outside of pipelines.
        stages_per_rank: of an interleaved pipeline.
        sharding: ``"fsdp"``; or whole parameters and gradients in bf16, which are reduced over the axes dp and cp once
            a step, and the optimizer's state in fp32: ``"zero1"`` in parts over the ranks of a node, ``"zero1 of all"``
            over all of these ranks, as Megatron's distributed optimizer; ``"zero1 in fp32"`` likewise with gradients
            reduced and kept in fp32, and ``"zero0 in fp32"`` with the optimizer's whole state on each rank.
    """

    sequence: int
    batch: int = 1
    microbatches: int = 1
    checkpointing: Checkpointing = "none"
    compiled: bool = False
    stages_per_rank: int = 1
    compiled_loss: bool = False
    sharding: Literal["fsdp", "zero1", "zero1 of all", "zero1 in fp32", "zero0 in fp32"] = "fsdp"


def shard_tensors(part: Part, mesh: DeviceMesh) -> None:
    """Tensor and sequence parallel, with logits sharded along the vocabulary."""
    layer_plan: dict[str, ParallelStyle] = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
        "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        **{f"attention.{name}": ColwiseParallel() for name in ("wq", "wk", "wv")},
        **{f"feed_forward.{name}": ColwiseParallel() for name in (("w1", "w3") if part.model.gated else ("w1",))},
    }
    for layer in part.layers:
        parallelize_module(layer, mesh, layer_plan)
    plan: dict[str, ParallelStyle] = {}
    if part.embedding is not None:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
    if part.output is not None:
        plan["norm"] = SequenceParallel()
        plan["output"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)
    if plan:
        parallelize_module(part, mesh, plan)
    part.split = mesh.size()


def checkpoint(part: Part, kind: Checkpointing) -> None:
    """Wrap the layers of a part as activation checkpointing does."""
    for number, layer in enumerate(part.layers):
        if kind == "full" or (kind == "every 2nd layer" and number % 2 == 0):
            part.layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False)
        elif kind == "every 2nd product":
            contexts = partial(create_selective_checkpoint_contexts, _SaveEverySecond())
            part.layers[number] = checkpoint_wrapper(layer, context_fn=contexts, preserve_rng_state=False)


_SAVED = ("attention", "reduce_scatter", "all_to_all")


class _SaveEverySecond:
    """torchtitan's selective checkpointing: attention and communication are kept, of products every second one."""

    def __init__(self) -> None:
        self.seen: dict[bool, int] = {True: 0, False: 0}

    def __call__(self, context: Any, func: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        name = str(func)
        if name.startswith("aten.mm"):
            self.seen[context.is_recompute] += 1
            kept = self.seen[context.is_recompute] % 2 == 1
        else:
            kept = any(word in name for word in _SAVED)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def shard_parameters(part: Part, mesh: DeviceMesh, keep_gathered: bool) -> None:
    """FSDP2 with bf16 products and fp32 reductions: one unit per layer, the last kept gathered, one for the rest."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for number, layer in enumerate(part.layers):
        is_last = number == len(part.layers) - 1
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=not (keep_gathered or is_last))
    fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=not keep_gathered)


_SHARERS: dict[str, Sharers] = {"zero1": "node", "zero1 of all": "all", "zero1 in fp32": "all", "zero0 in fp32": "none"}
"""{`Run.sharding`: the ranks that divide the optimizer's state}."""


def build(model: Model, run: Run, mesh: DeviceMesh) -> Callable[[], None]:
    """One training step of a model on a mesh with axes pp, dp, cp and tp.

    Args:
        model: the sizes.
        run: how a step is run.
        mesh: of a world that may be simulated.

    Returns:
        the step; each call trains once.
    """
    stages = _stages(model, run, mesh)
    for part in stages.values():
        if mesh["tp"].size() > 1:
            shard_tensors(part, mesh["tp"])
        if model.tied and part.embedding is not None and part.output is not None:
            part.output.weight = part.embedding.weight
        checkpoint(part, run.checkpointing)
        if run.compiled:
            for layer in part.layers:
                layer.compile()
        data = data_ranks(mesh)
        if data.size() > 1 and run.sharding == "fsdp":
            shard_parameters(part, data, keep_gathered=mesh["pp"].size() > 1)
        else:
            part.to(torch.bfloat16)
    parameters = [parameter for part in stages.values() for parameter in part.parameters()]
    sharers = _SHARERS.get(run.sharding)
    in_fp32 = run.sharding.endswith("in fp32")
    zero1 = ZeroOne(list(stages.values()), mesh, sharers, in_fp32) if sharers is not None else None
    optimizer = zero1 or torch.optim.AdamW(parameters, fused=True)
    sequence = run.sequence // mesh["cp"].size()
    tokens = torch.randint(model.vocabulary, (run.batch, sequence))
    compute = (
        _pipeline(stages, model, run, mesh, tokens) if mesh["pp"].size() > 1 else _plain(stages[0], run, tokens, zero1)
    )

    def step() -> None:
        sharded = loss_parallel() if mesh["tp"].size() > 1 else nullcontext()
        # The buffer that is sharded stands for the tokens, which are made sharded.
        ring: Any = nullcontext()
        if mesh["cp"].size() > 1:
            ring = context_parallel(mesh["cp"], buffers=[torch.zeros(1, run.sequence)], buffer_seq_dims=[1])
        with sharded, ring:
            compute()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _stages(model: Model, run: Run, mesh: DeviceMesh) -> dict[int, Part]:
    """The parts of the model that this rank has, by the number of their stage."""
    size, own = mesh["pp"].size(), mesh["pp"].get_local_rank()
    stages = size * run.stages_per_rank
    bounds = [round(model.layers * stage / stages) for stage in range(stages + 1)]
    grouped = run.sharding == "zero1 of all"
    return {stage: Part(model, range(bounds[stage], bounds[stage + 1]), grouped) for stage in range(own, stages, size)}


def _plain(part: Part, run: Run, tokens: torch.Tensor, zero1: ZeroOne | None) -> Callable[[], None]:
    criterion = Loss()
    if run.compiled_loss:
        criterion.compile()

    def compute() -> None:
        for number in range(run.microbatches):
            if zero1 is not None:
                zero1.reduces = number == run.microbatches - 1
            if run.microbatches > 1 and hasattr(part, "set_is_last_backward"):
                part.set_is_last_backward(number == run.microbatches - 1)
            criterion(part(tokens), tokens).backward()

    return compute


def loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy in fp32 of [batch, sequence, vocabulary]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


class Loss(nn.Module):
    """`loss` as a module, which can be compiled."""

    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Shapes: [batch, sequence, vocabulary] and [batch, sequence]."""
        return loss(logits, labels)


def _pipeline(
    stages: dict[int, Part], model: Model, run: Run, mesh: DeviceMesh, tokens: torch.Tensor
) -> Callable[[], None]:
    count = mesh["pp"].size() * run.stages_per_rank
    hidden = torch.empty(run.batch, tokens.shape[1] // mesh["tp"].size(), model.width, dtype=torch.bfloat16)
    hidden.requires_grad_()
    logits = torch.empty(run.batch, tokens.shape[1], model.vocabulary, dtype=torch.bfloat16)
    made = [
        PipelineStage(
            part,
            stage,
            count,
            torch.device("cpu"),
            input_args=(tokens if stage == 0 else hidden,),
            output_args=(logits if stage == count - 1 else hidden,),
            group=mesh["pp"].get_group(),
        )
        for stage, part in stages.items()
    ]
    schedule: Any
    if run.stages_per_rank > 1:
        schedule = ScheduleInterleaved1F1B(made, n_microbatches=run.microbatches, loss_fn=loss)
    else:
        schedule = Schedule1F1B(made[0], n_microbatches=run.microbatches, loss_fn=loss)
    whole = tokens.repeat(run.microbatches, 1)
    is_first, is_last = 0 in stages, count - 1 in stages

    def compute() -> None:
        schedule.step(*((whole,) if is_first else ()), **({"target": whole} if is_last else {}), return_outputs=False)

    return compute
