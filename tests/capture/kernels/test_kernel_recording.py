"""What is computed between collectives: FLOPs, bytes, phases and waits.

Modules: ``capture/kernels/kernel_recording.py``, ``capture/kernels/watched_ops.py``, ``capture/kernels/op_costs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import polars as pl
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import dsexplore
from dsexplore._internal.capture.kernels.op_costs import causal_pairs
from dsexplore._internal.trace.trace import Trace
from dsexplore._internal.worlds.scripts.program import torch_settings_restored


def step(model: nn.Module, *inputs: torch.Tensor) -> Trace:
    with dsexplore.commtrace(costs=True) as trace:
        model(*inputs).sum().backward()
    return trace


def kernels(trace: Trace, **conditions: object) -> pl.DataFrame:
    return trace.tables.kernels.filter(**conditions)


def test_products_have_torch_s_flops_and_their_shape() -> None:
    model, x = nn.Linear(32, 64), torch.randn(16, 32, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    trace = step(model, x)
    assert kernels(trace)["flops"].sum() == counter.get_total_flops() == 3 * 2 * 16 * 32 * 64
    forward = kernels(trace, phase="forward", kind="matmul")
    assert forward["shape"].to_list() == [[1, 16, 64, 32]]
    assert forward["module"].to_list() == ["Linear"]
    assert set(kernels(trace, phase="backward", kind="matmul")["module"]) == {"Linear"}


def fp8(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float8_e4m3fn, device="cuda")


def one_scale() -> Any:
    ones = torch.ones((), device="cuda")
    return torch._scaled_mm(fp8(256, 512), fp8(128, 512).t(), ones, ones, out_dtype=torch.bfloat16)


def scales_of_rows() -> Any:
    rows, columns = torch.ones(256, 1, device="cuda"), torch.ones(1, 128, device="cuda")
    return torch._scaled_mm(fp8(256, 512), fp8(128, 512).t(), rows, columns, out_dtype=torch.bfloat16)


def scales_of_blocks() -> Any:
    a, b = (torch.ones(size, device="cuda").to(torch.float8_e8m0fnu) for size in (256 * 16, 128 * 16))
    return torch._scaled_mm(fp8(256, 512), fp8(128, 512).t(), a, b, out_dtype=torch.bfloat16)


def functional() -> Any:
    rows, columns = torch.ones(256, 1, device="cuda"), torch.ones(1, 128, device="cuda")
    by_row = F.ScalingType.RowWise
    return F.scaled_mm(fp8(256, 512), fp8(128, 512).t(), rows, by_row, columns, by_row, output_dtype=torch.bfloat16)


def packed() -> Any:
    a, b = (
        torch.empty(size, 256, dtype=torch.uint8, device="cuda").view(torch.float4_e2m1fn_x2) for size in (256, 128)
    )
    scales = (torch.empty(size * 32, dtype=torch.float8_e4m3fn, device="cuda") for size in (256, 128))
    return torch._scaled_mm(a, b.t(), *scales, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("multiply", [one_scale, scales_of_rows, scales_of_blocks, functional, packed])
def test_products_of_narrow_numbers_are_of_their_matrices_whatever_their_scales(multiply: Callable[[], Any]) -> None:
    if multiply is functional and not hasattr(F, "scaled_mm"):
        pytest.skip("this torch has no torch.nn.functional.scaled_mm")
    with dsexplore.simulate(2, fake=True), dsexplore.commtrace(costs=True) as trace:
        multiply()
    product = kernels(trace, kind="matmul")
    assert product["shape"].to_list() == [[1, 256, 128, 512]]
    assert product["flops"].item() == 2 * 256 * 128 * 512
    assert product["op"].item() == ("_scaled_mm_v2" if multiply is functional else "_scaled_mm")
    assert product["dtype"].item() == ("float4_e2m1fn_x2" if multiply is packed else "float8_e4m3fn")


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention_counts_half_where_it_is_causal_and_fewer_heads_of_keys(is_causal: bool) -> None:
    q, k = torch.randn(2, 8, 64, 16), torch.randn(2, 4, 64, 16)
    with dsexplore.commtrace(costs=True) as trace:
        F.scaled_dot_product_attention(q, k, k, is_causal=is_causal, enable_gqa=True)
    attention = kernels(trace, kind="attention")
    pairs = 64 * 65 // 2 if is_causal else 64 * 64
    assert attention["flops"].item() == 4 * 2 * 8 * pairs * 16
    assert attention["op"].item().endswith("causal") == is_causal


def test_attention_whose_last_arguments_are_left_out() -> None:
    """Dispatch modes do not get trailing arguments with default values, here ``is_causal``."""
    q = torch.randn(2, 8, 64, 16, device="meta")
    with dsexplore.commtrace(costs=True) as trace:
        torch.ops.aten._scaled_dot_product_flash_attention(q, q, q, 0.1)
    attention = kernels(trace, kind="attention")
    assert (attention["op"].item(), attention["flops"].item()) == ("flash_attention", 4 * 2 * 8 * 64 * 64 * 16)


@pytest.mark.parametrize(("width", "alignment"), [(64, ""), (36, ", aligned to 8 bytes"), (33, ", aligned to 2 bytes")])
def test_products_say_where_rows_begin_at_odd_places(width: int, alignment: str) -> None:
    x = torch.randn(16, 32, dtype=torch.bfloat16)
    trace = step(nn.Linear(32, width, bias=False).bfloat16(), x)
    assert kernels(trace, kind="matmul", phase="forward")["op"].to_list() == [f"mm{alignment}"]


@pytest.fixture
def precision() -> Iterator[Callable[[str], None]]:
    """Sets how torch multiplies float32 matrices, until the test is over."""
    with torch_settings_restored():
        yield torch.set_float32_matmul_precision


@pytest.mark.parametrize(("wanted", "dtype"), [("highest", "float32"), ("high", "tf32")])
def test_products_are_in_tf32_where_the_program_allows_it(
    wanted: str, dtype: str, precision: Callable[[str], None]
) -> None:
    precision(wanted)
    trace = step(nn.Linear(32, 64), torch.randn(16, 32))
    assert set(kernels(trace, kind="matmul")["dtype"]) == {dtype}
    half = step(nn.Linear(32, 64, dtype=torch.bfloat16), torch.randn(16, 32, dtype=torch.bfloat16))
    assert set(kernels(half, kind="matmul")["dtype"]) == {"bfloat16"}


def test_convolutions_are_in_tf32_unless_the_program_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.randn(2, 3, 8, 8)
    assert set(kernels(step(nn.Conv2d(3, 4, 3), images), kind="matmul")["dtype"]) == {"tf32"}
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert set(kernels(step(nn.Conv2d(3, 4, 3), images), kind="matmul")["dtype"]) == {"float32"}


@pytest.mark.parametrize(("length", "reads"), [(4096, 1), (32768, 3)])
def test_softmax_of_long_rows_is_read_three_times(length: int, reads: int) -> None:
    with dsexplore.commtrace(costs=True) as trace:
        torch.randn(4, length).log_softmax(-1)
    row = kernels(trace, op="_log_softmax").row(0, named=True)
    assert row["read_bytes"] == reads * row["written_bytes"] == reads * 4 * length * 4


def test_norms_read_their_arguments_again_where_a_gpu_does() -> None:
    model, x = nn.Sequential(nn.BatchNorm2d(8), nn.Tanh()), torch.randn(4, 8, 16, 16, requires_grad=True)
    trace = step(model, x)
    forward, backward = (
        kernels(trace, op=op)["read_bytes"].item() for op in ("native_batch_norm", "native_batch_norm_backward")
    )
    assert forward == pytest.approx(2 * x.nbytes, rel=0.02)
    assert backward == pytest.approx(4 * x.nbytes, rel=0.02)


@pytest.mark.parametrize(("queries", "keys", "pairs"), [(3, 3, 6), (3, 2, 5), (2, 3, 3), (1, 1, 1)])
def test_causal_pairs(queries: int, keys: int, pairs: int) -> None:
    assert causal_pairs(queries, keys) == pairs == sum(min(i + 1, keys) for i in range(queries))


def test_bytes_are_those_read_and_written_and_views_are_free() -> None:
    x = torch.zeros(1024)
    with dsexplore.commtrace(costs=True) as trace:
        y = x.view(32, 32).t() + 1
        y.copy_(x.view(32, 32))
        x.expand(8, 1024).sum()
    by_op = {row["op"]: row for row in kernels(trace).iter_rows(named=True)}
    assert set(by_op) == {"add", "copy_", "sum"}
    assert (by_op["add"]["read_bytes"], by_op["add"]["written_bytes"]) == (4096, 4096)
    assert (by_op["copy_"]["read_bytes"], by_op["copy_"]["written_bytes"]) == (4096, 4096)
    assert by_op["sum"]["read_bytes"] == 4096, "an expanded tensor is read once"


def test_checkpointed_layers_are_computed_again() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)  # type: ignore[no-any-return] # a module call

    trace = step(Checkpointed(), torch.randn(8, 32, requires_grad=True))
    again = kernels(trace, phase="recompute", kind="matmul")
    assert again["module"].to_list() == ["Checkpointed.inner.0"], "torch stops once it has all that backward needs"
    assert again["flops"].item() == kernels(trace, phase="forward", kind="matmul")["flops"][0]


def test_the_optimizer_has_its_phase_and_steps_their_numbers() -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with dsexplore.commtrace(costs=True) as trace:
        for _ in range(2):
            model(torch.randn(2, 8)).sum().backward()
            optimizer.step()
            trace.step()
    assert kernels(trace, phase="optimizer")["step"].unique().sort().to_list() == [0, 1]
    assert kernels(trace, kind="matmul").group_by("step").len()["len"].to_list() == [2, 2]


def test_the_compute_stream_waits_where_the_program_does() -> None:
    import torch.distributed._functional_collectives as functional

    with dsexplore.simulate(4), dsexplore.commtrace(costs=True) as trace:
        first = functional.all_reduce(torch.ones(8), "sum", dist.group.WORLD)
        second = functional.all_reduce(torch.ones(8), "sum", dist.group.WORLD)
        (second + 1).sum()
        first * 2
    waits = kernels(trace, kind="wait")
    assert waits["waits_for"].to_list() == [1, 0]


def test_gathers_of_fsdp_are_waited_for_before_they_are_copied_out() -> None:
    with dsexplore.simulate(4, fake=True) as mesh:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        for layer in model:
            fully_shard(layer, mesh=mesh)
        with dsexplore.commtrace(costs=True) as trace:
            model(torch.randn(2, 8)).sum().backward()
    gathers = trace.events.filter(op="all_gather")["seq"].to_list()
    assert kernels(trace, kind="wait")["waits_for"].to_list() == gathers
    memory = trace.tables.memory
    assert memory["buffers"].max() >= 2 * 72 * 4  # both layers gathered in the forward
    assert memory["buffers"][-1] < memory["buffers"].max()


def test_a_tensor_at_the_address_of_another_that_is_gone_is_not_taken_for_it() -> None:
    total = torch.zeros(64)
    with dsexplore.commtrace(costs=True) as trace:
        for _ in range(8):
            made = total.neg()
            del made
            read = torch.empty(64)  # often where the one before was
            total = total + read
            del read
    assert kernels(trace)["fused_bytes"].sum() == (1 + 8 + 1) * 64 * 4, "the first, all that are read, and the last"


def test_shapes_that_dtensor_asks_for_are_not_counted_but_what_follows_is() -> None:
    with dsexplore.simulate(mesh="tp=2") as mesh:
        rows = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
        weight = distribute_tensor(torch.randn(4, 6), mesh, [Replicate()])
        with dsexplore.commtrace(costs=True) as trace:
            (rows @ weight) @ distribute_tensor(torch.randn(6, 2), mesh, [Replicate()], src_data_rank=None)
    assert kernels(trace, kind="matmul")["shape"].to_list() == [[1, 4, 6, 4], [1, 4, 2, 6]]


def test_nothing_of_it_is_recorded_unless_asked_for() -> None:
    with dsexplore.commtrace() as trace:
        nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()
    assert trace.tables.kernels.is_empty()
    assert trace.tables.memory.is_empty()


def test_everything_is_put_back_where_the_block_raises() -> None:
    resize = torch.UntypedStorage.resize_
    with pytest.raises(ZeroDivisionError), dsexplore.commtrace(costs=True):
        assert torch.UntypedStorage.resize_ is not resize
        raise ZeroDivisionError
    assert torch.UntypedStorage.resize_ is resize
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()


def coalesced() -> torch.Tensor:
    entries = torch.eye(8).to_sparse().coalesce()
    return torch.sparse.mm(entries, torch.ones(8, 4)) + (entries + entries).to_dense()[:, :4]


def uninitialized() -> torch.Tensor:
    layers = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    return cast("torch.Tensor", layers(torch.ones(2, 3, 8, 8)))


def nested() -> torch.Tensor:
    return (torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)]) * 2).to_padded_tensor(0.0)


OF_THEIR_OWN_LAYOUT: dict[str, Callable[[], torch.Tensor]] = {
    "coo": coalesced,
    "csr": lambda: torch.eye(8).to_sparse_csr() @ torch.ones(8, 4),
    "csc": lambda: torch.eye(8).to_sparse_csc().to_dense(),
    "bsr": lambda: torch.eye(8).to_sparse_bsr((2, 2)).to_dense(),
    "mkldnn": lambda: (torch.ones(4, 4).to_mkldnn() + torch.ones(4, 4).to_mkldnn()).to_dense(),
    "nested": nested,
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2, 4)], layout=torch.jagged).values(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8).dequantize(),
    "uninitialized": uninitialized,
    "sparse bag": lambda: nn.EmbeddingBag(16, 8, sparse=True, mode="sum")(torch.arange(4)[None]),
}


@pytest.mark.parametrize("program", OF_THEIR_OWN_LAYOUT.values(), ids=OF_THEIR_OWN_LAYOUT.keys())
@pytest.mark.filterwarnings("ignore")  # torch calls some of them prototypes
def test_a_program_with_tensors_of_their_own_layout_computes_the_same_while_its_costs_are_recorded(
    program: Callable[[], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    expected = program()
    torch.manual_seed(0)
    with dsexplore.commtrace(costs=True) as trace:
        result = program()
    assert torch.equal(result, expected)
    assert trace.tables.kernels["count"].sum() > 0


def test_a_product_with_a_sparse_matrix_costs_the_bytes_of_what_is_there() -> None:
    left, right = torch.eye(8).to_sparse_csr(), torch.ones(8, 4)
    with dsexplore.commtrace(costs=True) as trace:
        left @ right
    rows = kernels(trace, phase="other")
    assert rows["kind"].unique().to_list() == ["memory"]
    assert rows["read_bytes"].sum() >= 9 * 8 + 8 * 8 + 4 * 8 + 4 * 32
