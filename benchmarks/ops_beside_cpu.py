"""Ops of torch's own database, run on the CPU and on GPUs for which the CPU stands in, and compared call by call.

    python benchmarks/ops_beside_cpu.py [--kinds tensors fake DTensors] [--only NAME] [--every N]

All of them take two minutes; a test runs every twelfth op.

Compared is what a program can see of each tensor that a call returns or writes into: values, dtype, shape, strides,
which input or other result it is, or shares memory with, and whether moving it to where it is returns itself. A tensor
that is on the CPU on one side has to be on ``cuda:0`` on the other. Printed are the differences, then a line of JSON
for each kind of tensors. The exit status is 1 where there are differences.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tensor_facts import Facts, differences, facts_of_tensor, tensors_in
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import dsexplore
from dsexplore._internal.worlds.cuda.stand_in import cuda_stand_in

DTYPES = (torch.float32, torch.complex64, torch.int64, torch.bool)
"""The first of these that an op takes is tried."""
WITHOUT_VALUES = ("empty", "new_empty", "resize")
"""Beginnings of the names of ops whose results hold whatever was in their memory."""
SAMPLES = {
    "tensors": {"gradients": 1, "function": 2, "method": 1, "in place": 1},
    "fake": {"gradients": 1, "in place": 1},
    "DTensors": {"gradients": 1, "in place": 1},
}
"""By kind of tensors: how many sample inputs of an op are tried, of the function and of what else has its name."""
OTHER_SAMPLES = {"_softmax_backward_data", "full_like"}
"""Ops for which torch's database has other sample inputs on GPUs."""


@dataclass
class Call:
    """One call: what it is of, and on which arguments."""

    op: str
    variant: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.op} ({self.variant})"


def operators() -> list[Any]:
    """Return torch's database of ops. It imports a package for torch's own tests, of which a class is enough."""
    if "expecttest" not in sys.modules:
        package = ModuleType("expecttest")
        package.TestCase, package.assert_expected_inline = unittest.TestCase, None  # type: ignore[attr-defined]
        sys.modules["expecttest"] = package
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def calls_of_database(ops: list[Any], device: str, samples: dict[str, int]) -> Iterator[Call]:
    """Yield calls of every op, so many of each variant."""
    for op in ops:
        name = f"{op.name}.{op.variant_test_name}".removesuffix(".")
        dtype = next((dtype for dtype in DTYPES if dtype in op.dtypes), None)
        if dtype is None:
            continue
        differentiable = op.supports_autograd and dtype is torch.float32
        variants = {
            "gradients": with_gradients(op.op) if differentiable else op.op,
            "function": op.op,
            "method": op.method_variant,
            "in place": op.inplace_variant,
        }
        for variant, count in samples.items():
            if variants[variant] is not None:
                seed()
                inputs = op.sample_inputs(device, dtype, requires_grad=differentiable and variant == "gradients")
                for number, sample in enumerate(islice(inputs, count)):
                    args = (sample.input, *sample.args)
                    yield Call(name, f"{variant} {number}", variants[variant], args, sample.kwargs)


def seed() -> None:
    """Make all random numbers be the same again."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


def with_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that returns what a function computes and its gradients, by ``grad`` and by ``backward``."""

    def call(*args: Any, **kwargs: Any) -> Any:
        leaves = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad and tensor.is_leaf]
        results = function(*args, **kwargs)
        try:
            sums = [result.abs().sum() for result in tensors_in(results) if result.requires_grad]
            total = sum(sums[1:], sums[0])
            made = torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True)
            total.backward()
        except Exception:  # most often of an op on DTensors whose backward has no rule
            return results
        return results, made, [leaf.grad for leaf in leaves]

    return call


def calls_of_lists(device: str, every: int) -> Iterator[Call]:
    """Yield calls of every function, or each second, third, …, on lists of tensors, on whatever arguments it takes."""
    seed()
    for name in sorted(name for name in dir(torch) if name.startswith("_foreach_"))[::every]:
        for number in range(6):
            tensors, others, more = (list(torch.rand(3, 4, device=device).unbind()) for _ in range(3))
            scalar = torch.tensor(0.5, device=device)
            arguments = ((), (2.0,), (others,), (scalar,), (others, more), ([1.0, 2.0, 3.0],))[number]
            yield Call(name, f"list {number}", getattr(torch, name), (tensors, *arguments))


