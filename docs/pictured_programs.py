"""The programs and results that `docs/pictures.py` draws, which tests and benchmarks use, too."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

import dsexplore
from dsexplore import Trace, aio
from dsexplore._internal.comm.logs.logger import CommsLogger
from dsexplore._internal.comm.logs.logger_config import CommsLoggerConfig
from dsexplore._internal.cost.meshes.compare_meshes import compare_meshes
from dsexplore._internal.cost.meshes.mesh_comparison import MeshComparison
from dsexplore._internal.cost.step.prediction import Prediction
from dsexplore._internal.worlds import demo
from dsexplore.aio import SweepResult, aio_handle
from tests.capture.schemes.test_expert_parallel import Mixture
from tests.cost.sharded_llama import sharded_llama
from tests.numerics import wrong_plans

SMALL: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 2048, "use_cache": False}


def train(model: nn.Module, mesh: DeviceMesh) -> Trace:
    """One step of a language model whose layers are sharded on a mesh by FSDP2, as the rest of the model is then."""
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with dsexplore.commtrace(costs=True) as trace:
        tokens = torch.randint(0, 2048, (2, 512))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return trace


def llama(layers: int = 8, axes: str = "dp=2,tp=4", **shape: int) -> Trace:
    """A Llama on a mesh, eight ranks at first: tensor parallelism and FSDP2."""
    column, row = ColwiseParallel, RowwiseParallel
    plan: dict[str, Any] = {f"self_attn.{k}_proj": column() for k in "qkv"} | {"self_attn.o_proj": row()}
    plan |= {"mlp.gate_proj": column(), "mlp.up_proj": column(), "mlp.down_proj": row()}
    sizes = {"hidden_size": 512, "intermediate_size": 1376, **shape}
    with dsexplore.simulate(mesh=axes, fake=True) as mesh:
        model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=layers, **sizes, **SMALL))
        for layer in model.model.layers:
            parallelize_module(layer, mesh["tp"], plan)
            fully_shard(layer, mesh=mesh["dp"])
        return train(model, mesh["dp"])


class Experts(nn.Module):
    """A Mixtral block whose experts are divided among the ranks of an axis: tokens travel to their expert and back."""

    def __init__(self, block: Any, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.gate, self.group = block.gate, group
        width, inner = block.experts.down_proj.shape[1:]
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x.flatten(0, 1))[0].softmax(-1).amax(-1, keepdim=True)
        rows = x.flatten(0, 1).repeat_interleave(2, 0)
        sent = functional.all_to_all_single_autograd(rows, None, None, self.group)
        back = functional.all_to_all_single_autograd(self.down(self.up(sent).relu()), None, None, self.group)
        return (back.view(*weights.shape[:-1], 2, -1).sum(-2) * weights).view_as(x)


def mixtral() -> Trace:
    """A Mixtral on sixteen ranks: expert parallelism and FSDP2."""
    with dsexplore.simulate(mesh="dp=2,ep=8", fake=True) as mesh:
        config = MixtralConfig(
            hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_local_experts=8, **SMALL
        )
        model = MixtralForCausalLM(config)
        for layer in model.model.layers:
            layer.mlp = Experts(layer.mlp, mesh["ep"].get_group())
            fully_shard(layer, mesh=mesh["dp"])
        return train(model, mesh["dp"])


def pipeline() -> Trace:
    """Four stages of a pipeline and eight microbatches, all ranks."""
    traces = []
    for rank in range(4):
        with dsexplore.simulate(mesh="pp=4", rank=rank) as mesh, dsexplore.commtrace(costs=True) as trace:
            block = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256))
            example = (torch.ones(2, 256, requires_grad=True),)
            stage = PipelineStage(block, rank, 4, torch.device("cpu"), example, example, group=mesh.get_group())
            schedule = Schedule1F1B(stage, 8, loss_fn=nn.MSELoss())
            given = (torch.ones(16, 256),) if rank == 0 else ()
            schedule.step(*given, **({"target": torch.ones(16, 256)} if rank == 3 else {}))
        traces.append(trace)
    return Trace.merge(traces)


def replicated() -> DistributedDataParallel:
    """A small model under DDP, after the step by which DDP settles its buckets."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    model(torch.ones(8, 512)).sum().backward()
    return model


def replica(folder: str) -> None:
    """What each rank of `real_ddp` does: three steps, of which rank 2 begins late."""
    model = replicated()
    with dsexplore.commtrace(save=folder) as trace:
        for _ in range(3):
            time.sleep(0.4 if dist.get_rank() == 2 else 0)
            model(torch.ones(8, 512)).sum().backward()
            trace.step()


def real_ddp() -> Trace:
    """DDP on four processes with a gloo group, measured."""
    with tempfile.TemporaryDirectory() as folder:
        dsexplore.run_ranks(replica, 4, args=(folder,)).check()
        return dsexplore.load(folder)


