"""The advice of each rule, followed on three models: `ADVICE` is {rule: its oddity on any model, True, or what to do}.

The models are `planted.Net`, the Llama of ``dsexplore demo``, and Llama of transformers, whose blocks are called with
arguments passed by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import planted
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import dsexplore
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds import demo

RANKS = 4
TOKENS = torch.arange(32).reshape(2, 16)


@dataclass(frozen=True)
class Subject:
    """A model, with the names of its parts."""

    make: Callable[[], nn.Module]
    call: Callable[[nn.Module], torch.Tensor]
    blocks: str
    """Fully qualified name of the list of blocks."""
    readers: dict[str, tuple[str, ...]]
    """{part of a block: its modules that read one input}."""
    rows: tuple[str, ...]
    """Parts of a block that are parallelized by rows."""
    norms: tuple[str, ...]
    name_of_input: dict[str, str] = field(default_factory=dict)
    """{part of a block: the name by which its input is passed}; others get it by position."""
    ends: tuple[str, str, str] | None = None
    """Embedding, last norm and output projection."""
    uncut: tuple[str, ...] = ()
    """Parts of a block that need their whole input: each of its modules cannot gather it."""

    def blocks_of(self, model: nn.Module) -> list[nn.Module]:
        return list(model.get_submodule(self.blocks).children())


def _transformers_llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "vocab_size": 256}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=4))


def _call_transformers(model: nn.Module) -> torch.Tensor:
    positions = torch.arange(TOKENS.shape[1])[None]
    output: torch.Tensor = model(input_ids=TOKENS, position_ids=positions, use_cache=False).logits
    return output


SUBJECTS = {
    "net": Subject(
        planted.Net, lambda model: model(planted.batch()), "layers", {"1": ("up", "gate")}, ("1.down",), ("0",)
    ),
    "llama": Subject(
        lambda: demo.Llama(demo.Shape(layers=2)),
        lambda model: model(TOKENS),
        "layers",
        {"attention": ("wq", "wk", "wv"), "feed_forward": ("w1", "w3")},
        ("attention.wo", "feed_forward.w2"),
        ("attention_norm", "ffn_norm"),
        ends=("embedding", "norm", "output"),
    ),
    "transformers": Subject(
        _transformers_llama,
        _call_transformers,
        "model.layers",
        {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")},
        ("self_attn.o_proj", "mlp.down_proj"),
        ("input_layernorm", "post_attention_layernorm"),
        name_of_input={"self_attn": "hidden_states"},
        ends=("model.embed_tokens", "model.norm", "lm_head"),
        uncut=("self_attn",),
    ),
}


def mesh_of(name: str) -> DeviceMesh:
    return init_device_mesh("cpu", (RANKS,), mesh_dim_names=(name,))


def tensor_parallel(
    subject: Subject,
    model: nn.Module,
    *,
    sequence: bool,
    prepared: bool = True,
    rows: Any = None,
    local: bool = True,
    source: int | None = None,
) -> None:
    """Apply tensor parallelism.

    Args:
        subject: the subject that the model belongs to.
        model: the model to parallelize.
        sequence: whether activations between blocks are sharded along the sequence.
        prepared: whether each part's input is made whole, or a DTensor, once.
        rows: output layout of what is parallelized by rows; None for that of the activations between blocks.
        local: whether modules return plain tensors.
        source: rank that sends the parameters at start-up; None for none.
    """
    tp, between = mesh_of("tp"), Shard(1) if sequence else Replicate()
    for block in subject.blocks_of(model):
        plan: dict[str, Any] = {}
        for part, readers in subject.readers.items():
            by_name = subject.name_of_input.get(part)
            layouts: Any = (between,), (Replicate(),)
            if prepared or (part in subject.uncut and sequence):
                plan[part] = (
                    PrepareModuleInput(
                        input_kwarg_layouts={by_name: between}, desired_input_kwarg_layouts={by_name: Replicate()}
                    )
                    if by_name
                    else PrepareModuleInput(input_layouts=layouts[0], desired_input_layouts=layouts[1])
                )
            style = {} if part in plan else {"input_layouts": between}
            plan |= {f"{part}.{reader}": ColwiseParallel(**style) for reader in readers}
        is_end = subject.ends is None and block is subject.blocks_of(model)[-1]  # nothing gathers what it returns
        layout = Replicate() if is_end and rows is not None else rows or between
        plan |= dict.fromkeys(subject.rows, RowwiseParallel(output_layouts=layout, use_local_output=local))
        if sequence:
            plan |= {norm: SequenceParallel(use_local_output=local) for norm in subject.norms}
        parallelize_module(block, tp, plan, src_data_rank=source)
    if subject.ends is not None:
        embedding, norm, head = subject.ends
        ends: dict[str, Any] = {
            embedding: RowwiseParallel(input_layouts=Replicate(), output_layouts=between, use_local_output=local),
            head: ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
            **({norm: SequenceParallel(use_local_output=local)} if sequence else {}),
        }
        parallelize_module(model, tp, ends, src_data_rank=source)


def sharded(subject: Subject, model: nn.Module, *, keep_last: bool = True, **options: Any) -> None:
    """Apply FSDP2 to each block and to the rest; the last block is kept between forward and backward."""
    mesh, blocks = mesh_of("dp"), subject.blocks_of(model)
    for block in blocks:
        kept = keep_last and block is blocks[-1]
        fully_shard(block, mesh=mesh, reshard_after_forward=not kept, **options)
    fully_shard(model, mesh=mesh, **options)


def backward(subject: Subject, model: nn.Module) -> None:
    output = subject.call(model)
    (output.to_local() if isinstance(output, DTensor) else output).float().sum().backward()


def all_reduce_of_shards(subject: Subject, odd: bool) -> None:
    model = subject.make()
    tensor_parallel(subject, model, sequence=True, rows=Replicate() if odd else Shard(1), local=False)
    backward(subject, model)


def freed_too_soon(subject: Subject, odd: bool) -> None:
    model = subject.make()
    sharded(subject, model, keep_last=not odd)
    backward(subject, model)


def gathered_again(subject: Subject, odd: bool) -> None:
    model = subject.make()
    tensor_parallel(subject, model, sequence=True, prepared=not odd)
    backward(subject, model)


def implicit_redistributes(subject: Subject, odd: bool) -> None:
    output = subject.call(subject.make()).detach()
    mesh = mesh_of("dp")
    mask = DTensor.from_local(torch.ones_like(output), mesh, [Shard(1 if odd else 0)])
    if odd:  # of the same global shape
        parts = torch.ones(output.shape[0] * RANKS, output.shape[1] // RANKS, *output.shape[2:])
        mask = DTensor.from_local(parts, mesh, [Shard(1)])
    DTensor.from_local(output, mesh, [Shard(0)]) * mask


def large_start_up(subject: Subject, odd: bool) -> None:
    model = subject.make().requires_grad_(False)
    subject.blocks_of(model)[-1].requires_grad_(True)
    backward(subject, DistributedDataParallel(model, init_sync=odd))


def optimizer_gathers(subject: Subject, odd: bool) -> None:
    _train_matrices(subject, torch.optim.Muon if odd else torch.optim.AdamW)


def made_whole_once(subject: Subject, odd: bool) -> None:
    _train_matrices(subject, torch.optim.Muon if odd else _muon_of_whole_gradients)


def _train_matrices(subject: Subject, optimizer_of: Callable[[list[Any]], Any]) -> None:
    model = subject.make()
    sharded(subject, model)
    optimizer = optimizer_of([p for block in subject.blocks_of(model) for p in block.parameters() if p.ndim == 2])
    backward(subject, model)
    optimizer.step()


def _muon_of_whole_gradients(matrices: list[Any]) -> Any:
    """Muon, which updates whole tensors of zeros; each rank then adds its shard of them."""

    class Whole(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for matrix in self.param_groups[0]["params"]:
                whole = nn.Parameter(torch.zeros(matrix.shape))
                whole.grad = matrix.grad.full_tensor()
                torch.optim.Muon([whole], weight_decay=0.0).step()
                mine = distribute_tensor(whole.detach(), matrix.device_mesh, matrix.placements, src_data_rank=None)
                matrix.add_(mine)

    return Whole(matrices)


def optimizer_reduces(subject: Subject, odd: bool) -> None:
    model = subject.make()
    tensor_parallel(subject, model, sequence=True)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    backward(subject, model)
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        if not odd and isinstance(gradient, DTensor) and any(p.is_partial() for p in gradient.placements):
            parameter.grad = gradient.redistribute(placements=[Replicate()] * gradient.device_mesh.ndim)
    optimizer.step()


def parts_sent_one_by_one(subject: Subject, odd: bool) -> None:
    model = DistributedDataParallel(subject.make())
    zero = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.SGD, lr=1e-3, parameters_as_bucket_view=not odd
    )
    backward(subject, model)
    zero.step()


def reduced_each_microbatch(subject: Subject, odd: bool) -> None:
    model = DistributedDataParallel(subject.make())
    with model.no_sync() if not odd else torch.enable_grad():
        backward(subject, model)
    backward(subject, model)


def fsdp_reduced_each_microbatch(subject: Subject, odd: bool) -> None:
    model = subject.make()
    sharded(subject, model)
    for last in (False, True):
        if not odd:
            model.set_requires_gradient_sync(last)  # type: ignore[operator]  # a method that fully_shard adds
        backward(subject, model)


def distributed_at_start(subject: Subject, odd: bool) -> None:
    model = subject.make()
    tensor_parallel(subject, model, sequence=False, source=0 if odd else None)
    backward(subject, model)


def reduced_in_fp32(subject: Subject, odd: bool) -> None:
    model = subject.make()
    wide = torch.float32 if odd else torch.bfloat16
    sharded(subject, model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=wide))
    backward(subject, model)


def repeated_collectives(subject: Subject, odd: bool) -> None:
    model = subject.make()
    backward(subject, model)
    matrices = [p for block in subject.blocks_of(model) for p in block.parameters() if p.ndim == 2]
    gradients = [p.grad for p in matrices if p.grad is not None]
    gradients = [one for one in gradients if one.shape == gradients[0].shape]
    if odd:
        for gradient in gradients:
            dist.all_reduce(gradient)
    else:
        dist.all_reduce(torch.stack(gradients))


def siblings_reduce(subject: Subject, odd: bool) -> None:
    model = subject.make()
    tensor_parallel(subject, model, sequence=False, prepared=not odd)
    backward(subject, model)


def small_fsdp(subject: Subject, odd: bool) -> None:
    model = subject.make()
    blocks = subject.blocks_of(model)
    for block in blocks if odd else ():
        for norm in subject.norms:
            kept = block is blocks[-1]
            fully_shard(block.get_submodule(norm), mesh=mesh_of("dp"), reshard_after_forward=not kept)
    sharded(subject, model)
    backward(subject, model)


def value_errors(subject: Subject, odd: bool) -> None:
    model = subject.make()
    mesh = mesh_of("cp")

    def cut(_norm: nn.Module, args: tuple[torch.Tensor]) -> torch.Tensor:
        return DTensor.from_local(args[0], mesh, [Replicate()]).redistribute(mesh, [Shard(1)]).to_local()

    def join(_norm: nn.Module, _args: object, part: torch.Tensor) -> torch.Tensor:
        return DTensor.from_local(part, mesh, [Shard(1)]).full_tensor()

    norms = [block.get_submodule(norm) for block in subject.blocks_of(model) for norm in subject.norms]
    for norm in norms:
        norm.register_forward_pre_hook(cut)
        norm.register_forward_hook(join)
    backward(subject, model)
    if not odd:
        for norm in norms:
            for parameter in norm.parameters():
                dist.all_reduce(parameter.grad, group=mesh.get_group())
    torch.optim.SGD(model.parameters(), foreach=False).step()


Program = Callable[[Subject, bool], None]
ADVICE: dict[str, tuple[Program, ...]] = {
    "all_reduce_of_shards": (all_reduce_of_shards,),
    "freed_too_soon": (freed_too_soon,),
    "gathered_again": (gathered_again,),
    "implicit_redistributes": (implicit_redistributes,),
    "large_start_up": (large_start_up, distributed_at_start),
    "optimizer_gathers": (optimizer_gathers, made_whole_once, parts_sent_one_by_one),
    "optimizer_reduces": (optimizer_reduces,),
    "reduced_each_microbatch": (reduced_each_microbatch, fsdp_reduced_each_microbatch),
    "reduced_in_fp32": (reduced_in_fp32,),
    "repeated_collectives": (repeated_collectives,),
    "siblings_reduce": (siblings_reduce,),
    "small_fsdp": (small_fsdp,),
    "value_errors": (value_errors,),
}
"""{rule: programs that have what it finds, or follow its advice}."""
WITHOUT_A_CHANGE = {"late_rank": "the trace does not show which change"}
"""{rule whose change a trace cannot give: how its advice says so}."""


def trace_of(program: Program, subject: Subject, odd: bool) -> Trace:
    """Return the trace of rank 0, of one step."""
    torch.manual_seed(0)
    with dsexplore.commtrace(world_size=RANKS, costs=program is value_errors) as trace:
        program(subject, odd)
        trace.step()
    return trace
