"""Plans as textbooks and libraries have them: nothing in them is odd but what `PLANS` says of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import advised
import planted
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

D = planted.D
LLAMA = advised.SUBJECTS["llama"]


class MegatronBlock(nn.Module):
    """One linear layer for q, k and v, and a plain MLP, all of them parts of the block itself."""

    def __init__(self, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.norm, self.norm_2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal))
        return x + self.down(nn.functional.gelu(self.up(self.norm_2(x))))


def steps(model: nn.Module, optimizer: Any, count: int = 3, call: Callable[[], torch.Tensor] | None = None) -> None:
    """Train for some steps, clipping gradients."""
    for _ in range(count):
        (call() if call is not None else model(planted.batch())).float().sum().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def megatron_tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    model = nn.Sequential(MegatronBlock(), MegatronBlock())
    for block in model:
        columns, rows = (
            dict.fromkeys(("qkv", "up"), ColwiseParallel()),
            dict.fromkeys(("out", "down"), RowwiseParallel()),
        )
        parallelize_module(block, mesh, {**columns, **rows}, src_data_rank=None)
    for _ in range(2):
        model(planted.batch()).sum().backward()
        for parameter in model.parameters():
            parameter.grad = None


class CrossAttention(nn.Module):
    """q reads one tensor, k and v's common layer another of the same shape."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.out = nn.Linear(D, D), nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k = self.q(x), self.kv(x.flip(1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, k))


def cross_attention() -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    model = CrossAttention()
    plan = {"q": ColwiseParallel(), "kv": ColwiseParallel(), "out": RowwiseParallel()}
    parallelize_module(model, mesh, plan, src_data_rank=None)
    model(planted.batch().requires_grad_()).sum().backward()


def sequence_parallel() -> None:
    model = LLAMA.make()
    advised.tensor_parallel(LLAMA, model, sequence=True)
    advised.backward(LLAMA, model)


def parallel_loss() -> None:
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("tp",))
    model = nn.Sequential(nn.Linear(D, 64))
    head = ColwiseParallel(output_layouts=None, use_local_output=False)
    parallelize_module(model, mesh, {"0": head}, src_data_rank=None)
    with loss_parallel():
        targets = torch.zeros(16, dtype=torch.long)
        nn.functional.cross_entropy(model(planted.batch()).flatten(0, 1), targets).backward()


def fsdp() -> None:
    model = planted.Net()
    planted.sharded(model)
    steps(model, torch.optim.AdamW(model.parameters()))


def fsdp_and_tensor_parallel() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = planted.Net()
    for layer in model.layers:
        columns, row = dict.fromkeys(("1.up", "1.gate"), ColwiseParallel()), {"1.down": RowwiseParallel()}
        whole = {"1": planted.PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))}
        parallelize_module(layer, mesh["tp"], {**columns, **row, **whole}, src_data_rank=None)
        fully_shard(layer, mesh=mesh["dp"], reshard_after_forward=layer is not model.layers[-1])
    fully_shard(model, mesh=mesh["dp"])
    advised_step(model)


def advised_step(model: nn.Module) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(2):
        model(planted.batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def hybrid_sharded() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = planted.Net()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, reshard_after_forward=layer is not model.layers[-1])
    fully_shard(model, mesh=mesh)
    steps(model, torch.optim.AdamW(model.parameters()))


def accumulated_fsdp() -> None:
    model: Any = planted.Net()
    planted.sharded(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for last in (False, False, True):
        model.set_requires_gradient_sync(last)
        model(planted.batch()).sum().backward()
    optimizer.step()


def zero_1() -> None:
    model = DistributedDataParallel(planted.Net(), init_sync=False)
    zero = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, parameters_as_bucket_view=True
    )
    for _ in range(2):
        model(planted.batch()).sum().backward()
        zero.step()
        zero.zero_grad()


