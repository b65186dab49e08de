"""Every op of every communication namespace is classified, and read at the right argument."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory  # registers symm_mem's ops
import torch.distributed.fsdp  # registers fsdp's ops
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import dsexplore
from dsexplore._internal.capture.collectives import ops
from dsexplore._internal.capture.collectives.substrate import KernelSubstrate  # noqa: F401  registers the functional and _dtensor ops
from dsexplore._internal.torch_internals.names import minor_version, torch_at_least
from dsexplore._internal.trace.collectives import OPS

SINCE = {
    "2.13": {
        "_c10d_functional::_wrap_tensor_autograd",
        "_c10d_functional::batch_p2p_ops",
        "_c10d_functional::irecv",
        "_c10d_functional::isend",
        "_c10d_functional::reduce_scatter_tensor_out",
        "_dtensor::mesh_get_process_group",
        "c10d::check_for_nan",
        "c10d_functional::batch_p2p_ops",
        "c10d_functional::irecv",
        "c10d_functional::isend",
        "symm_mem::_barrier",
        "symm_mem::_rendezvous",
        "symm_mem::get_remote_tensors",
        "symm_mem::multi_root_tile_reduce",
        "symm_mem::multimem_one_shot_reduce_out",
        "symm_mem::nccl_get",
        "symm_mem::nccl_put",
        "symm_mem::nccl_put_signal",
        "symm_mem::nccl_put_with_signal",
        "symm_mem::nccl_reduce_scatter_offset",
        "symm_mem::nccl_wait_for_signal",
        "symm_mem::nccl_wait_signal",
        "symm_mem::nvshmem_put_with_signal",
        "symm_mem::nvshmem_wait_for_signal",
        "symm_mem::tile_reduce",
    },
    "2.14": {
        "c10d::gather_into_tensor_",
        "symm_mem::_low_contention_all_gather_ce_multicast",
        "symm_mem::_low_contention_all_gather_ce_multicast_out",
        "symm_mem::memcpy_to_multicast_",
        "symm_mem::nccl_all_to_all_nd",
        "symm_mem::nccl_get_out",
        "symm_mem::nvshmem_get_out",
    },
    "2.15": {
        "_c10d_functional::wait_tensors",
        "fsdp::chunk_cat_mixed_dtype",
        "fsdp::record_grad_output_stream",
    },
}
"""Ops by the version of torch that has them for certain; those of 2.13 are missing in 2.9."""


def test_every_op_is_recorded_or_has_a_reason() -> None:
    names = ops.op_names()
    assert {name.partition("::")[0] for name in names} == set(ops.NAMESPACES)
    unclassified = [name for name in names if name not in ops.COMMUNICATION_OPS and name not in ops.NOT_COMMUNICATION]
    assert not unclassified


def test_an_op_that_a_program_defines_is_found_until_it_is_gone() -> None:
    assert "c10d::of_this_test" not in ops.op_names()
    library = torch.library.Library("c10d", "FRAGMENT")
    library.define("of_this_test(Tensor x) -> Tensor")
    assert "c10d::of_this_test" in ops.op_names()
    library._destroy()
    assert "c10d::of_this_test" not in ops.op_names()


def test_no_op_is_both() -> None:
    assert not ops.COMMUNICATION_OPS.keys() & ops.NOT_COMMUNICATION.keys()
    assert all(reason.strip() for reason in ops.NOT_COMMUNICATION.values())


@pytest.mark.parametrize("raw_op", sorted(ops.COMMUNICATION_OPS.keys() & set(ops.op_names())))
def test_positions_agree_with_the_schema(raw_op: str) -> None:
    entry = ops.COMMUNICATION_OPS[raw_op]
    (schema,) = torch._C._jit_get_schemas_for_operator(raw_op)
    names = [argument.name for argument in schema.arguments]
    assert names[entry.group] in ("process_group", "group_name")
    assert entry.op in OPS
    has_async = "async_op" in names
    assert (entry.async_op is not None) == has_async
    if has_async:
        assert names[entry.async_op] == "async_op"


def test_an_op_that_this_torch_does_not_have_is_of_a_later_one() -> None:
    described = ops.COMMUNICATION_OPS.keys() | ops.NOT_COMMUNICATION.keys()
    later = {op for version, added in SINCE.items() if not torch_at_least(version) for op in added}
    missing = described - set(ops.op_names())
    assert missing <= later
    assert described >= set().union(*SINCE.values())
    if minor_version(torch.__version__) in map(minor_version, ("2.9", *SINCE)):
        assert missing == later


def test_an_op_that_nobody_described_gets_a_generic_entry() -> None:
    entry = ops.lookup("c10d::brand_new_")
    assert entry is not None
    assert entry.op == "unknown:brand_new_"
    small, large = torch.ones(2), torch.ones(3, dtype=torch.float64)
    assert entry.messages([[small], {"x": large}], 4, entry.op) == [(entry.op, 24, torch.float64, (3,))]
    assert entry.messages([1, "x"], 4, entry.op) == [(entry.op, 0, None, ())]


def test_an_op_that_does_not_communicate_has_no_entry() -> None:
    assert ops.lookup("_c10d_functional::wait_tensor") is None


@pytest.mark.parametrize(
    ("sent", "received", "message_bytes"),
    [([2, 2], [2, 2], 4 * 3 * 4), ([4, 0], [1, 1], 4 * 3 * 4), ([1, 1], [3, 4], 7 * 3 * 4), ([], [], 4 * 3 * 4)],
)
def test_an_uneven_all_to_all_counts_the_larger_side(sent: list[int], received: list[int], message_bytes: int) -> None:
    rows = sum(sent) or 4
    entry = ops.COMMUNICATION_OPS["_c10d_functional::all_to_all_single"]
    ((_, size, _, _),) = entry.messages([torch.empty(rows, 3), received, sent, "0"], 2, entry.op)
    assert size == message_bytes


def test_an_all_to_all_that_sends_nothing_still_receives() -> None:
    entry = ops.COMMUNICATION_OPS["_c10d_functional::all_to_all_single"]
    ((_, size, _, _),) = entry.messages([torch.empty(0, 3), [5, 0], [0, 0], "0"], 2, entry.op)
    assert size == 5 * 3 * 4


def test_a_fused_matmul_scatters_its_product() -> None:
    entry = ops.COMMUNICATION_OPS["symm_mem::fused_matmul_reduce_scatter"]
    left, right = torch.empty(8, 16), torch.empty(16, 32)
    ((_, size, _, _),) = entry.messages([left, right, "sum", 0, "0"], 4, entry.op)
    assert size == 8 * 32 * 4


@pytest.mark.parametrize("op", ["_c10d_functional::all_reduce", "_c10d_functional::all_gather_into_tensor"])
def test_symbolic_sizes_are_read_as_the_numbers_they_stand_for(op: str) -> None:
    entry = ops.lookup(op)
    assert entry is not None
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    fake = FakeTensorMode(shape_env=ShapeEnv())
    tensor = fake.from_tensor(torch.empty(2, 3), symbolic_context=dynamic, source=ConstantSource("tensor"))
    assert isinstance(tensor.shape[0], torch.SymInt)
    ((_, size, dtype, shape),) = entry.messages([tensor, "sum", "0"], 4, entry.op)
    assert (size, dtype, tuple(map(int, shape))) == (24 * (4 if "gather" in op else 1), torch.float32, (2, 3))


def test_messages_are_the_same_objects_until_they_are_forgotten() -> None:
    entry = ops.COMMUNICATION_OPS["_c10d_functional::all_reduce"]

    def message() -> object:
        (one,) = entry.messages([torch.empty(2), "sum", "0"], 4, entry.op)
        return one

    first = message()
    assert message() is first
    ops.forget_messages()
    assert message() == first
    assert message() is not first


SENT = ("local_input", "input", "inputs", "tensor", "tensors", "A", "in_tile", "in_tiles")
"""Names of what an op sends, in torch's schemas; the first that an op has."""