def predicted_ddp() -> Prediction:
    """A step of `real_ddp`, predicted for processes of one machine."""
    with dsexplore.simulate(4, hardware="cpu"):
        model = replicated()
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.ones(8, 512)).sum().backward()
    return trace.predict("gloo-local")


def routed() -> Trace:
    """A mixture of experts on four ranks whose routers send most tokens to the expert of rank 2, all ranks."""
    tokens = ((30, 40, 160, 26), (44, 20, 150, 42), (28, 36, 170, 22), (40, 24, 152, 40))
    traces = []
    for rank, sent in enumerate(tokens):
        received = [of_rank[rank] for of_rank in tokens]
        with dsexplore.simulate(mesh="ep=4", rank=rank) as mesh, dsexplore.commtrace() as trace:
            Mixture(512, mesh, list(sent), received)(torch.ones(sum(sent), 512)).sum().backward()
        traces.append(trace)
    return Trace.merge(traces)


def reader(folder: str, files: str) -> None:
    """What each rank of `from_disk` does: two steps whose batch is read from a file first."""
    model, batch, path = replicated(), torch.ones(16 << 20), f"{files}/{dist.get_rank()}.bin"
    with aio_handle() as handle:
        handle.sync_pwrite(batch, path)
        with dsexplore.commtrace(save=folder) as trace:
            for _ in range(2):
                handle.async_pread(batch, path)
                handle.wait()
                model(batch[: 8 * 512].view(8, 512)).sum().backward()
                trace.step()


def from_disk() -> Trace:
    """DDP on two processes that read a disk, measured."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as files:
        dsexplore.run_ranks(reader, 2, args=(folder, files)).check()
        return dsexplore.load(folder)


def hang() -> Any:
    """Three real ranks of which one raises an exception while the others wait."""
    cell = """
import torch, torch.distributed as dist, dsexplore
def load(step):
    if rank == 1 and step == 2:
        raise ValueError("bad sample 17")
    return torch.ones(4)
with dsexplore.commtrace(save=folder, timeout=1.5):
    for step in range(3):
        dist.all_reduce(load(step))
"""
    with tempfile.TemporaryDirectory() as folder:
        dsexplore.run_ranks(cell, 3, namespace={"folder": folder}, timeout=30, group_timeout=4)
        return dsexplore.explain_hang(folder)


def numerics() -> Any:
    """A plan of data and tensor parallel ranks that forgets to reduce the output of a row-parallel layer."""
    return dsexplore.compare_numerics(wrong_plans.sgd, wrong_plans.output_not_reduced, mesh="dp=2,tp=2", world_size=4)


def nothing() -> Trace:
    """A program that computes and sends nothing."""
    with dsexplore.simulate(2), dsexplore.commtrace() as trace:
        nn.Linear(4, 4)(torch.ones(2, 4))
    return trace


def log() -> Any:
    """What the log of communication calls shows."""
    kept = CommsLogger(CommsLoggerConfig(enabled=True), epoch=0)
    for number in range(40):
        kept.append("all_reduce", "all_reduce", 4.0 + number % 7, 8_000_000 << (number % 3), group_size=8)
        kept.append("all_gather", "all_gather_into_tensor", 2.0 + number % 3, 1_000_000, group_size=8)
    kept.append("barrier", "barrier", latency=0.5, msg_size=0, group_size=8)
    return kept.summary()


def sweep(folder: str) -> SweepResult:
    """A small sweep of the disk under ``folder``."""
    return aio.sweep(
        folder, "32MiB", 12, queue_depth=[2, 8], block_size=[1 << 18, 1 << 20], thread_count=[1, 2],
        single_submit=[False], overlap_events=[True], progress=False,
    )  # fmt: skip


def plan(mesh: str = "dp=2,tp=4") -> Any:
    """Where the parameters of some Llama layers lie."""
    held: dict[str, Any] = {"tok_embeddings.weight": ((128256, 4096), "_S(0, 4), S(0)")}
    for layer in range(4):
        held |= {
            f"layers.{layer}.attention.wq.weight": ((4096, 4096), "_S(0, 4), S(0)"),
            f"layers.{layer}.attention.wo.weight": ((4096, 4096), "S(0), S(1)"),
            f"layers.{layer}.attention_norm.weight": ((4096,), "S(0), R"),
        }
    return dsexplore.sharding(held, mesh=mesh, dtype="bfloat16")


def one_step(mesh: DeviceMesh) -> Callable[[], None]:
    """A Llama of four layers on a mesh with the axes dp and tp."""
    shape = demo.Shape(layers=4, dim=2048, heads=16, kv_heads=4, hidden=5632, vocabulary=32000)
    model = sharded_llama(mesh, shape)
    tokens = torch.randint(32000, (4, 2049))
    return lambda: demo.train_step(model, tokens)


def meshes() -> MeshComparison:
    """The meshes of 8 ranks, of which one leaves heads over."""
    return compare_meshes(one_step, 8, axes=("dp", "tp"))