def calls_of_moves(device: str, moves: Iterable[Callable[..., Any]]) -> Iterator[Call]:
    """Yield calls that move tensors, make some of others' data, or ask for what shares their memory."""
    seed()
    for number, function in enumerate(moves):
        yield Call("moves", f"{number}", function, (torch.rand(3, 4, device=device), device))


MOVES: tuple[Callable[[Tensor, str], Any], ...] = (
    lambda x, device: x.to(device),
    lambda x, device: x.to(x.device),
    lambda x, device: x.to(device, torch.float32),
    lambda x, device: x.to(torch.float64),
    lambda x, device: x.to(torch.float32),
    lambda x, device: x.to(x),
    lambda x, device: x.to(device, copy=True),
    lambda x, device: x.to(x.double()),
    lambda x, device: x.type(x.type()),
    lambda x, device: x.type(torch.float32),
    lambda x, device: x.type_as(x),
    lambda x, device: x.float(),
    lambda x, device: x.half(),
    lambda x, device: x.t().to(device, memory_format=torch.contiguous_format),
    lambda x, device: torch.as_tensor(x),
    lambda x, device: torch.as_tensor(x, device=device),
    lambda x, device: torch.as_tensor(x, dtype=torch.float64, device=device),
    lambda x, device: torch.asarray(x),
    lambda x, device: torch.asarray(x, device=device),
    lambda x, device: torch.tensor([1.0, 2.0], device=device),
    lambda x, device: x.new_tensor([1.0]),
    lambda x, device: x.new_zeros(2),
    lambda x, device: torch.zeros_like(x, device=device),
    lambda x, device: torch.arange(3, device=device),
    lambda x, device: torch.rand(3, device=device),
    lambda x, device: x.data,
    lambda x, device: x.detach(),
    lambda x, device: x.requires_grad_(),
    lambda x, device: torch.nn.Parameter(x),
    lambda x, device: x.t().contiguous(),
    lambda x, device: x[1:].t()[1:],
    lambda x, device: (x.T, x.mT, x.H, x.real),
    lambda x, device: x[0]._base,
    lambda x, device: x.view(torch.int32),
    lambda x, device: x.__setitem__(0, 3.0),
    lambda x, device: torch.atleast_2d(x, x[0]),
    lambda x, device: torch.broadcast_tensors(x, x[:1]),
    lambda x, device: torch.meshgrid(x[0], x[1], indexing="ij"),
    lambda x, device: torch.nn.utils.parameters_to_vector([x]),
    lambda x, device: torch.nn.utils.clip_grad_norm_([with_gradient(x)], 0.1),
    lambda x, device: torch.add(x, x, out=x),
    lambda x, device: torch.max(x, dim=0, out=(x[0], torch.zeros(4, dtype=torch.long, device=device))),
    lambda x, device: torch.stack([x, x]).unbind(),
    lambda x, device: torch.nn.Linear(4, 2).to(device).weight,
    lambda x, device: torch.nn.Linear(4, 2, device=device)(x),
    lambda x, device: torch.utils.checkpoint.checkpoint(torch.sin, x.requires_grad_(), use_reentrant=False),
)


MOVES_OF_MEMORY: tuple[Callable[[Tensor, str], Any], ...] = (
    lambda x, device: torch.empty(0, device=device).set_(x.untyped_storage(), 4, (2, 2)),
    lambda x, device: setattr(x, "data", torch.ones(2, device=device)),
    lambda x, device: torch.utils.swap_tensors(x, torch.ones(2, device=device)),
)
"""Those that DTensors, which have no memory of their own, do not allow."""


def with_gradient(x: Tensor) -> Tensor:
    """Return the tensor, with a gradient."""
    x.grad = torch.ones_like(x)
    return x


def facts_of(call: Call) -> Facts:
    """Carry out a call, and return what a program can see of it; the kind of error where it raises one."""
    inputs = list(tensors_in((call.args, call.kwargs)))
    devices = [tensor.device for tensor in inputs]
    seed()
    drawn = generator_state()
    try:
        results = call.function(*call.args, **call.kwargs)
    except Exception as error:
        return {"raises": type(error).__name__, "text": str(error)}
    made = list(tensors_in(results))
    keep_values = not call.op.startswith(WITHOUT_VALUES)
    facts: Facts = {"results": [facts_of_tensor(tensor, inputs, made, keep_values) for tensor in made]}
    facts["draws"] = generator_state() != drawn
    facts["inputs"] = [facts_of_tensor(tensor, inputs, made, keep_values) for tensor in inputs]
    for tensor, device, of_input in zip(inputs, devices, facts["inputs"], strict=True):
        del of_input["device"], of_input["is_cuda"]  # some ops take tensors that are on the CPU
        of_input["stays"] = tensor.device == device
    facts["types"] = type(results).__name__
    return facts


