"""Pipeline stages of equal layers, and their steps with and without skipped layers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from dsexplore._internal.trace.tables import Tables
from dsexplore._internal.worlds.commtrace import commtrace
from dsexplore._internal.worlds.repeats.skipped_microbatches import skip_repeats
from dsexplore._internal.worlds.simulate import simulate
from tests.cost.same_tables import same

WIDTH, LAYERS, SEQUENCE, STAGES, MICROBATCHES = 8, 6, 4, 4, 6


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = self.down(F.gelu(self.up(self.norm(x))))
        return x + (y if scale is None else y * scale)


class Stack(nn.Module):
    """Layers in a container, called one after another."""

    def __init__(self, make: Callable[[], nn.Module] = Layer, *, named: bool = False, keywords: bool = False) -> None:
        super().__init__()
        layers = [make() for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(at): one for at, one in enumerate(layers)}) if named else nn.ModuleList(layers)
        self.keywords = keywords

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values() if isinstance(self.layers, nn.ModuleDict) else self.layers:
            x = layer(x=x, scale=torch.ones(())) if self.keywords else layer(x)
        return x


Wrap = Callable[[nn.Module, DeviceMesh], nn.Module]


def plain(model: nn.Module, _mesh: DeviceMesh) -> nn.Module:
    return model


def sharded(model: nn.Module, mesh: DeviceMesh, **options: Any) -> nn.Module:
    for layer in model.layers.children():  # type: ignore[union-attr,operator]
        fully_shard(layer, mesh=mesh["dp"], **options)
    return fully_shard(model, mesh=mesh["dp"], **options)


def hybrid(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.layers.children():  # type: ignore[union-attr,operator]
        fully_shard(layer, mesh=mesh["dp", "tp"])
    return fully_shard(model, mesh=mesh["dp", "tp"])


def sliced(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in model.layers.children():  # type: ignore[union-attr,operator]
        plan: dict[str, Any] = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(layer, mesh["tp"], plan)
    return model


def sliced_and_sharded(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return sharded(sliced(model, mesh), mesh)


def checkpointed(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    layers: Any = model.layers
    for number, layer in enumerate(list(layers)):
        layers[number] = checkpoint_wrapper(layer, preserve_rng_state=False)
    return sharded(model, mesh)


class Recomputing(Layer):
    """Checkpoints itself."""

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return checkpoint(super().forward, x, scale, use_reentrant=False)  # type: ignore[no-any-return]


def traced(
    index: int,
    kind: type[Any],
    make: Callable[[], nn.Module],
    wrap: Wrap,
    *,
    skips: bool,
    microbatches: int = MICROBATCHES,
    steps: int = 1,
) -> tuple[Tables, int]:
    """Return the tables of one stage's steps, and the number of containers in which layers were skipped."""
    with simulate(mesh=f"pp={STAGES},dp=2,tp=2", rank=index * 4, fake=True) as mesh:
        model = wrap(make(), mesh)
        example = torch.zeros(1, SEQUENCE, WIDTH, requires_grad=index > 0)
        described = example, torch.zeros(1, SEQUENCE, WIDTH, requires_grad=True)
        stage = PipelineStage(model, index, STAGES, torch.device("cpu"), *described, group=mesh.get_group("pp"))
        schedule = kind(stage, microbatches, loss_fn=nn.MSELoss())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batch = torch.zeros(microbatches, SEQUENCE, WIDTH)
        sent, target = () if index else (batch,), {"target": batch} if index == STAGES - 1 else {}
        with commtrace() as trace, skip_repeats(is_script=True) if skips else nullcontext() as skipped:
            for _ in range(steps):
                schedule.step(*sent, **target)
                if wrap is not sliced_and_sharded:  # torch refuses norms of two meshes together
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                trace.step()
    if skipped is None:
        return trace.tables, 0
    return skipped.whole(trace.tables), len(skipped.repeating)


def check(index: int, kind: type[Any], make: Callable[[], nn.Module], wrap: Wrap, **options: Any) -> int:
    """Compare a trace with skipped layers to one with all; return the number of containers with skipped ones."""
    tables, containers = traced(index, kind, make, wrap, skips=True, **options)
    same(tables, traced(index, kind, make, wrap, skips=False, **options)[0])
    return containers
