"""How much longer the CPU takes for an op on DTensors than for a plain one. Run: python benchmarks/dtensor_dispatch.py

Ops of a transformer on tensors of 64 numbers, forward and backward, whose shardings DTensor has cached; the world has
eight ranks that do not exist, and no op communicates. `DTENSOR_LAUNCHES` of ``cost/kernels/compute.py`` is the mean
relative to the CPU's time for a kernel.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

import dsexplore

SIZE = 8
ROUNDS, CALLS = 9, 200
OPS: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "add": (torch.add, 2),
    "mul": (torch.mul, 2),
    "silu": (F.silu, 1),
    "softmax": (partial(torch.softmax, dim=-1), 1),
    "transpose": (lambda x: x.transpose(0, 1), 1),
    "linear": (F.linear, 2),
}
"""{name: function, and its number of tensors}."""


class _Counted(torch.utils._python_dispatch.TorchDispatchMode):
    """Count ops."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def] # as torch's
        self.count += 1
        return func(*args, **(kwargs or {}))


def trained(op: Callable[..., torch.Tensor], tensors: Sequence[torch.Tensor], gradient: torch.Tensor) -> None:
    """Run an op, and its backward."""
    torch.autograd.grad(op(*tensors), tensors, gradient)


def seconds(run: Callable[[], None]) -> float:
    """Return the seconds of a call, of the fastest round."""
    for _ in range(CALLS // 4):
        run()
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            run()
        rounds.append((time.perf_counter() - begin) / CALLS)
    return min(rounds)


def main() -> None:
    """Print a line for each op, and the mean."""
    warnings.simplefilter("ignore")
    extra = []
    with dsexplore.simulate(8, hardware="cpu"):
        mesh = init_device_mesh("cpu", (8,))
        for name, (op, count) in OPS.items():
            plain = [torch.zeros(SIZE, SIZE, requires_grad=True) for _ in range(count)]
            placements: list[Placement] = [Shard(0), Replicate() if name == "linear" else Shard(0)][:count]
            sharded = [
                DTensor.from_local(torch.zeros(SIZE, SIZE), mesh, [placement], run_check=False).requires_grad_()
                for placement in placements
            ]
            with _Counted() as counted:
                trained(op, plain, torch.zeros(SIZE, SIZE))
            took = seconds(partial(trained, op, plain, torch.zeros(SIZE, SIZE)))
            gradient = torch.zeros_like(op(*sharded)).detach()
            took_sharded = seconds(partial(trained, op, sharded, gradient))
            extra.append((took_sharded - took) / counted.count)
            print(
                f"{name:10} {counted.count} ops: {took * 1e6:6.1f} µs, on DTensors {took_sharded * 1e6:6.1f} µs, "
                f"{extra[-1] * 1e6:5.1f} µs more for each op"
            )
    print(f"\nmean: {statistics.mean(extra) * 1e6:.0f} µs more for each op on DTensors")


if __name__ == "__main__":
    main()
