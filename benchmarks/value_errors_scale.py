"""What finding placement errors without values takes at the size of Llama-3-405B, with a planted fault and without.

A training step of 126 layers of width 16,384 on fake tensors, tensor and sequence parallel 8 × FSDP2, is traced with
``costs=True``. In the faulty plan the last norm has a plain weight, of which FSDP knows nothing, beside a part of each
sequence on each rank, so that the gradient of its weight is a part of a sum that nothing reduces over tp. Seconds are
wall time of one process: making the model, the step under the recording, and `Trace.findings`.

Usage: python benchmarks/value_errors_scale.py [--ranks 1024] [--layers 126]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

import torch
from llama import LLAMA_405B, Llama, Shape, apply_tensor_parallel, training_loss
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import dsexplore

TENSOR_PARALLEL = 8


class PlainNorm(nn.Module):
    """A norm of this rank's part of a sequence, whose weight is no DTensor."""

    def __init__(self, norm: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__()
        self.norm, self.mesh = norm, mesh

    def forward(self, x: Any) -> Any:
        part = x.to_local() if isinstance(x, DTensor) else x
        return DTensor.from_local(self.norm(part), self.mesh, [Shard(1)], run_check=False)


def planned(shape: Shape, mesh: DeviceMesh, is_faulty: bool) -> Llama:
    """The model under the plan."""
    model = Llama(shape)
    apply_tensor_parallel(model, mesh["tp"])
    plain: set[nn.Parameter] = set()
    if is_faulty:
        model.norm = PlainNorm(nn.RMSNorm(shape.width), mesh["tp"])
        plain = set(model.norm.parameters())
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"], ignored_params=plain)
    return model


def found(ranks: int, shape: Shape, is_faulty: bool) -> None:
    """Trace one step and print what is found, and how long it took."""
    with dsexplore.simulate(mesh=f"dp={ranks // TENSOR_PARALLEL},tp={TENSOR_PARALLEL}", fake=True) as mesh:
        began = time.perf_counter()
        model = planned(shape, mesh, is_faulty)
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros(1, shape.sequence, dtype=torch.int64)
        made = time.perf_counter()
        with dsexplore.commtrace(costs=True) as trace:
            training_loss(model, tokens).backward()
            optimizer.step()
        traced = time.perf_counter()
    findings = [one for one in trace.findings() if one.rule == "value_errors"]
    ended = time.perf_counter()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{'planted fault' if is_faulty else 'right plan'}, {ranks:,} ranks, {parameters / 1e9:.0f} B parameters: "
        f"model {made - began:.1f} s, traced step {traced - made:.1f} s, findings {ended - traced:.1f} s; "
        f"{len(findings)} value errors",
        flush=True,
    )
    for one in findings[:3]:
        print(f"  {one.module}: {one.why}", flush=True)


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=LLAMA_405B.layers)
    options = parser.parse_args()
    shape = replace(LLAMA_405B, layers=options.layers)
    for is_faulty in (False, True):
        found(options.ranks, shape, is_faulty)


if __name__ == "__main__":
    main()