@pytest.mark.parametrize(
    "raw_op",
    sorted(
        raw_op
        for raw_op in ops.COMMUNICATION_OPS.keys() & set(ops.op_names())
        if not raw_op.startswith("c10d::") and raw_op != "_c10d_functional::batch_p2p_ops"
    ),
)
def test_a_message_is_read_off_what_the_schema_says_is_sent(raw_op: str) -> None:
    """Every tensor among the arguments has another shape."""
    (schema,) = torch._C._jit_get_schemas_for_operator(raw_op)
    values: dict[str, Any] = {}
    for number, argument in enumerate(schema.arguments, 6):
        kind = str(argument.type)
        tensor = torch.empty(8, number)
        values[argument.name] = [tensor] if kind == "List[Tensor]" else tensor if kind == "Tensor" else None
    entry = ops.COMMUNICATION_OPS[raw_op]
    ((op, size, _, shape),) = entry.messages(list(values.values()), 4, entry.op)
    sent = values[next(name for name in SENT if name in values)]
    tensor = sent[0] if isinstance(sent, list) else sent
    assert (op, tuple(shape)) == (entry.op, tuple(tensor.shape))
    if "matmul_reduce_scatter" not in raw_op:  # counts the product
        assert size == ops.nbytes(tensor) * (4 if entry.op == "all_gather" else 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sparse_tensor_has_the_bytes_of_its_indices_and_values(dtype: torch.dtype) -> None:
    sparse = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (1_000_000,), dtype=dtype, check_invariants=True)
    assert ops.nbytes(sparse) == 2 * 8 + 2 * dtype.itemsize
    with dsexplore.commtrace(world_size=4, hardware="cpu") as trace:
        dist.all_reduce(sparse)
    assert trace.events["message_bytes"].to_list() == [16 + 2 * dtype.itemsize]
    rows = torch.eye(3).to_sparse_csr()
    assert ops.nbytes(rows) == 4 * 8 + 3 * 8 + 3 * 4