def generator_state() -> bytes:
    """Return the state of the CPU's generator."""
    with unset_fake_temporarily():
        return bytes(torch.get_rng_state().numpy())


def distributed(calls: Iterable[Call], mesh: Any) -> Iterator[Call]:
    """Yield calls on DTensors in place of tensors with dims: cut along the first where that is even, else whole."""

    def convert(value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.dim():
                return value
            even = value.shape[0] > 0 and value.shape[0] % mesh.size() == 0
            return distribute_tensor(value, mesh, [Shard(0) if even else Replicate()])
        if isinstance(value, (list, tuple)):
            return type(value)(map(convert, value))
        return {name: convert(item) for name, item in value.items()} if isinstance(value, dict) else value

    for call in calls:
        try:
            args, kwargs = convert(call.args), convert(call.kwargs)
        except Exception:  # a tensor that cannot be distributed, as a sparse one
            continue
        yield Call(call.op, call.variant, call.function, args, kwargs)


def compare(calls: Callable[[str, Any], Iterable[Call]], worlds: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return how many ops were tried and how many calls were equal, and the differences of the others.

    Args:
        calls: returns the calls on a device, and in a world with a mesh.
        worlds: by device, the context to carry them out in.
    """
    began = time.process_time()
    found: dict[str, dict[str, tuple[str, Facts]]] = {}
    for device, world in worlds.items():
        with world as mesh:
            found[device] = {str(call): (call.op, facts_of(call)) for call in calls(device, mesh)}
    ops, equal, different = set(), 0, []
    for name, (op, expected) in found["cpu"].items():
        _, actual = found["cuda"].get(name, (op, {"raises": "nothing", "text": "no such sample"}))
        if op in OTHER_SAMPLES or ("raises" in expected and "raises" in actual):
            continue
        ops.add(op)
        texts = [f"{name}{text}" for text in differences(expected, actual)]
        if expected["draws"]:  # DTensors draw numbers otherwise on GPUs
            texts = [text for text in texts if "/local/values/" not in text]
        different += texts
        equal += not texts
    summary = {"ops": len(ops), "equal calls": equal, "seconds of CPU": round(time.process_time() - began)}
    return summary, different


def compare_kind(kind: str, ops: list[Any], every: int) -> tuple[dict[str, Any], list[str]]:
    """Compare those ops, or each second, third, … of them, on one kind of tensors; see `compare`."""

    def calls(device: str, mesh: Any) -> Iterator[Call]:
        moves = MOVES if kind == "DTensors" else (*MOVES, *MOVES_OF_MEMORY)
        yield from calls_of_moves(device, moves)
        yield from calls_of_lists(device, every)
        yield from calls_of_database(ops[::every], device, SAMPLES[kind])

    def calls_on_dtensors(device: str, mesh: Any) -> Iterator[Call]:
        return distributed(calls(device, mesh), mesh)

    worlds: dict[str, Any] = {"cpu": nullcontext(), "cuda": cuda_stand_in()}
    if kind != "tensors":
        worlds = {
            device: dsexplore.simulate(2, hardware="h100" if device == "cuda" else None, fake=kind == "fake")
            for device in worlds
        }
    return compare(calls_on_dtensors if kind == "DTensors" else calls, worlds)


def main() -> None:
    """Compare, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=[*SAMPLES], default=[*SAMPLES], help="of tensors")
    parser.add_argument("--only", default="", help="part of the names of the ops to try")
    parser.add_argument("--every", type=int, default=1, help="1 for all ops, 2 for every second one, …")
    options = parser.parse_args()
    sys.argv[1:] = []  # which torch's database reads too
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ops = [op for op in operators() if options.only in op.name]
    are_equal = True
    for kind in options.kinds:
        summary, different = compare_kind(kind, ops, options.every)
        print(*different, sep="\n", end="\n" if different else "")
        print(json.dumps({"kind": kind, **summary, "differences": len(different)}))
        are_equal &= not different
    sys.exit(not are_equal)


if __name__ == "__main__":
    main()