def zero_1_of_a_flat_tensor() -> None:
    """Train as Megatron's distributed optimizer: one reduce_scatter, the update of a part, one all_gather."""
    model = planted.Net()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])

    class Parts(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            part = flat.chunk(dist.get_world_size())[dist.get_rank()].clone()
            gradient = torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]])
            mine = torch.empty_like(part)
            dist.reduce_scatter_tensor(mine, gradient)
            dist.all_gather_into_tensor(flat, part - 1e-3 * mine)

    optimizer = Parts(model.parameters(), lr=1e-3)
    for _ in range(2):
        model(planted.batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def zero_2_and_3() -> None:
    """FSDP1 whose groups stay gathered between forward and backward, and one whose groups do not."""
    steps(model := planted.wrapped(planted.Net(), kept=3), torch.optim.AdamW(model.parameters()), 1)


def distributed_data_parallel() -> None:
    model = DistributedDataParallel(planted.Net(), init_sync=False)
    steps(model, torch.optim.AdamW(model.parameters()))


def accumulated_data_parallel() -> None:
    model = DistributedDataParallel(planted.Net(), init_sync=False)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        with model.no_sync():
            model(planted.batch()).sum().backward()
        model(planted.batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def steps_by_hand() -> None:
    """Three steps without an optimizer of torch: nothing says that they are steps."""
    model = DistributedDataParallel(planted.Net(), init_sync=False)
    for _ in range(3):
        model(planted.batch()).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data -= 1e-3 * parameter.grad
            parameter.grad = None


def two_models() -> None:
    """Train a generator and a discriminator: the latter's gradients are reduced twice, and of two losses."""
    generator, discriminator = (DistributedDataParallel(planted.Net(), init_sync=False) for _ in range(2))
    optimizers = [torch.optim.AdamW(one.parameters()) for one in (generator, discriminator)]
    made = generator(planted.batch())
    (discriminator(made.detach()) - discriminator(planted.batch())).sum().backward()
    optimizers[1].step()
    discriminator.requires_grad_(False)
    discriminator(made).sum().backward()
    optimizers[0].step()


class Experts(nn.Module):
    """A router, and experts of which each rank has one: tokens go there and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.expert = nn.Linear(D, 4), nn.Linear(D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, D) * self.router(x.reshape(-1, D)).softmax(-1).amax(-1, keepdim=True)
        gone = dist.nn.functional.all_to_all_single(torch.empty_like(tokens), tokens)
        return dist.nn.functional.all_to_all_single(torch.empty_like(gone), self.expert(gone)).reshape(x.shape)


def experts() -> None:
    model = nn.Sequential(Experts(), Experts())
    steps(model, torch.optim.AdamW(model.parameters()))


def pipeline() -> None:
    model = planted.Net(1)
    example = torch.randn(1, 8, D).requires_grad_()
    stage = PipelineStage(model, dist.get_rank(), 4, torch.device("cpu"), input_args=example, output_args=example)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=lambda output, target: (output - target).sum())
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        schedule.step(torch.randn(4, 8, D))
        optimizer.step()
        optimizer.zero_grad()


def gathered_context() -> None:
    """Context parallelism by hand: each rank gathers keys and values of the whole sequence."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            keys = torch.cat(dist.nn.functional.all_gather(self.k(x)), dim=1)
            values = torch.cat(dist.nn.functional.all_gather(self.v(x)), dim=1)
            return nn.functional.scaled_dot_product_attention(self.q(x), keys, values)

    model = nn.Sequential(Attention(), Attention())
    steps(model, torch.optim.AdamW(model.parameters()))


def ring_attention() -> None:
    """Context parallelism of torch: keys and values go around, and their gradients in backward, several in a row."""
    mesh = init_device_mesh("cuda", (4,), mesh_dim_names=("cp",))
    model = nn.Sequential(MegatronBlock(is_causal=True), MegatronBlock(is_causal=True)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x = torch.randn(2, 1, 32, D, device="cuda")
        with context_parallel(mesh, buffers=[x], buffer_seq_dims=[2]):
            model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluation() -> None:
    """Training, and an evaluation that gathers the numbers of its metric on lines of their own."""
    model = DistributedDataParallel(planted.Net(), init_sync=False)
    steps(model, torch.optim.AdamW(model.parameters()), 2)
    with torch.no_grad():
        right, total = model(planted.batch()).sum(), torch.ones(())
    dist.all_reduce(right)
    dist.all_reduce(total)


def wrapped_once() -> None:
    model = FullyShardedDataParallel(planted.Net(), device_id=torch.device("cpu"))
    steps(model, torch.optim.AdamW(model.parameters()))


PLANS: tuple[Callable[[], None], ...] = (
    megatron_tensor_parallel,
    cross_attention,
    sequence_parallel,
    parallel_loss,
    fsdp,
    fsdp_and_tensor_parallel,
    hybrid_sharded,
    accumulated_fsdp,
    zero_1,
    zero_1_of_a_flat_tensor,
    zero_2_and_3,
    distributed_data_parallel,
    accumulated_data_parallel,
    steps_by_hand,
    two_models,
    experts,
    pipeline,
    gathered_context,
    ring_attention,
    evaluation,
    wrapped_once,
)
