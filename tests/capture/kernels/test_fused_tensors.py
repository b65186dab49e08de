"""The memory of compiled modules: what a kernel writes is counted, what is fused away is not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dsexplore
from dsexplore._internal.capture.kernels.live_memory import LiveMemory
from dsexplore._internal.torch_internals.names import torch_at_least
from dsexplore._internal.trace.trace import Trace

REGION, ANOTHER = 1, 2


@pytest.fixture
def memory() -> Iterator[LiveMemory]:
    memory = LiveMemory()
    yield memory
    memory.release()


def counted(memory: LiveMemory) -> int:
    return sum(memory._now.values())


def made(memory: LiveMemory, size: int) -> torch.Tensor:
    """Return a tensor of so many bytes that a kernel wrote."""
    tensor = torch.empty(size, dtype=torch.uint8)
    memory.made([tensor], "activations")
    return tensor


def fused(memory: LiveMemory, size: int, *sources: torch.Tensor, region: int = REGION) -> torch.Tensor:
    """Return a tensor of so many bytes that a fused op computes."""
    tensor = torch.empty(size, dtype=torch.uint8)
    memory.made_fused([tensor], sources, region)
    return tensor


def test_what_is_fused_is_not_counted_until_a_kernel_reads_it(memory: LiveMemory) -> None:
    product = made(memory, 100)
    activation = fused(memory, 100, product)
    assert counted(memory) == 100
    memory.read([activation])
    memory.read([activation])
    assert counted(memory) == 200
    del activation
    assert counted(memory) == 100


def test_what_leaves_a_compiled_module_is_counted(memory: LiveMemory) -> None:
    inner = fused(memory, 100, made(memory, 10))
    outer = fused(memory, 50, inner, region=ANOTHER)
    assert counted(memory) == 100
    del inner, outer


def test_the_smaller_is_kept_of_a_tensor_and_what_is_computed_from_it(memory: LiveMemory) -> None:
    narrow = made(memory, 100)
    wide = fused(memory, 200, narrow)  # such as a copy in fp32
    del narrow
    assert counted(memory) == 100
    del wide
    assert counted(memory) == 0
    wide = made(memory, 200)
    narrow = fused(memory, 100, wide)
    del wide
    assert counted(memory) == 100
    del narrow
    assert counted(memory) == 0


def test_a_chain_depends_on_what_its_first_was_computed_from(memory: LiveMemory) -> None:
    product = made(memory, 100)
    first = fused(memory, 400, product)
    last = fused(memory, 400, first)
    del first
    assert counted(memory) == 100
    del product
    assert counted(memory) == 100
    memory.read([last])
    assert counted(memory) == 400
    del last
    assert counted(memory) == 0


def test_what_turns_out_to_be_a_gradient_is_counted(memory: LiveMemory) -> None:
    gradient = fused(memory, 100, made(memory, 10))
    memory.assign([gradient], "gradients")
    assert counted(memory) == 100


@given(st.lists(st.tuples(st.sampled_from(["made", "fused", "read", "drop"]), st.integers(0, 7), st.integers(1, 9))))
def test_never_more_than_all_and_nothing_when_all_are_gone(steps: list[tuple[str, int, int]]) -> None:
    memory, held = LiveMemory(), dict[int, torch.Tensor]()
    for step, place, size in steps:
        tensors = list(held.values())
        if step == "made":
            held[place] = made(memory, size)
        elif step == "fused":
            held[place] = fused(memory, size, *tensors[:3], region=size % 2)
        elif step == "read":
            memory.read(tensors[: place + 1])
        else:
            held.pop(place, None)
        tensors.clear()
        assert counted(memory) >= 0
        assert memory._fused._num_uncounted >= 0
    memory.read(held.values())
    assert not memory._fused
    assert counted(memory) == sum(tensor.nbytes for tensor in held.values())
    held.clear()
    assert counted(memory) == 0
    memory.release()


class Layer(nn.Module):
    """A norm in fp32, two products with SiLU between them, and a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, width] in bf16."""
        wide = x.float()
        normed = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)
        return x + self.last(F.silu(self.first(normed)))


def step_of(layers: int, compiled: bool) -> Trace:
    with (
        warnings.catch_warnings(action="error", category=UserWarning),  # of a compiler that meets the recorder
        dsexplore.simulate(world_size=2, fake=True),
        dsexplore.commtrace(costs=True) as trace,
    ):
        model = nn.Sequential(*(Layer(64) for _ in range(layers))).bfloat16()
        if compiled:
            for layer in model:
                layer.compile()
        model(torch.randn(4096, 64, dtype=torch.bfloat16)).sum().backward()
    return trace


def test_of_a_compiled_layer_backward_gets_what_products_read_and_wrote() -> None:
    """Eager, a layer holds x in fp32 (as large as two rows), the norm's result, the first product's, and that of SiLU.

    Compiled, x in place of its copy in fp32.
    """
    row = 4096 * 64 * 2
    largest = {
        compiled: [step_of(layers, compiled).tables.memory["activations"].max() for layers in (4, 8)]
        for compiled in (False, True)
    }
    eager, compiled = ((many - few) / 4 / row for few, many in (largest[False], largest[True]))
    assert eager == pytest.approx(5, abs=0.1)
    assert compiled == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize("microbatches", [2, 8, 16])
def test_gradients_of_more_microbatches_take_no_more_memory(microbatches: int) -> None:
    with dsexplore.simulate(world_size=2, fake=True) as mesh, dsexplore.commtrace(costs=True) as trace:
        model = nn.Sequential(Layer(256), Layer(256))
        for layer in model:
            layer.compile()
            fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
        fully_shard(model, mesh=mesh)
        for number in range(microbatches):
            model.set_requires_gradient_sync(number == microbatches - 1)
            model(torch.randn(8, 256)).sum().backward()
    weights = 4 * 256 * 256
    one_more = 2 * 256 * 256 if torch_at_least("2.15") else 0  # which that torch holds while it adds it to the sum
    most = weights * (2 + 4) + one_more + 100_000  # in bf16 as made, in fp32 as a sum
    assert trace.tables.memory["activations"].max() <= most


def test_kernels_of_compiled_modules_are_marked_as_before() -> None:
    assert step_of(1, compiled=True).tables.kernels.filter(kind="matmul")["compiled"].all()
    assert not step_of(1, compiled=False).tables.kernels["compiled"].any()
